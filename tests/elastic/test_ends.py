"""What happens on one host ends the ranks of all, and every notebook tells the true cause."""

from __future__ import annotations

import pytest

from tests.elastic.conftest import end, run, start


@pytest.mark.parametrize("failing", [0, 3])
def test_a_failure_on_one_host_is_told_on_all_with_its_own_traceback(both, failing):
    cells = run(
        both,
        f"""
        def train():
            state = PartialState()
            state.wait_for_everyone()
            if state.process_index == {failing}:
                raise ValueError("boom")
            dist.barrier()
        notebook_launcher(train, num_processes=2, PLACE)
    """,
    )
    node = failing // 2
    for cell in cells:
        assert cell.error.ename == "RankError"
        lines = cell.error.evalue.splitlines()
        assert lines[0] == f"node {node}, rank {failing}: ValueError: boom"
        assert '    raise ValueError("boom")' in lines
        others = [line for line in lines if line.startswith("node ")][1:]
        assert len(others) == 3
        expected = ("lost its peer", "stopped because")
        assert [line for line in others if not any(text in line for text in expected)] == []


def test_a_rank_killed_on_another_host_is_named(both):
    cells = run(
        both,
        """
        def train():
            state = PartialState()
            if state.process_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        notebook_launcher(train, num_processes=1, PLACE)
    """,
    )
    for cell in cells:
        assert cell.error.evalue.startswith("node 1, rank 1: killed by SIGKILL")


def test_a_node_that_has_returned_hears_of_a_later_failure(both):
    first, second = both
    cell = first.start("""
        def train():
            state = PartialState()
            state.wait_for_everyone()
            while dist.distributed_c10d._get_default_store().add("returned", 0) == 0:
                time.sleep(0.01)
            raise KeyError("late")
        notebook_launcher(train, num_processes=1, num_nodes=2, master_addr="10.77.0.1")
    """)
    told = second.run("""
        def train():
            PartialState().wait_for_everyone()
            dist.distributed_c10d._get_default_store().add("returned", 1)
        try:
            notebook_launcher(
                train, num_processes=1, num_nodes=2, node_rank=1, master_addr="10.77.0.1"
            )
        except RankError as error:
            found = error
        str(found).splitlines()[0], found.results
    """)
    assert told.result == "(\"node 0, rank 0: KeyError: 'late'\", {1: None})"
    assert first.end(cell).error.evalue.startswith("node 0, rank 0: KeyError: 'late'")


def test_an_exception_stays_whole_where_it_was_raised_and_is_text_elsewhere(both):
    cells = run(
        both,
        """
        def train():
            if PartialState().process_index == 1:
                raise FileNotFoundError(2, "gone", "data.csv")
            dist.barrier()
        try:
            notebook_launcher(train, num_processes=1, PLACE)
        except RankError as error:
            found = error
        failure = found.failures[found.rank]
        found.rank, failure.node, failure.type_name, getattr(failure.exception, "filename", None)
    """,
    )
    assert cells[0].result == "(1, 1, 'FileNotFoundError', None)"
    assert cells[1].result == "(1, 1, 'FileNotFoundError', 'data.csv')"


def test_an_interrupt_in_one_notebook_ends_all_and_says_who_it_was(both, tmp_path):
    cells = start(
        both,
        f"""
        def train():
            PartialState().wait_for_everyone()
            open("{tmp_path}/up" + os.environ["RANK"], "w").close()
            time.sleep(600)
        notebook_launcher(train, num_processes=1, PLACE)
    """,
    )
    for number, notebook in enumerate(both):
        notebook.wait_for(tmp_path / f"up{number}")
    both[1].kernel.interrupt()
    cells = end(both, cells)
    assert cells[1].error.ename == "KeyboardInterrupt"
    assert cells[0].error.ename == "JobStoppedError"
    assert cells[0].error.evalue.startswith("train was stopped by node 1 (10.77.0.2)")


def test_a_timeout_in_one_notebook_ends_all(both):
    first, second = both
    code = """
        def train():
            PartialState().wait_for_everyone()
            time.sleep(600)
        notebook_launcher(
            train, num_processes=1, num_nodes=2, node_rank={}, master_addr="10.77.0.1", timeout={}
        )
    """
    cells = [first.start(code.format(0, None)), second.start(code.format(1, 3.0))]
    cells = end(both, cells)
    assert cells[1].error.ename == "RankTimeoutError"
    assert cells[0].error.evalue.startswith(
        "train was stopped by its timeout on node 1 (10.77.0.2) before its ranks were done"
    )


