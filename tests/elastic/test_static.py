"""Notebooks on several hosts train together: `num_nodes`, `node_rank`, `master_addr`."""

from __future__ import annotations

from tests.elastic.conftest import end, run, start


def test_ranks_of_two_hosts_are_one_world_and_each_notebook_gets_its_own(both):
    cells = run(
        both,
        """
        def train(offset):
            state = PartialState()
            total = torch.tensor(float(state.process_index + offset))
            dist.all_reduce(total)
            print("rank", state.process_index)
            return state.process_index, state.num_processes, state.local_process_index, total.item()
        results = notebook_launcher(train, (10,), num_processes=2, PLACE)
        list(results)
    """,
    )
    assert [cell.error for cell in cells] == [None, None]
    assert cells[0].result == "[(0, 4, 0, 46.0), (1, 4, 1, 46.0)]"
    assert cells[1].result == "[(2, 4, 0, 46.0), (3, 4, 1, 46.0)]"
    assert "[0] rank 0\n[1] rank 1\n" in cells[0].stdout
    assert "[2] rank 2\n[3] rank 3\n" in cells[1].stdout


def test_nodes_may_have_different_numbers_of_ranks(both):
    cells = run(
        both,
        """
        NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR",
                 "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                 "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        def train():
            PartialState().wait_for_everyone()
            return [os.environ[name] for name in NAMES]
        node = dict(PLACE)["node_rank"]
        found = notebook_launcher(train, num_processes=node + 1, rdzv_id="a-run", PLACE)
        for variables in found:
            print(*variables)
    """,
    )
    assert "0 0 3 1 0 2 0 3 10.77.0.1 a-run 0 e0 e0\n" in cells[0].stdout
    assert "1 0 3 2 1 2 1 3 10.77.0.1 a-run 0 e0 e0\n" in cells[1].stdout
    assert "2 1 3 2 1 2 2 3 10.77.0.1 a-run 0 e0 e0\n" in cells[1].stdout


def test_all_results_come_to_all_notebooks_if_asked_for(both, third):
    cells = run(
        [*both, third],
        """
        class Result:
            def __init__(self, rank):
                self.rank, self.data = rank, torch.full((300_000,), float(rank))
        def train():
            return Result(PartialState().process_index)
        found = notebook_launcher(
            train, num_processes=2, gather_results=True, rdzv_id="only we know", PLACE
        )
        [result.rank for result in found], [result.data.mean().item() for result in found]
    """,
    )
    expected = "([0, 1, 2, 3, 4, 5], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])"
    assert [cell.result for cell in cells] == [expected] * 3


def test_what_is_written_back_comes_from_the_nodes_own_first_rank(both):
    cells = run(
        both,
        """
        model = torch.nn.Linear(1, 1)
        def train():
            state = PartialState()
            with torch.no_grad():
                model.weight.fill_(7.0)
        notebook_launcher(train, num_processes=2, write_back=(model,), PLACE)
        model.weight.item()
    """,
    )
    assert [cell.result for cell in cells] == ["7.0", "7.0"]


def test_nothing_listens_but_on_the_interface_of_the_meeting(both, tmp_path):
    code = f"""
        def train():
            state = PartialState()
            state.wait_for_everyone()
            open("{tmp_path}/up" + os.environ["RANK"], "w").close()
            while not os.path.exists("{tmp_path}/seen"):
                time.sleep(0.01)
        notebook_launcher(train, num_processes=1, PLACE)
    """
    before = [notebook.host.listening() for notebook in both]
    cells = start(both, code)
    for number, notebook in enumerate(both):
        notebook.wait_for(tmp_path / f"up{number}")
    during = [notebook.host.listening() for notebook in both]
    (tmp_path / "seen").touch()
    end(both, cells)
    new = [[address for address, _ in d - b] for d, b in zip(during, before, strict=True)]
    assert set(new[0]) == {"10.77.0.1"}
    assert set(new[1]) == {"10.77.0.2"}  # gloo's, in the rank
    assert [notebook.host.listening() for notebook in both] == before


def test_no_rank_leaves_before_those_of_all_nodes_have_returned(both, tmp_path):
    first, second = both
    cell = first.start(f"""
        def train():
            PartialState().wait_for_everyone()
            while not os.path.exists("{tmp_path}/seen"):
                time.sleep(0.01)
        notebook_launcher(
            train, num_processes=1, num_nodes=2, node_rank=0, master_addr="10.77.0.1"
        )
    """)
    state = second.kernel.run("""
        def train():
            PartialState().wait_for_everyone()
        job = launch(train, num_processes=1, num_nodes=2, node_rank=1, master_addr="10.77.0.1")
        while job.ranks[0].state != "done":
            time.sleep(0.01)
        job.ranks[0].alive, job.done
    """)
    assert state.result == "(True, False)"
    (tmp_path / "seen").touch()
    assert first.end(cell).error is None
    assert second.run("list(job.wait())").result == "[None]"


def test_several_launches_after_one_another_meet_at_the_same_port(both):
    cells = run(
        both,
        """
        def train(n):
            return PartialState().num_processes + n
        [list(notebook_launcher(train, (n,), num_processes=1, PLACE)) for n in range(3)]
    """,
    )
    assert [cell.result for cell in cells] == ["[[2], [3], [4]]"] * 2


def test_lines_begin_as_the_template_says(both):
    cells = run(
        both,
        """
        def train():
            print("hi from", os.environ["RANK"])
        notebook_launcher(
            train, num_processes=2, log_line_prefix_template="[${role_name}${local_rank}|${rank}]:",
            PLACE
        )
    """,
    )
    assert "[default0|0]:hi from 0\n[default1|1]:hi from 1\n" in cells[0].stdout
    assert "[default0|2]:hi from 2\n[default1|3]:hi from 3\n" in cells[1].stdout


def test_ranks_in_fresh_processes_are_one_world_too(doomed):
    notebooks = [doomed(0), doomed(1)]
    cells = start(
        notebooks,
        """
        def train():
            state = PartialState()
            state.wait_for_everyone()
            return state.process_index, os.environ["GLOO_SOCKET_IFNAME"]
        list(notebook_launcher(train, num_processes=1, start_method="forkserver", PLACE))
        """,
    )
    # Not `end`: the template process from which they are made stays.
    ended = [n.kernel.wait(cell) for n, cell in zip(notebooks, cells, strict=True)]
    assert [cell.result for cell in ended] == ["[(0, 'e0')]", "[(1, 'e0')]"]


def test_an_endpoint_may_stand_for_address_and_port(both):
    cells = run(
        both,
        """
        def train():
            return PartialState().num_processes
        place = dict(PLACE)
        del place["master_addr"], place["use_port"]
        list(notebook_launcher(train, num_processes=1, rdzv_endpoint="10.77.0.1:29555", **place))
    """,
    )
    assert [cell.result for cell in cells] == ["[2]", "[2]"]


def test_two_notebooks_on_one_machine_meet_over_loopback_of_either_kind(doomed):
    first, second = doomed(0), doomed(0)
    for address in ("127.0.0.1", "::1", "localhost"):
        cells = [
            notebook.start(f"""
                def train():
                    PartialState().wait_for_everyone()
                    return os.environ["RANK"], os.environ["GLOO_SOCKET_IFNAME"]
                list(notebook_launcher(
                    train, num_processes=1, num_nodes=2, node_rank={rank}, master_addr="{address}"
                ))
            """)
            for rank, notebook in enumerate((first, second))
        ]
        ended = end([first, second], cells)
        assert [cell.result for cell in ended] == ["[('0', 'lo')]", "[('1', 'lo')]"]
