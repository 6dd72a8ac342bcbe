"""The timeline of traced collectives."""

from __future__ import annotations

import json


def test_a_traced_job_has_a_timeline_that_names_who_was_late(kernel):
    cell = kernel.run("""
        import os, time, torch, torch.distributed as dist
        from nbstate import PartialState, launch
        def train():
            rank = PartialState().process_index
            dist.barrier()
            while rank == 1 and not os.path.exists("go"):
                time.sleep(0.01)
            dist.all_reduce(torch.ones(1000))
        job = launch(train, num_processes=2, trace=True, view="silent")
        while "all_reduce" not in job.stacks():
            pass
        open("go", "w").close()
        job.wait()
        table = job.timeline().table()
        job.export_trace("trace.json")
        print(list(table["op"]), set(table["bytes"][table["op"] == "all_reduce"]))
        late = table[table["op"] == "all_reduce"].set_index("rank")["late"]
        print(late[0] == 0, late[1] > 0, (table["end"] >= table["start"]).all())
        job.timeline()
    """)
    assert cell.error is None, cell.error
    assert "['barrier', 'all_reduce', 'barrier', 'all_reduce'] {4000}" in cell.stdout
    assert "True True True" in cell.stdout
    assert "latest: rank 1, " in cell.result
    assert "in all_reduce" in cell.result
    assert "image/svg+xml" in cell.displays[0]["text/html"]
    events = json.loads((kernel.cwd / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert all(event["dur"] >= 0 for event in spans)


def test_a_block_of_a_cell_is_traced_and_no_more(two):
    two.run("%%ranks --quiet\nstate = PartialState()\ndist.barrier()")
    cell = two.run("""%%ranks --quiet
with nbstate.trace():
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
dist.barrier()""")
    assert cell.error is None, cell.error
    assert (
        two.run("list(session.timeline().table()['op'])").result == "['all_reduce', 'all_reduce']"
    )


def test_without_a_trace_it_says_so(two):
    two.run("import nbstate\nwith nbstate.trace(): pass")
    cell = two.run("""
        with Session(1) as alone:
            print(alone.timeline())
    """)
    assert cell.stdout == "no collective was traced\n"
