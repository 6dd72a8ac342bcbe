"""The inspector: what ranks are doing, their states and their numbers."""

from __future__ import annotations

import base64
import re
from itertools import pairwise

import pytest

import nbstate


def test_it_shows_a_session_as_text(two):
    two.run("%%ranks --quiet\nstate = PartialState()\nnbstate.log(loss=1.0 / (rank + 1), step=7)")
    text = two.run("print(nbstate.inspect(session))").stdout
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["rank", "pid", "doing", "step", "loss", "memory", "CPU"]
    assert rows[1][2:5] == ["idle", "7", "1"]
    assert rows[2][2:5] == ["idle", "7", "0.5"]
    assert "PartialState: Num processes" in text
    assert "PartialState: Device" in text


def test_states_that_differ_are_marked(two):
    two.run("""%%ranks --quiet
from nbstate import GradientState
GradientState().sync_gradients = rank == 0""")
    text = two.run("print(nbstate.inspect(session))").stdout
    (line,) = (line for line in text.splitlines() if "Sync gradients" in line)
    assert line.split()[-3:] == ["True", "False", "differs"]
    (line,) = (line for line in text.splitlines() if "Num processes" in line)
    assert line.split()[-2:] == ["2", "2"]


def curves(page: str, name: str) -> list[list[tuple[float, float]]]:
    """Return the points of the curves with this name, by rank."""
    found = re.findall(rf'base64,([^"]+)" alt="{name} of rank', page)
    lines = [re.search(r'points="([^"]*)"', base64.b64decode(svg).decode()) for svg in found]
    return [[tuple(map(float, p.split(","))) for p in line[1].split()] for line in lines]


def test_curves_have_the_step_as_their_scale_and_leave_out_what_is_not_finite(two):
    two.run("""%%ranks --quiet
for step, value in [(0, float("nan")), (1, 1.0), (2, 3.0), (3, float("inf")), (9, 2.0 + rank)]:
    nbstate.log(step, wobble=value)
    nbstate.log(step, never=float("nan"))""")
    (shown,) = two.run("nbstate.inspect(session)").displays
    assert curves(shown["text/html"], "wobble") == [
        [(0, 20), (13.8, 2), (110, 11)],
        [(0, 20), (13.8, 2), (110, 2)],
    ]
    assert curves(shown["text/html"], "never") == [[], []]


def test_a_long_curve_is_thinned_evenly(two):
    two.run("%%ranks --quiet\nfor step in range(9_999): nbstate.log(step, ramp=step)")
    (shown,) = two.run("nbstate.inspect(session)").displays
    for curve in curves(shown["text/html"], "ramp"):
        assert 500 <= len(curve) <= 1000
        gaps = [after[0] - before[0] for before, after in pairwise(curve)]
        assert max(gaps) - min(gaps[:-1]) < 0.11  # rounded to 0.1
        assert all(y == pytest.approx(20 - 18 * x / 110, abs=0.1) for x, y in curve)
        assert (curve[0], curve[-1]) == ((0, 20), (110, 2))


def test_the_use_of_the_cpu_is_told_from_the_second_look_on(kernel):
    cell = kernel.run("""
        import nbstate
        with nbstate.Session(2) as session:
            print(nbstate.inspect(session), end="--")
            print(nbstate.inspect(session))
    """)
    first, second = cell.stdout.split("--")
    assert (first.count("%"), second.count("%")) == (0, 2), cell.error


def test_it_is_live_and_stays_when_the_ranks_are_gone(kernel):
    kernel.run("import nbstate, os, time")
    cell = kernel.run("""
        def train():
            for step in range(3):
                nbstate.log(step=step, loss=0.5 ** step)
            while not os.path.exists("go"):
                time.sleep(0.01)
        job = nbstate.launch(train, num_processes=2, view="silent")
        nbstate.inspect(job)
    """)
    (shown,) = cell.displays
    kernel.read_until(lambda: "0.25" in shown["text/plain"] and "time.sleep" in shown["text/plain"])
    assert "image/svg+xml" in shown["text/html"]
    kernel.run("open('go', 'w').close(); job.wait()")
    kernel.read_until(lambda: shown["text/plain"].count("done") == 2)
    assert "0.25" in shown["text/plain"]


def test_several_cells_that_show_it_ask_the_ranks_once(kernel):
    kernel.run("import nbstate\nsession = nbstate.Session(2)")
    cells = [kernel.run("nbstate.inspect(session)") for _ in range(2)]
    assert kernel.run("nbstate.inspect(session) is nbstate.inspect(session)").result == "True"
    assert (
        kernel.eval(
            "sum(t.name == 'nbstate-inspector' for t in __import__('threading')._active.values())"
        )
        == 1
    )
    kernel.run("session.cell('nbstate.log(loss=0.125)'); session.close()")
    for cell in cells:
        (shown,) = cell.displays
        kernel.read_until(lambda shown=shown: "0.125" in shown["text/plain"])


def test_accelerates_own_states_are_shown_where_a_rank_uses_them(kernel):
    cell = kernel.run("""
        import nbstate
        with nbstate.Session(2) as session:
            session.cell("import accelerate; there = accelerate.PartialState(cpu=True)",
                         collect=False)
            print(nbstate.inspect(session))
    """)
    assert "PartialState (Accelerate): backend" in cell.stdout, cell.error


def test_it_says_what_it_takes():
    with pytest.raises(TypeError, match=r"inspect\(3\): expected a job or a session"):
        nbstate.inspect(3)  # type: ignore[arg-type]


def test_logging_outside_ranks_is_harmless():
    nbstate.log(loss=1)


def test_assert_same_names_the_first_difference(two):
    cell = two.run("""%%ranks
from nbstate import assert_same
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
assert_same(model)
if rank:
    with torch.no_grad():
        model[1].bias[0] += 0.5
assert_same(model)""")
    assert cell.error.evalue.startswith("ranks 0-1 of 2: AssertionError: 1.bias differs between")
    assert "between rank 0 and rank 1: by 0.5 at most, in 50 % of its elements" in cell.error.evalue
    cell = two.run("%%ranks\nassert_same({'lr': 0.1 * (rank + 1)}, 'options')")
    assert "options['lr'] differs between rank 0 and rank 1: 0.1 and 0.2" in cell.error.evalue
    cell = two.run("%%ranks\nassert_same([torch.ones(2 + rank)])")
    assert "[0] differs between rank 0 and rank 1: float32[2] and float32[3]" in cell.error.evalue


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("np.where(np.arange(5000) == 7, rank, 0.0)", "by 1 at most, in 0 % of its elements"),
        ("np.array(['a', 'b' * (rank + 1)])", "<U1[2] ['a', 'b'] and <U2[2] ['a', 'bb']"),
        ("torch.tensor([1j, 2 + rank * 3j])", "by 3 at most, in 50 % of its elements"),
        ("torch.tensor([float('nan'), rank])", "by 1 at most, in 50 % of its elements"),
        ("torch.tensor([0.0, -0.0])[rank]", "in bits only, such as the sign of a zero"),
        ("None if rank else 3", "3 and None"),
    ],
)
def test_assert_same_says_how_parts_differ(two, made, told):
    cell = two.run(
        f"%%ranks\nimport numpy as np\nfrom nbstate import assert_same\nassert_same({made})"
    )
    assert f"the value differs between rank 0 and rank 1: {told}" in cell.error.evalue
    assert two.run("%%ranks\nassert_same([np.array(['a']), np.ones(3), 1j])").error is None
