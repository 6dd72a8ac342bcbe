"""What a launch gives back, in a real kernel."""

from __future__ import annotations

import pytest

from nbstate import RankResults


def test_values_in_rank_order(shared_kernel):
    cell = shared_kernel.run("""
        import os
        from nbstate import notebook_launcher
        results = notebook_launcher(lambda: int(os.environ["RANK"]) * 10, num_processes=4)
        results[1], results[:2], len(results), list(results)
    """)
    assert cell.result == "(10, [0, 10], 4, [0, 10, 20, 30])"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_any_number_of_ranks(shared_kernel, ranks):
    shared_kernel.run("from nbstate import notebook_launcher, PartialState")
    cell = shared_kernel.run(f"""
        def place():
            state = PartialState()
            return state.process_index, state.num_processes
        list(notebook_launcher(place, num_processes={ranks}))
    """)
    assert cell.error is None
    assert cell.result == repr([(rank, ranks) for rank in range(ranks)])


def test_nothing_is_shown_when_all_ranks_return_none(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        notebook_launcher(print, ("hello",), num_processes=2)
    """)
    assert cell.result is None
    assert "hello" in cell.stdout


def test_functions_use_the_notebooks_variables(shared_kernel):
    shared_kernel.run("""
        from nbstate import notebook_launcher
        table = {"lr": 0.5}
        class Net: ...
        def helper(x): return x * table["lr"]
    """)
    cell = shared_kernel.run("""
        def outer(n):
            def train(): return helper(n), Net()
            return train
        results = notebook_launcher(outer(4), num_processes=2)
        results[0][0], type(results[1][1]) is Net
    """)
    assert cell.result == "(2.0, True)"


def test_keyword_arguments_coroutines_and_exits_without_error(shared_kernel):
    cell = shared_kernel.run("""
        import asyncio, sys
        from nbstate import notebook_launcher
        async def later(x, *, y=0):
            await asyncio.sleep(0)
            return x + y
        first = list(notebook_launcher(later, (1,), num_processes=2, kwargs={"y": 5}))
        first, list(notebook_launcher(sys.exit, num_processes=2))
    """)
    assert cell.result == "([6, 6], [None, None])"


def test_tensors_come_back_whole_and_tied_weights_stay_tied(shared_kernel):
    cell = shared_kernel.run("""
        import numpy as np, torch
        from nbstate import notebook_launcher
        def build():
            layer = torch.nn.Linear(300, 300)
            return {
                "model": torch.nn.Sequential(layer, layer),
                "slice": torch.arange(6).reshape(2, 3).t(),
                "half": torch.full((70_000,), 0.5, dtype=torch.bfloat16),
                "array": np.arange(100_000),
                "empty": torch.empty(0, 3),
                "scalar": torch.tensor(3.0, requires_grad=True),
            }
        torch.manual_seed(0)
        here = build()
        torch.manual_seed(0)
        there = notebook_launcher(build, num_processes=2)[1]
        there["half"][0] = 0.5            # memory of the kernel's own: it can be written to
        tied = there["model"][0].weight is there["model"][1].weight
        same = [torch.equal(here[k], there[k]) for k in ("slice", "half", "empty", "scalar")]
        weights = torch.equal(here["model"][0].weight, there["model"][0].weight)
        tied, same, weights, np.array_equal(here["array"], there["array"]), there["scalar"]
    """)
    assert (
        cell.result
        == "(True, [True, True, True, True], True, True, tensor(3., requires_grad=True))"
    )


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_arrays_can_be_written_to_wherever_they_arrive_and_whatever_their_size(
    shared_kernel, start_method
):
    cell = shared_kernel.run(f"""
        import numpy as np
        from nbstate import notebook_launcher
        def train(given):
            given[0] += 1
            fixed = np.arange(3)
            fixed.flags.writeable = False
            return given, fixed
        for size in (3, 200_000):
            (given, fixed), _ = notebook_launcher(
                train, (np.zeros(size),), num_processes=2, start_method={start_method!r}
            )
            given[0] += 1
            print(given[0], fixed.flags.writeable)
    """)
    assert cell.error is None
    assert cell.stdout.splitlines()[-1] == "2.0 False"
    assert cell.stdout.count("2.0 False") == 2


def test_a_big_tensor_is_mapped_not_copied(shared_kernel):
    cell = shared_kernel.run("""
        import psutil, torch
        from nbstate import notebook_launcher
        def big(): return torch.ones(64 * 1024 * 1024 // 4)
        notebook_launcher(big, num_processes=1, isolate=True)
        private = psutil.Process().memory_full_info().uss
        tensor = notebook_launcher(big, num_processes=2)[1]
        grown = psutil.Process().memory_full_info().uss - private
        grown < 16 * 1024 * 1024, tensor.sum().item() == tensor.numel()
    """)
    assert cell.result == "(True, True)"


def test_results_that_are_kept_hold_no_file_open_and_give_their_memory_back(kernel):
    cell = kernel.run("""
        import gc
        import numpy as np, psutil, torch
        from nbstate import notebook_launcher
        def many():
            return [torch.full((40_000,), float(i)) for i in range(20)], np.ones(40_000)
        def mapped():
            return "memfd:nbstate" in open("/proc/self/maps").read()
        notebook_launcher(int, num_processes=2)        # what the first launch opens stays
        before = psutil.Process().num_fds()
        results = notebook_launcher(many, num_processes=2)
        opened = psutil.Process().num_fds() - before
        last = results[1][0][-1]
        del results
        gc.collect()
        last += 1
        kept = mapped(), last.sum().item()
        del last
        gc.collect()
        opened, kept, mapped()
    """)
    assert cell.result == "(0, (True, 800000.0), False)"


def test_views_of_one_tensor_arrive_as_what_they_show(shared_kernel):
    cell = shared_kernel.run("""
        import torch
        from nbstate import notebook_launcher
        def views():
            x, table = torch.tensor([1 + 2j]), torch.tensor([[3.0, 4.0]])
            return x, x.conj(), x.imag, x.conj().imag, table[:, 1], table.t()[1]
        [tensor.tolist() for tensor in notebook_launcher(views, num_processes=2)[1]]
    """)
    assert cell.error is None
    assert cell.result == "[[(1+2j)], [(1-2j)], [2.0], [-2.0], [4.0], [4.0]]"


def test_what_cannot_travel_is_named_and_the_other_ranks_values_are_kept(shared_kernel):
    cell = shared_kernel.run("""
        import os, threading
        from nbstate import RankError, notebook_launcher
        class Model: ...
        def train():
            model = Model()
            if os.environ["RANK"] == "1":
                model.lock = threading.Lock()
            return {"model": model}
        try:
            notebook_launcher(train, num_processes=2)
        except RankError as error:
            print(str(error).splitlines()[0])
            print(sorted(error.results), type(error.results[0]["model"]) is Model)
    """)
    assert cell.error is None
    assert "rank 1 of 2: UnpicklableError: result['model'].lock" in cell.stdout
    assert "[0] True" in cell.stdout


def test_a_generator_is_refused_by_name(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        def batches():
            yield 1
        notebook_launcher(batches, num_processes=2)
    """)
    assert cell.error.ename == "RankError"
    assert "UnpicklableError: batches returned a generator" in cell.error.evalue
    assert "Traceback" not in cell.error.traceback  # there is no line of the user's to be shown


CANNOT_TRAVEL = {
    "ddp": (
        "result['model'] cannot travel between processes (torch.nn.parallel.distributed."
        "DistributedDataParallel): it belongs to its process group; use model.module, or its "
        "state_dict()"
    ),
    "sharded": "full_tensor() for name, shard in model.state_dict().items()}, made on all ranks",
    "shard": "result cannot travel between processes (torch.distributed.tensor.DTensor): each rank "
    "holds a shard; use tensor.full_tensor(), made on all ranks",
    "opened": "result cannot travel between processes (_io.TextIOWrapper): an open file stays in "
    "its process; use its name, or what it holds",
    "locked": "result[0] cannot travel between processes (_thread.lock): cannot pickle",
    "accelerator": "result['it'] cannot travel between processes (nbstate.train.accelerator."
    "Accelerator): an Accelerator belongs to the process that made it; return what was trained",
}


@pytest.mark.parametrize("function", CANNOT_TRAVEL)
def test_a_result_that_cannot_travel_is_explained_without_frames_of_ours(shared_kernel, function):
    shared_kernel.run("""
        import threading, torch
        from nbstate import *
        def ddp():
            PartialState()
            return {"model": torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))}
        def sharded():
            plugin = FullyShardedDataParallelPlugin()
            return Accelerator(fsdp_plugin=plugin).prepare(torch.nn.Linear(2, 2))
        def shard():
            return sharded().weight
        def opened():
            open("held.txt", "w").close()
            return open("held.txt")
        def locked():
            return [threading.Lock()]
        def accelerator():
            return {"it": Accelerator()}
    """)
    cell = shared_kernel.run(f"notebook_launcher({function}, num_processes=2)")
    assert cell.error.ename == "RankError"
    first, *others = cell.error.traceback.splitlines()
    assert CANNOT_TRAVEL[function] in first
    assert [line[:6] for line in others] == [
        "",
        "rank 0" if first.startswith("rank 1") else "rank 1",
    ]


def test_code_of_the_users_that_refuses_to_travel_is_shown(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        class Stays:
            def __getstate__(self):
                raise ValueError("it stays here")
        notebook_launcher(Stays, num_processes=2)
    """)
    assert "result cannot travel between processes" in cell.error.evalue
    assert "in __getstate__" in cell.error.evalue


def test_a_compiled_model_arrives(shared_kernel):
    cell = shared_kernel.run("""
        import torch
        from nbstate import notebook_launcher
        model = torch.nn.Linear(1, 1)
        found = notebook_launcher(lambda: torch.compile(model), num_processes=2)[1]
        torch.equal(found._orig_mod.weight, model.weight)
    """)
    assert cell.result == "True"


def test_one_process_runs_in_the_kernel(shared_kernel):
    cell = shared_kernel.run("""
        import os
        from nbstate import PartialState, notebook_launcher
        trained = []
        def train():
            trained.append(os.getpid())
            return PartialState().num_processes, os.environ["ACCELERATE_MIXED_PRECISION"]
        one = list(notebook_launcher(train, num_processes=1, mixed_precision="bf16"))
        two = list(notebook_launcher(lambda: PartialState().num_processes, num_processes=2))
        trained == [os.getpid()], one, two, "ACCELERATE_MIXED_PRECISION" in os.environ
    """)
    assert cell.result == "(True, [(1, 'bf16')], [2, 2], False)"


def test_one_process_awaits_a_coroutine_inside_the_kernels_loop(kernel):
    cell = kernel.run("""
        import asyncio, os, threading
        from nbstate import notebook_launcher
        async def later(x):
            print("up", flush=True)
            await asyncio.sleep(x)
            return os.getpid(), threading.current_thread() is threading.main_thread()
        loop = asyncio.get_running_loop()
        found = notebook_launcher(later, (0,), num_processes=1)[0] == (os.getpid(), True)
        await asyncio.sleep(0)
        found, asyncio.get_running_loop() is loop is asyncio.get_event_loop()
    """)
    assert cell.result == "(True, True)"
    cell = kernel.start("notebook_launcher(later, (600,), num_processes=1)")
    kernel.read_until(lambda: "up" in cell.stdout)
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.ename == "KeyboardInterrupt"
    cell = kernel.run("await asyncio.sleep(0); asyncio.get_running_loop() is loop")
    assert cell.result == "True"


def test_one_process_is_a_rank_where_an_option_is_for_ranks(shared_kernel, tmp_path):
    cell = shared_kernel.run(f"""
        import os, time, torch
        from nbstate import RankTimeoutError, notebook_launcher
        trained = torch.nn.Linear(1, 1)
        def train(): return os.getpid(), torch.get_num_threads()
        def ask(**options): return notebook_launcher(train, num_processes=1, **options)[0]
        apart = [ask(**option)[0] != os.getpid() for option in (
            dict(trace=True), dict(log_dir={str(tmp_path)!r}), dict(backend="gloo"),
            dict(max_restarts=1), dict(timeout=60, write_back=[trained]),
        )]
        here = ask(view="plain", grace=2.0)[0] == os.getpid()
        apart, here, ask(threads_per_rank=1)[1], os.path.exists("{tmp_path}/rank0.log")
    """)
    assert cell.result == "([True, True, True, True, True], True, 1, True)"
    is_told = "the one process is a rank of its own; the kernel gets what it returns or writes back"
    assert f"timeout: {is_told}\n" in cell.stdout
    assert cell.stdout.count(is_told) == 6
    late = shared_kernel.run("notebook_launcher(time.sleep, (600,), 1, timeout=0.1)")
    assert late.error.ename == "RankTimeoutError"
    again = shared_kernel.run("""
        def fail(): raise OSError(os.environ["TORCHELASTIC_RESTART_COUNT"])
        notebook_launcher(fail, num_processes=1, max_restarts=1)
    """)
    assert again.error.evalue.startswith("rank 0 of 1: OSError: 1")


def test_one_process_fails_with_the_functions_own_error_and_no_frame_between(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        def train(): return {}["column"]
        notebook_launcher(train)
    """)
    assert cell.error.ename == "KeyError"
    assert 'return {}["column"]' in cell.error.traceback
    assert "notebook_launcher(train)" in cell.error.traceback
    assert "nbstate/" not in cell.error.traceback


def test_weights_are_written_back_when_asked_and_a_copy_is_told_of_when_not(shared_kernel):
    cell = shared_kernel.run("""
        import torch
        from nbstate import notebook_launcher
        model = torch.nn.Linear(2, 2, bias=False)
        def train(model):
            with torch.no_grad():
                model.weight.fill_(7.0)
        torch.nn.init.zeros_(model.weight)
        notebook_launcher(train, (model,), num_processes=2)
        untouched = model.weight.tolist()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        both = lambda model, optimizer: train(model)
        notebook_launcher(both, (model, sgd), num_processes=2, write_back=(model,))
        written = model.weight.tolist()
        def script(model):
            with torch.no_grad():
                model.weight.fill_(8.0)
            raise SystemExit
        notebook_launcher(script, (model,), num_processes=2, write_back=(model,))
        untouched, written, model.weight.tolist()
    """)
    assert cell.result == (
        "([[0.0, 0.0], [0.0, 0.0]], [[7.0, 7.0], [7.0, 7.0]], [[8.0, 8.0], [8.0, 8.0]])"
    )
    notes = [line for line in cell.stdout.splitlines() if line.startswith("the kernel's own")]
    copies = "is as it was: the ranks trained copies"
    assert notes == [
        f"the kernel's own Linear {copies}; write_back=(model,) loads rank 0's weights into the model",
        f"the kernel's own SGD {copies}",
    ]


def test_results_are_a_sequence_that_compares_with_lists():
    results = RankResults([1, 2])
    assert results == [1, 2]
    assert results == RankResults([1, 2])
    assert results != [2, 1]
    assert repr(results) == "RankResults([1, 2])"
    assert results[-1] == 2


def test_ranks_do_not_write_into_what_an_earlier_launch_returned(shared_kernel):
    cell = shared_kernel.run("""
        import numpy as np, torch
        from nbstate import PartialState, notebook_launcher
        def make():
            return torch.zeros(100_000), np.zeros(100_000)
        first = notebook_launcher(make, num_processes=2, view="silent")[0]
        def write():
            state = PartialState()
            for each in first:
                each += 1 + state.process_index
            state.wait_for_everyone()
            return [each[7].item() for each in first]
        written = list(notebook_launcher(write, num_processes=2, view="silent"))
        written, [each[7].item() for each in first]
    """)
    assert cell.result == "([[1.0, 1.0], [2.0, 2.0]], [0.0, 0.0])"
