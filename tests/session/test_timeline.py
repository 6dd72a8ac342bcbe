"""The timeline of traced collectives."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET


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
    without = kernel.run("import sys; sys.modules['pandas'] = None; job.timeline().table()")
    assert without.error.evalue == "a timeline's table is a pandas frame: pip install pandas"
    events = json.loads((kernel.cwd / "trace.json").read_text())["traceEvents"]
    assert_is_chrome_trace({"traceEvents": events})
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert all(event["dur"] >= 0 for event in spans)


STEPS = """
import os, time, torch, torch.distributed as dist
from nbstate import PartialState, launch
def train():
    rank = PartialState().process_index
    model, critic = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(critic.parameters(), lr=0.1)
    for step in range(3):
        model(torch.ones(2, 4)).sum().backward()
        work = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        while rank == 1 and step == 1 and not os.path.exists("go"):
            time.sleep(0.01)
        for each in work:
            each.wait()
        optimizer.step()
    critic(torch.ones(2, 4)).sum().backward()
    other.step()
    dist.barrier()
job = launch(train, num_processes=2, trace=True, view="silent")
while not job.metrics.steps and len(job.timeline().calls) < 2:
    time.sleep(0.01)
open("go", "w").close()
job.wait()
job.export_trace("trace.json")
job.timeline()
"""


def test_steps_and_collectives_that_overlap_are_on_the_timeline(kernel):
    cell = kernel.run(STEPS)
    assert cell.error is None, cell.error
    assert cell.result.startswith("each rank: 4 steps and 7 collectives\nlatest: rank ")
    cell = kernel.run("""
        table = job.timeline().table()
        steps = table[(table["op"] == "step") & (table["rank"] == 0)]
        print(list(steps["group"]), list(steps["call"]), set(steps["bytes"]))
        print(list(steps["start"])[1:3] == list(steps["end"])[:2])
        print(sorted({where.split(": ")[-1] for where in steps["where"]}))
    """)
    assert cell.stdout.splitlines() == [
        "['steps of SGD', 'steps of SGD', 'steps of SGD', 'steps of SGD 2'] [1, 2, 3, 1] {0}",
        "True",
        "['optimizer.step()', 'other.step()']",
    ]
    trace = json.loads((kernel.cwd / "trace.json").read_text())
    assert_is_chrome_trace(trace)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == {"steps", "collectives"}
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"].startswith("step ")]
    assert len(steps) == 8
    assert {"step 1 of SGD", "step 1 of SGD 2"} < {event["name"] for event in steps}
    picture = ET.fromstring(kernel.eval("job.timeline()._svg(100)"))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 11
    assert any("step 3 of SGD" in title and "optimizer.step()" in title for title in titles)


def assert_is_chrome_trace(trace):
    """Check what Perfetto needs: the fields of each event, and no overlap within a thread."""
    assert set(trace) == {"traceEvents"}
    ends = {}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in sorted(spans, key=lambda event: event["ts"]):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        thread = event["pid"], event["tid"]
        assert event["ts"] >= ends.get(thread, 0) - 1e-3  # floats of microseconds
        ends[thread] = event["ts"] + event["dur"]


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


def test_steps_of_a_traced_session_begin_with_their_cell(two):
    two.run("""%%ranks --quiet
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.grad = torch.ones(1)
with nbstate.trace():
    optimizer.step()
optimizer.step()
before = time.monotonic_ns()""")
    two.run("""%%ranks --quiet
with nbstate.trace():
    optimizer.step()""")
    cell = two.run("""
        steps = [call for call in session.timeline().calls if call.is_step and call.rank == 0]
        print(len(steps), steps[1].span.began > session["before"][0])
    """)
    assert cell.stdout == "2 True\n", cell.error


# Each call was given a size of its own: how late it is, against the first of that size.
LATE = """
def late_as_told(ranks):
    table = ranks.timeline().table().query("op == 'all_reduce'")
    for size, calls in table.groupby("bytes"):
        expected = calls["start"] - calls["start"].min()
        print(size, (calls["late"] - expected).abs().max() < 1e-7)
"""


def test_calls_of_different_cells_are_not_compared(two):
    two.run(LATE)
    two.run("""%%ranks --quiet
PartialState()
if rank == 1:
    with nbstate.trace():
        dist.all_reduce(torch.ones(500))
else:
    dist.all_reduce(torch.ones(500))""")
    cell = two.run("""%%ranks --quiet
with nbstate.trace():
    dist.all_reduce(torch.ones(600))""")
    assert cell.error is None, cell.error
    assert two.run("late_as_told(session)").stdout.splitlines()[-2:] == ["2000 True", "2400 True"]


def test_calls_of_groups_with_the_same_members_are_not_compared(kernel):
    kernel.run(LATE)
    cell = kernel.run("""
        import torch, torch.distributed as dist
        from nbstate import PartialState, launch
        def train():
            PartialState()
            for size in (1, 2):
                dist.all_reduce(torch.ones(size), group=dist.new_group([0, 1]))
        job = launch(train, num_processes=2, trace=True, view="silent")
        job.wait()
        late_as_told(job)
    """)
    assert cell.stdout.splitlines() == ["4 True", "8 True"], cell.error


def test_a_restart_begins_the_timeline_anew(kernel):
    kernel.run(LATE)
    cell = kernel.run("""
        import os, torch, torch.distributed as dist
        from nbstate import PartialState, launch
        def train():
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            PartialState()
            dist.all_reduce(torch.ones(1 + attempt))
            dist.barrier()
            if attempt == dist.get_rank() == 0:
                raise ValueError
        job = launch(train, num_processes=2, trace=True, max_restarts=1, view="silent")
        job.wait()
        late_as_told(job)
    """)
    assert cell.stdout.splitlines() == ["restart 1 of 1: rank 0 of 2: ValueError", "8 True"]


def test_without_a_trace_it_says_so(two):
    two.run("import nbstate\nwith nbstate.trace(): pass")
    cell = two.run("""
        with Session(1) as alone:
            print(alone.timeline())
    """)
    assert cell.stdout == "neither a collective nor a step was traced\n"


def test_a_step_of_a_sharded_model_is_on_the_timeline(kernel):
    cell = kernel.run("""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from nbstate import PartialState, launch
        def train():
            PartialState()
            model = torch.nn.Linear(8, 4, bias=False)
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            optimizer.step()
        job = launch(train, num_processes=2, trace=True, view="silent")
        job.wait()
        table = job.timeline().table()
        for row in table[table["rank"] == 1].itertuples():
            print(row.op.split("_")[0], row.bytes, row.end > row.start, row.where.split(": ")[-1])
    """)
    assert cell.stdout.splitlines() == [
        "all 128 True loss = model(torch.ones(2, 8)).sum()",
        "reduce 64 True loss.backward()",
        "step 0 True optimizer.step()",
    ], cell.error
