"""What the doctor looks at, in the order of its report. Each check wakes and changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import threading
from importlib import metadata
from typing import TYPE_CHECKING

import psutil

from nbstate import devices, memory
from nbstate.checkup.report import Check
from nbstate.environment import VIEW_VARIABLE, choose_view, front_end, look_around
from nbstate.memory import in_words
from nbstate.options import LaunchOptions
from nbstate.rank import bootstrap
from nbstate.start import xla
from nbstate.start.choice import choose_method
from nbstate.start.place import PLACE_VARIABLES, threads_per_rank, usable_cores
from nbstate.start.rendezvous import Rendezvous
from nbstate.woken import watch

if TYPE_CHECKING:
    from collections.abc import Callable

_GIB = 1 << 30
_PACKAGES = ("nbstate", "torch", "ipykernel", "ipywidgets", "anywidget", "jupyter_client")
_OLDEST_TORCH = (2, 4)


def versions() -> Check:
    found = [f"Python {platform.python_version()}"]
    found += [f"{name} {version}" for name in _PACKAGES if (version := _version(name))]
    text = f"{', '.join(found)}; {platform.system()} {platform.machine()}"
    torch = _version("torch") or "0.0"
    if tuple(int(part) for part in torch.split(".")[:2]) < _OLDEST_TORCH:
        return Check("versions", "problem", text, "pip install 'torch>=2.4'")
    return Check("versions", "ok", text)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def front() -> Check:
    name = "front end"
    try:
        view = choose_view("auto")
    except ValueError as error:
        return Check(name, "problem", str(error), f"unset {VIEW_VARIABLE}")
    text = f"{front_end().name}; a run shows as {view}"
    if VIEW_VARIABLE in os.environ:
        return Check(name, "note", f"{text}, as {VIEW_VARIABLE}={os.environ[VIEW_VARIABLE]} asks")
    if look_around().kernel and not look_around().widgets:
        return Check(name, "note", text, "pip install ipywidgets anywidget, for live boards")
    return Check(name, "ok", text)


def process() -> Check:
    name = "this process"
    here = bootstrap.current
    if here is not None:
        text = f"rank {here.rank} of {here.world_size}: a rank cannot launch ranks"
        return Check(name, "problem", text, "launch from the kernel")
    left = [variable for variable in PLACE_VARIABLES if variable in os.environ]
    if left:
        text = f"{', '.join(left)} set: ranks get their own, states in this process obey these"
        fix = "unset them, unless torchrun or MPI started this process"
        return Check(name, "note", text, fix)
    return Check(name, "ok", "not part of another launch")


def accelerators() -> Check:
    name = "devices"
    kind, count = devices.kind(), devices.count()
    if not count:
        return _no_accelerator(name)
    names = sorted({devices.name(index) for index in range(count)})
    text = f"{count} {kind}: {', '.join(names)} ({devices.host()})"
    return Check(name, "ok", text)


def _no_accelerator(name: str) -> Check:
    machine = devices.Machine()
    if machine.files("dev/nvidia[0-9]*"):
        if machine.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            text = "NVIDIA devices, all hidden by CUDA_VISIBLE_DEVICES: ranks use the CPU"
            return Check(name, "note", text, "unset CUDA_VISIBLE_DEVICES to use them")
        text = "NVIDIA devices, but this torch is built without CUDA: ranks use the CPU"
        return Check(name, "note", text, "install a CUDA build of torch: pytorch.org/get-started")
    return Check(name, "ok", f"no accelerator ({devices.host()}): ranks use the CPU and speak gloo")


def awake() -> Check:
    name = "runtimes"
    used = devices.woken()
    if used is None:
        return Check(name, "ok", "asleep: nothing in this process has used an accelerator")
    by = f": {watch.waker}" if watch.waker else ""
    return Check(name, "note", f"{used} is in use in this process{by}")


def start_method() -> Check:
    name = "start method"
    used = devices.woken()
    method, why = choose_method("auto", used, waker="")
    if xla.needed(LaunchOptions()):
        try:
            xla.check(max(1, devices.count()), used)
        except (RuntimeError, ValueError) as error:
            return Check(name, "problem", str(error))
    if method == "fork":
        return Check(name, "ok", "fork: ranks have every variable of this process, in milliseconds")
    reason = "; ".join(why) or f"{platform.system()} does not fork safely: the ranks are fresh"
    return Check(name, "note" if why else "ok", f"{method}: {reason}")


def ranks() -> Check:
    name = "ranks"
    count = max(1, devices.count())
    threads = threads_per_rank(count, LaunchOptions())
    say = (
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}" if threads is None else f"{threads}"
    )
    text = f"{count} unless num_processes is given; threads per rank: {say}"
    if threads is None and os.environ["OMP_NUM_THREADS"] == "1" and usable_cores() > count:
        return Check(name, "note", text, "threads_per_rank=... if the ranks compute on the CPU")
    return Check(name, "ok", text)


def kernel_threads() -> Check:
    python, all_threads = threading.active_count(), psutil.Process().num_threads()
    text = f"{all_threads} in this process, {python} of them Python's; none goes along to a rank"
    return Check("threads", "ok", text)


def cores() -> Check:
    there, usable = psutil.cpu_count() or 1, usable_cores()
    limited = f" of {there}; the rest is not for this process" if usable < there else ""
    return Check("cores", "ok", f"{usable:g}{limited}")


def main_memory() -> Check:
    (most, whose), free = memory.limit(), memory.free()
    text = f"{in_words(free)} free of the {whose}'s {in_words(most)}"
    if free < _GIB:
        fix = "free some: a forked rank needs what it writes, a fresh one about 0.3 GiB more"
        return Check("memory", "note", text, fix)
    return Check("memory", "ok", text)


def shared_memory() -> Check:
    name = "/dev/shm"
    space = memory.shared()
    if space is None:
        return Check(name, "ok", "not on this system, and not needed")
    free, size = space
    text = f"{in_words(free)} free of {in_words(size)}"
    if free < _GIB:
        fix = "docker run --shm-size=8g: DataLoader workers and NCCL keep their data there"
        return Check(name, "note", f"{text}; arguments and results of ranks do not need it", fix)
    return Check(name, "ok", text)


def folder() -> Check:
    name = "logs"
    try:
        with tempfile.TemporaryFile():
            free = shutil.disk_usage(tempfile.gettempdir()).free
    except OSError as error:
        text = f"the temporary folder cannot be written: {error.strerror}"
        return Check(name, "problem", text, "set TMPDIR, or pass log_dir=")
    text = f"{in_words(free)} free in the temporary folder"
    if free < _GIB:
        return Check(name, "note", text, "pass log_dir= for ranks that write much")
    return Check(name, "ok", text)


def meeting_point() -> Check:
    name = "rendezvous"
    try:
        meeting = Rendezvous("127.0.0.1", None)
        try:
            socket.create_connection(("127.0.0.1", meeting.port), timeout=5).close()
        finally:
            meeting.close()
    except OSError as error:
        text = f"the loopback address 127.0.0.1 does not answer: {error.strerror or error}"
        return Check(name, "problem", text, "let this process listen on and connect to 127.0.0.1")
    return Check(name, "ok", "a free port on 127.0.0.1, another for each launch")


CHECKS: tuple[Callable[[], Check], ...] = (
    versions,
    front,
    process,
    accelerators,
    awake,
    start_method,
    ranks,
    kernel_threads,
    cores,
    main_memory,
    shared_memory,
    folder,
    meeting_point,
)
