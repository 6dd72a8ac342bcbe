"""The capture report: names, sizes, devices and open handles of what a function drags along."""

from __future__ import annotations

import ast

import pytest

SETUP = """
import dataclasses, functools, io, json, socket, sqlite3, sys
import numpy as np, pandas as pd, torch
import nbstate
from nbstate import captured, notebook_launcher

def names(function): return sorted(item.name for item in captured(function))
"""


@pytest.fixture(scope="module")
def cells(shared_kernel):
    shared_kernel.run(SETUP)
    return shared_kernel


def told(cells, code):
    """The value of the last expression of a cell."""
    cell = cells.run(code)
    assert cell.error is None, cell.error
    return ast.literal_eval(cell.result)


def test_globals_closures_defaults_are_named(cells):
    assert told(
        cells,
        """
        data, unused = [1, 2], [3]
        def make():
            inner = {"a": 1}
            def train(lr=(0.5,), *, decay=(0.25,)):
                return inner, [x for x in data]
            return train
        names(make())
        """,
    ) == [
        "closure variable 'inner'",
        "default of 'decay'",
        "default of 'lr'",
        "global variable 'data'",
    ]


def test_what_nested_and_called_functions_read_counts_too(cells):
    assert told(
        cells,
        """
        first, second, third = [1], [2], [3]
        class Net:
            table = [4]
            def forward(self): return third
        def helper(): return second
        def train():
            def inner(): return first
            return inner, helper(), Net()
        names(train)
        """,
    ) == [
        "class variable 'table' (used by Net)",
        "global variable 'first'",
        "global variable 'second' (used by helper)",
        "global variable 'third' (used by forward)",
    ]


def test_an_attribute_with_the_name_of_a_global_is_not_that_global(cells):
    assert told(cells, "data = [1]\ndef train(x): return x.data\nnames(train)") == []


def test_partials_methods_and_objects_that_are_called(cells):
    assert told(
        cells,
        """
        class Trainer:
            def __init__(self): self.numbers = [1]
            def fit(self, x): return x
            def __call__(self): return 1
        [names(functools.partial(Trainer().fit, [1, 2], x=[3])), names(Trainer())]
        """,
    ) == [
        ["partial argument 'x'", "partial argument 0", "the object of fit"],
        ["the object that is called"],
    ]


def test_what_can_be_imported_drags_nothing(cells):
    assert told(cells, "[names(json.dumps), names(np.sum), names(print), names(get_ipython)]") == [
        [], [], [], [],
    ]  # fmt: skip


def test_functions_that_call_each_other_and_unset_variables_are_no_trouble(cells):
    assert told(
        cells,
        """
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        def late():
            def train(): return value, missing_global
            return train
            value = 1
        loop = []; loop.append(loop)
        def train(): return even, loop
        [names(even), names(late()), names(train)]
        """,
    ) == [[], [], ["global variable 'loop'"]]


def test_sizes_are_of_the_memory_and_shared_memory_counts_once(cells):
    assert told(
        cells,
        """
        tensor = torch.zeros(1_000_000)
        view, array = tensor[:10], np.zeros(1000)
        window = array[:5]
        frame = pd.DataFrame({"a": np.zeros(1000)})
        text = "x" * 5000
        model = torch.nn.Linear(1000, 1000, bias=False)
        def train(): return tensor, view, array, window, frame, text, model
        found = {item.name.split("'")[1]: item for item in captured(train)}
        sizes = [found[name].size for name in ("tensor", "view", "array", "window")]
        rough = [
            8_000 <= found["frame"].size < 9_000,
            5_000 <= found["text"].size < 5_100,
            4_000_000 <= found["model"].size < 4_010_000,
        ]
        shared = [found[name].copied < 10_000 for name in ("tensor", "array", "model", "text")]
        sizes, rough, shared, found["text"].copied >= 5000
        """,
    ) == ([4_000_000, 0, 8_000, 0], [True] * 3, [True] * 4, True)


def test_a_long_container_is_weighed_by_its_beginning(cells):
    assert told(
        cells,
        """
        long = [bytes(1000) for _ in range(100_000)]
        def train(): return long
        total = sum(map(sys.getsizeof, long)) + sys.getsizeof(long)
        abs(captured(train).size - total) < total / 100
        """,
    )


def test_open_handles_are_found_where_they_are(cells):
    assert told(
        cells,
        """
        class Data:
            __slots__ = ("file",)
        data = Data(); data.file = open("numbers.txt", "w")
        closed = open("other.txt", "w"); closed.close()
        base, shut = sqlite3.connect(":memory:"), sqlite3.connect(":memory:"); shut.close()
        ends = {"plug": socket.socket()}
        quiet = [io.StringIO(), sys.stdout, sys.stderr]
        def train(): return data, closed, base, shut, ends, quiet
        sorted(handle for item in captured(train) for handle in item.handles)
        """,
    ) == ["SQLite connection", "open file 'numbers.txt' at .file", "open socket at ['plug']"]


def test_an_open_hdf5_file_is_found(cells):
    pytest.importorskip("h5py")
    assert told(
        cells,
        """
        import h5py
        store, gone = h5py.File("store.h5", "w"), h5py.File("gone.h5", "w"); gone.close()
        store["x"] = np.zeros(3)
        part = store["x"]
        def train(): return store, part, gone
        found = [item.handles for item in captured(train) if item.handles]
        store.close()
        found
        """,
    ) == [("open HDF5 file 'store.h5'",), ("open HDF5 file 'store.h5'",)]


