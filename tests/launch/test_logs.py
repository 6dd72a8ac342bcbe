"""Where the whole output of a rank is kept, and for how long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, time
from nbstate import launch

def say():
    print("hello", flush=True)

chosen = launch(say, num_processes=2, view="silent", log_dir="chosen")
chosen.wait()
os.mkdir("elsewhere")
os.chdir("elsewhere")
print(chosen.logs(0) == "hello\\n")
os.chdir("..")
def wait_for_it():
    while not os.path.exists("go"):
        time.sleep(0.01)

long = launch(wait_for_it, num_processes=2, view="silent")
folders = []
for _ in range(12):
    job = launch(say, num_processes=2, view="silent")
    job.wait()
    folders.append(str(job.log_dir))
if os.fork() == 0:
    raise SystemExit  # a child's exit is not the kernel's
os.wait()
still_writing = launch(lambda: [print("more", flush=True) for _ in iter(int, 1)], num_processes=2,
                       view="silent")
while not still_writing.ranks[0].log.stat().st_size:
    os.sched_yield()
print([os.path.exists(folder) for folder in folders], os.path.exists(long.log_dir))
open("go", "w").close()
long.wait()
print(*folders, long.log_dir, still_writing.log_dir)
"""


def test_temporary_logs_of_ten_ended_runs_are_kept_until_the_kernel_ends(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, kept, folders = ended.stdout.splitlines()
    assert chosen == "True"
    assert kept == f"{[False] * 2 + [True] * 10} True"  # and that of the run that goes on
    assert [folder for folder in folders.split() if Path(folder).exists()] == []
    assert (tmp_path / "chosen" / "rank1.log").read_text() == "hello\n"
