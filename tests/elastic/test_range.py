"""`rdzv_backend="c10d"`: nodes are numbered as they come, and come and go during a run."""

from __future__ import annotations

import pytest

from tests.elastic.conftest import end

LAUNCH = """
def train(folder):
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state = PartialState()
    state.wait_for_everyone()
    where = os.environ["GLOO_SOCKET_IFNAME"]
    open(f"{{folder}}/{{attempt}}-{{state.process_index}}-of-{{state.num_processes}}", "w").close()
    while not os.path.exists(f"{{folder}}/{{attempt}}-over"):
        time.sleep(0.01)
    return attempt, state.process_index, state.num_processes, where
list(notebook_launcher(
    train, ("{folder}",), num_processes={ranks}, num_nodes={nodes}, rdzv_backend="c10d",
    rdzv_endpoint="10.77.0.1:29400", rdzv_conf={{"last_call_timeout": 0.1, "join_timeout": 60}},
    **{options}
))
"""


@pytest.fixture
def launch(tmp_path):
    """Give a cell that trains until there is a file `<attempt>-over`."""

    def code(nodes, ranks=1, **options):
        return LAUNCH.format(folder=tmp_path, nodes=nodes, ranks=ranks, options=options)

    return code


def up(notebook, folder, *names):
    for name in names:
        notebook.wait_for(folder / name)


def test_nodes_are_numbered_as_they_come_and_the_first_listens(both, launch, tmp_path):
    (tmp_path / "0-over").touch()
    cells = end(both, [notebook.start(launch(2, ranks=2)) for notebook in both])
    assert cells[0].result == "[(0, 0, 4, 'e0'), (0, 1, 4, 'e0')]"
    assert cells[1].result == "[(0, 2, 4, 'e0'), (0, 3, 4, 'e0')]"


def test_a_late_node_joins_by_a_restart(both, launch, tmp_path):
    first, second = both
    cell = first.start(launch((1, 3)))
    up(first, tmp_path, "0-0-of-1")
    late = second.start(launch((1, 3)))
    up(second, tmp_path, "1-0-of-2", "1-1-of-2")
    (tmp_path / "1-over").touch()
    cells = end(both, [cell, late])
    assert cells[0].result == "[(1, 0, 2, 'e0')]"
    assert cells[1].result == "[(1, 1, 2, 'e0')]"
    assert "restart 1: a node (10.77.0.2) joins\n" in cells[0].stdout


def test_the_rest_start_anew_when_a_node_is_killed(both, doomed, launch, tmp_path):
    first, second, third = both[0], doomed(1), doomed(2)
    cells = [notebook.start(launch((1, 3))) for notebook in (first, second, third)]
    attempt = _settled_with(first, tmp_path, 3)
    second.kernel.kill()
    up(first, tmp_path, f"{attempt + 1}-0-of-2", f"{attempt + 1}-1-of-2")
    (tmp_path / f"{attempt + 1}-over").touch()
    ended = [n.end(cell) for n, cell in ((first, cells[0]), (third, cells[2]))]
    assert [eval(cell.result)[0][:3] for cell in ended] == [
        (attempt + 1, 0, 2),
        (attempt + 1, 1, 2),
    ]
    assert "(10.77.0.2) is gone\nthis node now has rank 0 of 2\n" in ended[0].stdout


def test_a_node_that_is_interrupted_leaves_and_the_rest_go_on(both, launch, tmp_path):
    first, second = both
    cells = [notebook.start(launch((1, 2))) for notebook in both]
    attempt = _settled_with(first, tmp_path, 2)
    second.kernel.interrupt()
    assert second.end(cells[1]).error.ename == "KeyboardInterrupt"
    up(first, tmp_path, f"{attempt + 1}-0-of-1")
    (tmp_path / f"{attempt + 1}-over").touch()
    ended = first.end(cells[0])
    assert ended.result == f"[({attempt + 1}, 0, 1, 'e0')]"
    assert "node 1 (10.77.0.2) leaves\n" in ended.stdout


def test_a_node_beyond_the_range_is_refused(both, third, launch, tmp_path):
    cells = [notebook.start(launch((1, 2))) for notebook in both]
    attempt = _settled_with(both[0], tmp_path, 2)
    refused = third.run(launch((1, 2)))
    assert refused.error.ename == "ValueError"
    assert refused.error.evalue.startswith("num_nodes=(1, 2), and all are there already")
    (tmp_path / f"{attempt}-over").touch()
    assert [cell.error for cell in end(both, cells)] == [None, None]


def test_too_few_nodes_left_end_the_run(both, doomed, launch, tmp_path):
    first, second = both[0], doomed(1)
    code = launch((2, 3)).replace('"join_timeout": 60', '"join_timeout": 10')
    cells = [first.start(code), second.start(code)]
    attempt = _settled_with(first, tmp_path, 2)
    assert attempt == 0
    second.kernel.kill()
    ended = first.end(cells[0])
    assert ended.error.evalue.startswith("node 1, rank 1: lost with its kernel at 10.77.0.2")
    assert "1 of 2 nodes had come within 10 s" in ended.stdout


def test_failures_of_ranks_use_up_the_restarts(both):
    cells = end(
        both,
        [
            notebook.start("""
        def train():
            if PartialState().process_index == 1:
                raise ValueError("boom " + os.environ["TORCHELASTIC_RESTART_COUNT"])
            dist.barrier()
        notebook_launcher(
            train, num_processes=1, num_nodes=(2, 3), rdzv_backend="c10d", max_restarts=1,
            rdzv_endpoint="10.77.0.1:29400", rdzv_conf={"last_call_timeout": 0.1},
        )
    """)
            for notebook in both
        ],
    )
    for cell in cells:
        assert cell.error.evalue.startswith("node 1, rank 1: ValueError: boom 1")
        assert "restart 1 of 1: node 1, rank 1: ValueError: boom 0" in cell.stdout


def test_the_end_of_the_notebook_that_listens_ends_all(both, doomed, launch, tmp_path):
    first, second = doomed(0), both[1]
    cells = [first.start(launch((1, 2))), second.start(launch((1, 2)))]
    _settled_with(second, tmp_path, 2)
    first.kernel.kill()
    told = second.end(cells[1]).error
    assert told.evalue.startswith("node 0, rank 0: lost with its kernel at 10.77.0.1")


def _settled_with(notebook, folder, world):
    """Wait until an attempt has all `world` ranks at work, and return its number."""

    def found():
        for attempt in range(world + 1):
            names = [f"{attempt}-{rank}-of-{world}" for rank in range(world)]
            if all((folder / name).exists() for name in names):
                return attempt
        return None

    notebook.kernel.read_until(lambda: found() is not None)
    return found()