def test_objects_that_refuse_to_be_looked_at_stop_nobody(cells):
    cell = cells.run("""
        class Proxy:                                         # as web frameworks have them
            def __getattribute__(self, name): raise RuntimeError("outside of a request")
        class Odd(list):
            def __len__(self): raise RuntimeError("no length")
            __reduce__ = lambda self: (list, ())
        request, odd = Proxy(), Odd()
        def train(): return request is odd
        names(train), list(notebook_launcher(train, (), 2))
    """)
    assert cell.error is None, cell.error
    assert ast.literal_eval(cell.result) == (
        ["global variable 'odd'", "global variable 'request'"],
        [False, False],
    )


def test_the_report_is_a_table_in_text_and_html(cells):
    cell = cells.run("""
        big, log = torch.zeros(262144), {"<run>": open("run.log", "w")}
        def train(): return big, log
        captured(train)
    """)
    (bundle,) = cell.displays
    first, *rows = bundle["text/plain"].splitlines()
    assert first.startswith("train drags 1 MiB along; forked ranks copy nothing, a fresh rank ")
    assert rows[0].split() == ["global", "variable", "'big'", "Tensor", "1", "MiB"]
    assert "open file 'run.log' at ['<run>']: open it in the function" in rows[1]
    row = ["global variable &#x27;big&#x27;", "Tensor", "1 MiB", ""]
    shown = "".join(f'<td style="text-align:left">{text}</td>' for text in row)
    assert f"<tr>{shown}</tr>" in bundle["text/html"]
    assert "<run>" not in bundle["text/html"]
    told_plainly = cells.run("def alone(): pass\ncaptured(alone)")
    assert told_plainly.result == "alone drags nothing along"


def test_what_is_no_function_is_refused(cells):
    cell = cells.run("captured(3)")
    assert cell.error.ename == "TypeError"
    assert cell.error.evalue == "function=3: expected a function, such as train"


# -- told before a launch


def test_an_open_handle_is_told_in_one_line_before_the_launch(cells):
    cell = cells.run("""
        base, log = sqlite3.connect(":memory:"), open("run.log", "w")
        def train(where):
            print("at work")
            return base.total_changes
        notebook_launcher(train, ({"log": log},), 2)
    """)
    assert cell.error is None
    before, _, _ = cell.stdout.partition("at work")
    (line,) = [line for line in cell.stdout.splitlines() if "opened in the kernel" in line]
    assert line in before
    assert line == (
        "args[0]['log'] (open file 'run.log'), global variable 'base' (SQLite connection): opened "
        "in the kernel, and all ranks use the same one; open it in the function"
    )


def test_of_many_open_handles_a_few_are_named(cells):
    cell = cells.run("""
        logs = [open(f"{number}.log", "w") for number in range(30)]
        def train():
            return len(logs)
        notebook_launcher(train, (), 2)
    """)
    assert cell.error is None
    (line,) = [line for line in cell.stdout.splitlines() if "opened in the kernel" in line]
    assert "(open file '2.log') and 27 more (nbstate.captured(train) shows all): opened" in line
    assert "3.log" not in line


def test_nothing_is_told_of_what_is_opened_in_the_function_or_closed(cells):
    cell = cells.run("""
        closed = open("run.log", "w"); closed.close()
        def train():
            with open("run.log", "w") as log: return closed.closed, get_ipython is None
        notebook_launcher(train, (), 2)
    """)
    assert cell.error is None
    assert "opened in the kernel" not in cell.stdout


PRETEND = """
import psutil
class LittleMemory:
    total, available = {free} * 2, {free}
real = psutil.virtual_memory
psutil.virtual_memory = lambda: LittleMemory
"""


def launch_with_memory(cells, free, argument, **options):
    cells.run(PRETEND.format(free=free))
    cell = cells.run(f"""
        def train(x): return len(x)
        try:
            results = notebook_launcher(train, ({argument},), 4, **{options!r})
        finally:
            psutil.virtual_memory = real
        list(results)
    """)
    assert cell.error is None, cell.error
    return [line for line in cell.stdout.splitlines() if "are free" in line]


def test_copies_that_do_not_fit_are_told_before_a_fresh_launch(cells):
    (line,) = launch_with_memory(
        cells, 16 << 20, "bytes(5 << 20)", start_method="forkserver", view="plain"
    )
    assert line.startswith(
        "the ranks need 20 MiB for what the function drags along (4 copies of 5 MiB"
    )
    assert "and 16 MiB are free" in line
    assert "nbstate.captured(function)" in line


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("bytes(1 << 20)", {"start_method": "forkserver"}),  # fits
        ("torch.zeros(2 << 20)", {"start_method": "forkserver"}),  # 8 MiB, shared once
        ("bytes(5 << 20)", {}),  # forked ranks copy nothing
    ],
    ids=["fits", "shared", "forked"],
)
def test_nothing_is_told_of_what_fits(cells, argument, options):
    assert launch_with_memory(cells, 16 << 20, argument, **options) == []
