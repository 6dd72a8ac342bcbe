"""Inside ranks that others have started, states work and what is shown is plain text."""

from __future__ import annotations

import subprocess
import sys


def test_states_work_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import nbstate, os
from nbstate import PartialState
state = PartialState()
nbstate.log(loss=1.0)
nbstate.assert_same({"lr": 0.1})
print(state.process_index, state.num_processes, flush=True)
""")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            script,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2"], done.stderr


def test_a_rank_opens_no_session(two):
    cell = two.run("%%ranks 0\nnbstate.Session(2)")
    assert "this is rank 0 of 2 of a run: a rank cannot launch ranks" in cell.error.evalue