def test_all_nodes_start_anew_after_a_failure(both):
    cells = run(
        both,
        """
        def train():
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            state = PartialState()
            if attempt < 2 and state.process_index == attempt:
                raise ValueError(f"boom {attempt}")
            state.wait_for_everyone()
            return attempt
        list(notebook_launcher(train, num_processes=1, max_restarts=2, PLACE))
    """,
    )
    for cell in cells:
        assert cell.result == "[2]"
        assert "restart 1 of 2: node 0, rank 0: ValueError: boom 0" in cell.stdout
        assert "restart 2 of 2: node 1, rank 1: ValueError: boom 1" in cell.stdout


def test_all_nodes_tell_the_last_failure_when_no_restart_is_left(both):
    cells = run(
        both,
        """
        def train():
            if PartialState().process_index == 1:
                raise ValueError("boom " + os.environ["TORCHELASTIC_RESTART_COUNT"])
            dist.barrier()
        notebook_launcher(train, num_processes=1, max_restarts=1, PLACE)
    """,
    )
    for cell in cells:
        assert cell.error.evalue.startswith("node 1, rank 1: ValueError: boom 1")
        assert "It failed again after 1 restart" in cell.error.evalue


def test_a_stubborn_rank_on_another_host_is_waited_for_and_told_of(both):
    first, second = both
    code = """
        def train():
            if PartialState().process_index == 0:
                PartialState().wait_for_everyone()
                raise ValueError("boom")
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            PartialState().wait_for_everyone()
            time.sleep(600)
        notebook_launcher(
            train, num_processes=1, num_nodes=2, node_rank={}, master_addr="10.77.0.1", grace={}
        )
    """
    cells = end(both, [first.start(code.format(0, 0.1)), second.start(code.format(1, 2.0))])
    for cell in cells:
        assert cell.error.evalue.startswith("node 0, rank 0: ValueError: boom")
        assert "node 1, rank 1: did not stop within grace=2 s" in cell.error.evalue


def test_a_killed_kernel_ends_the_others_and_is_named(both, doomed, tmp_path):
    first, second = both[0], doomed(1)
    cells = _at_work([first, second], tmp_path)
    second.kernel.kill()
    told = first.end(cells[0]).error
    assert told.ename == "RankError"
    assert told.evalue.splitlines()[0] == (
        "node 1, rank 1: lost with its kernel at 10.77.0.2, which has ended or cannot be reached"
    )


def test_a_killed_kernel_where_the_notebooks_meet_ends_the_others_and_is_named(
    both, doomed, tmp_path
):
    first, second = doomed(0), both[1]
    cells = _at_work([first, second], tmp_path)
    first.kernel.kill()
    told = second.end(cells[1]).error
    assert told.evalue.splitlines()[0] == (
        "node 0, rank 0: lost with its kernel at 10.77.0.1, which has ended or cannot be reached"
    )


def test_a_pulled_cable_is_noticed_on_both_sides(both, tmp_path):
    first, second = both
    cells = _at_work(both, tmp_path)
    second.host.unplug()
    try:
        cells = end(both, cells)
    finally:
        second.host.plug_in()
    assert cells[0].error.evalue.startswith("node 1, rank 1: lost with its kernel at 10.77.0.2")
    assert cells[1].error.evalue.startswith("node 0, rank 0: lost with its kernel at 10.77.0.1")
    again = run(
        [first, second],
        """
        def train():
            return PartialState().num_processes
        list(notebook_launcher(train, num_processes=1, PLACE))
    """,
    )
    assert [cell.result for cell in again] == ["[2]", "[2]"]


def _at_work(notebooks, folder):
    """Start ranks that wait, and return once all of them do."""
    cells = start(
        notebooks,
        f"""
        def train():
            PartialState().wait_for_everyone()
            open("{folder}/up" + os.environ["RANK"], "w").close()
            time.sleep(600)
        notebook_launcher(train, num_processes=1, PLACE)
    """,
    )
    for number, notebook in enumerate(notebooks):
        notebook.wait_for(folder / f"up{number}")
    return cells
