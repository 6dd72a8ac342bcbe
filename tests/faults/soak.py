"""A soak: launches that succeed and fail in every way, for a given time, in one kernel.

    python -m tests.faults.soak MINUTES         mixed faults for so long
    python -m tests.faults.soak --launches 200  as many plain launches
    python -m tests.faults.soak --sessions 20   as many sessions, used, failed in and closed

Not a test that `make test` runs. It prints what the kernel holds now and then: everything has to
come back to where it was.
"""

from __future__ import annotations

import argparse
import time

from tests.kernels import Kernel

SETUP = """
import ctypes, gc, os, pathlib, random, signal, subprocess, tempfile, threading, time
import psutil, torch, torch.distributed as dist
from nbstate import PartialState, RankError, Session, launch, notebook_launcher

def works():
    PartialState().wait_for_everyone()
    total = torch.ones(1)
    dist.all_reduce(total)
    return torch.ones(100_000) * total

def raises():
    if PartialState().process_index: raise ValueError("boom")
    dist.barrier()

def exits(): os._exit(3)
def dies(): os.kill(os.getpid(), random.choice([signal.SIGKILL, signal.SIGTERM]))
def crashes(): ctypes.string_at(0)
def prints(): os.write(1, b"x" * 5_000_000)
def hangs(): PartialState(); time.sleep(600)
def leaves():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    threading.Thread(target=time.sleep, args=(600,)).start()
def loads():
    return list(torch.utils.data.DataLoader(torch.ones(8, 1), num_workers=1))
def mismatches(): dist.barrier() if PartialState().process_index else dist.all_reduce(torch.ones(1))
def unpicklable(): return threading.Lock()

def starts_fresh(): return PartialState().process_index

FAULTS = [works, raises, exits, dies, crashes, prints, hangs, leaves, loads, mismatches]
FAULTS += [unpicklable, starts_fresh]

def one(fault):
    options = {"timeout": 0.5} if fault in (hangs, mismatches) else {}
    if fault is raises: options["max_restarts"] = 1
    if fault is starts_fresh: options["start_method"] = "forkserver"
    try:
        notebook_launcher(fault, num_processes=2, view="silent", grace=0.3, **options)
    except RankError as error:
        return type(error).__name__
    return "done"

def one_session():
    session = Session(2, view="silent", grace=0.3)
    assert session.run(works)[0].shape == (100_000,)
    try:
        session.run(raises)
    except RankError as error:
        said = type(error).__name__
    session["x"] = 1
    assert session.pull("x") == [1, 1]
    session.refork()
    session.run(works)
    session.close()
    return said

def held():
    gc.collect()
    me = psutil.Process()
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "memory MiB": round(me.memory_info().rss / 2**20),
        "/dev/shm": len(os.listdir("/dev/shm")),
        "children": len(me.children(recursive=True)),
        "zombies": sum(p.status() == "zombie" for p in me.children(recursive=True)),
        "temporary": len(list(pathlib.Path(tempfile.gettempdir()).glob("nbstate-*"))),
    }
"""

ROUND = """
counts = {}
for fault in random.sample(FAULTS, len(FAULTS)):
    said = one(fault)
    counts[fault.__name__] = said
counts["session"] = one_session()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("minutes", type=float, nargs="?", default=30)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--sessions", type=int)
    chosen = parser.parse_args()
    with Kernel() as kernel:
        _run(kernel, SETUP)
        if chosen.launches:
            _launches(kernel, chosen.launches)
        elif chosen.sessions:
            _sessions(kernel, chosen.sessions)
        else:
            _mixed(kernel, chosen.minutes)


def _launches(kernel: Kernel, count: int) -> None:
    _run(kernel, "for _ in range(12): one(works)")
    _row(kernel, "after 12 launches")
    for done in range(50, count + 1, 50):
        _run(kernel, "for _ in range(50): assert one(works) == 'done'")
        _row(kernel, f"{done} launches later")


def _sessions(kernel: Kernel, count: int) -> None:
    _run(kernel, "one_session()")
    _row(kernel, "after 1 session")
    for done in range(5, count + 1, 5):
        _run(kernel, "for _ in range(5): one_session()")
        _row(kernel, f"{done} sessions later")


def _mixed(kernel: Kernel, minutes: float) -> None:
    _run(kernel, ROUND)
    _row(kernel, "after one round")
    end, rounds, told = time.monotonic() + 60 * minutes, 0, time.monotonic()
    while time.monotonic() < end:
        _run(kernel, ROUND)
        rounds += 1
        if time.monotonic() - told > 6 * minutes:
            told = time.monotonic()
            _row(kernel, f"{rounds} rounds later")
    _row(kernel, f"{rounds} rounds later")
    print("outcomes of the last round:", kernel.eval("counts"))


def _run(kernel: Kernel, code: str) -> None:
    cell = kernel.run(code, timeout=600)
    if cell.error is not None:
        raise SystemExit(cell.error.traceback)


def _row(kernel: Kernel, when: str) -> None:
    held = kernel.eval("held()")
    print(
        f"{when:>22}  " + "  ".join(f"{name} {value}" for name, value in held.items()), flush=True
    )


if __name__ == "__main__":
    main()
