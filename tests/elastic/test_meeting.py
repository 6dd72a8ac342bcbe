"""Before any rank exists: who may take part, and what a notebook says that waits in vain."""

from __future__ import annotations

import subprocess
import sys

from tests.elastic.conftest import end

TRAIN = """
def train():
    return PartialState().num_processes
"""
LAUNCH = """
list(notebook_launcher(
    train, num_processes=1, master_addr="10.77.0.1", num_nodes={}, node_rank={}, **{}
))
"""


def launch(nodes, rank, **options):
    return TRAIN + LAUNCH.format(nodes, rank, options)


def test_a_meeting_where_nobody_listens_is_given_up_in_time(both):
    cell = both[1].run(launch(2, 1, rdzv_conf={"join_timeout": 0.5}, use_port=29777))
    assert cell.error.ename == "TimeoutError"
    assert cell.error.evalue.startswith(
        "10.77.0.1:29777 could not be reached within 0.5 s (Connection refused): the notebook of "
        "node 0 listens there while its cell runs; check master_addr and use_port"
    )


def test_a_host_that_cannot_be_reached_is_given_up_within_the_runs_own_timeout(both):
    both[1].host.unplug()
    try:
        cell = both[1].run(launch(2, 1, timeout=0.5))
    finally:
        both[1].host.plug_in()
    assert cell.error.evalue.startswith("10.77.0.1:29500 could not be reached within 0.5 s (")


def test_the_first_notebook_says_who_did_not_come(both):
    cell = both[0].run(launch(3, 0, rdzv_conf={"join_timeout": 0.5}))
    assert cell.error.ename == "TimeoutError"
    assert cell.error.evalue.startswith(
        "1 of 3 nodes had come within 0.5 s; missing: node_rank 1, 2"
    )


def test_a_notebook_that_waits_says_so_and_can_be_interrupted(both):
    first = both[0]
    cell = first.start(launch(2, 0))
    told = "node 0 of 2: waiting at 10.77.0.1:29500 for the other notebooks\n"
    first.kernel.read_until(lambda: told in cell.stdout)
    first.kernel.interrupt()
    assert first.end(cell).error.ename == "KeyboardInterrupt"
    second = both[1].start(launch(2, 1))
    both[1].kernel.read_until(
        lambda: "waiting for the notebook that listens at 10.77.0.1:29500" in second.stdout
    )
    again = first.start(launch(2, 0))
    assert [cell.result for cell in end(both, [again, second])] == ["[2]", "[2]"]


def test_a_node_rank_out_of_range_is_refused_before_anything_is_tried(both):
    cell = both[1].run(launch(2, 2))
    assert cell.error.ename == "ValueError"
    assert cell.error.evalue == "node_rank=2 with num_nodes=2: node_rank counts from 0 to 1"


def test_the_same_node_rank_twice_is_told_to_the_second_and_the_first_goes_on(both, third):
    first = both[0].start(launch(3, 0))
    second = both[1].start(launch(3, 1))
    both[1].kernel.read_until(lambda: "waiting at" in second.stdout)
    refused = third.run(launch(3, 1))
    assert refused.error.ename == "ValueError"
    assert refused.error.evalue.startswith(
        "node_rank=1 is taken by the notebook at 10.77.0.2: each of the 3 needs its own"
    )
    last = third.start(launch(3, 2))
    cells = end([*both, third], [first, second, last])
    assert [cell.result for cell in cells] == ["[3]"] * 3


def test_notebooks_that_do_not_agree_are_told_what_on(both):
    first = both[0].start(launch(2, 0, rdzv_id="run a"))
    refused = [
        both[1].run(launch(*call, **options)).error
        for call, options in (
            ((3, 1), {"rdzv_id": "run a"}),
            ((2, 1), {"rdzv_id": "run a", "max_restarts": 1}),
            ((2, 1), {"rdzv_id": "run b"}),
        )
    ]
    assert [error.ename for error in refused] == ["ValueError"] * 3
    assert refused[0].evalue.startswith("num_nodes=3, but num_nodes=2 there: all must agree")
    assert refused[1].evalue.startswith("max_restarts=1, but max_restarts=0 there: all must agree")
    assert refused[2].evalue.startswith("rdzv_id is another one there")
    assert "run a" not in refused[2].evalue
    second = both[1].start(launch(2, 1, rdzv_id="run a"))
    assert [cell.result for cell in end(both, [first, second])] == ["[2]", "[2]"]


def test_strangers_at_the_port_disturb_nobody(both):
    first = both[0].start(launch(2, 0))
    both[0].kernel.read_until(lambda: "waiting at" in first.stdout)
    stranger = """
import socket
with socket.create_connection(("10.77.0.1", 29500)) as silent:
    no_message = bytes([0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]) + b"[]"
    for said in (b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\xff" * 100, no_message):
        with socket.create_connection(("10.77.0.1", 29500)) as loud:
            loud.sendall(said)
            while loud.recv(1000):  # until it is hung up on
                pass
"""
    subprocess.run([*both[1].host.command, sys.executable, "-c", stranger], check=True)
    second = both[1].start(launch(2, 1))
    assert [cell.result for cell in end(both, [first, second])] == ["[2]", "[2]"]


def test_a_port_that_is_taken_is_told_with_its_holder(both):
    cell = both[0].run(
        "import socket\n"
        "with socket.create_server(('10.77.0.1', 29500)):\n"
        + "".join(f"    {line}\n" for line in launch(2, 0).splitlines())
    )
    assert cell.error.ename == "OSError"
    assert "10.77.0.1:29500: Address already in use (held by " in cell.error.evalue
    cell = both[1].run(launch(2, 0))
    assert "10.77.0.1:29500: Cannot assign requested address" in cell.error.evalue
    assert "master_addr must be an address of this machine" in cell.error.evalue


def test_a_meeting_that_ends_is_told_to_who_waits_in_it(both):
    first = both[0].start(launch(3, 0))
    both[0].kernel.read_until(lambda: "waiting at" in first.stdout)
    second = both[1].start(launch(3, 1))
    both[1].kernel.read_until(lambda: "waiting at" in second.stdout)
    both[0].kernel.interrupt()
    both[0].end(first)
    error = both[1].end(second).error
    assert error.ename == "ConnectionError"
    assert error.evalue == ("the kernel at 10.77.0.1:29500, where the notebooks meet, has gone")
