"""Every knob of a launch: its default and its meaning, checked when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PRECISIONS = ("no", "fp16", "bf16", "fp8")
START_METHODS = ("auto", "fork", "forkserver", "spawn")
VIEWS = ("auto", "board", "plain", "silent")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What a launch may be told, beyond the function and its arguments.

    Parameters
    ----------
    mixed_precision
        ``"no"``, ``"fp16"``, ``"bf16"`` or ``"fp8"``; what the states of each rank report.
    use_port
        Port of the rendezvous store. None: a free one, bound before any rank starts.
    master_addr
        Address of the rendezvous store.
    num_nodes, node_rank
        How many machines, and which of them this is.
    rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id
        How several machines find each other, as torchrun's options of the same names.
    max_restarts, monitor_interval
        How often all ranks are started anew once one has failed; they find the count in
        ``TORCHELASTIC_RESTART_COUNT``. The second is accepted as torchrun's: here a failure is
        seen at once.
    log_line_prefix_template
        As torchrun's option of the same name.
    wait
        False: return a `Job` at once.
    start_method
        How a rank comes to life. ``"fork"``: from the kernel, with all its variables.
        ``"forkserver"``, ``"spawn"``: in a fresh process, to which the function travels by value.
        ``"auto"``: fork, unless the kernel has used an accelerator already.
    view
        ``"board"`` (live panes), ``"plain"`` (text), ``"silent"`` or ``"auto"``: what the front end
        can show. The environment variable ``NBSTATE_VIEW`` takes the same values.
    env
        Environment variables for the ranks; the kernel's own stay as they are.
    seed
        None: ranks start with the kernel's random state, equal on all of them (NumPy and torch; the
        interpreter reseeds `random` in a forked child). An int seeds Python, NumPy and torch
        equally on every rank; ``("per_rank", int)`` differently per rank, but reproducibly.
    threads_per_rank
        Threads of torch's operators on the CPU, per rank. None: the cores divided by the ranks,
        unless ``OMP_NUM_THREADS`` is set.
    timeout
        Seconds that the whole run may take. None: no limit.
    stall_after
        Seconds without a sign of life from any rank before their stacks are shown. None: never.
    grace
        Seconds that ranks get to stop, once asked to, before they are killed.
    cpu
        Use the CPU even where there are accelerators.
    backend
        Backend of the process group, such as ``"gloo"``. None: what suits the device.
    oversubscribe
        Allow more ranks than accelerators: they share the devices and speak gloo.
    log_dir
        Folder for the whole output of each rank. None: a private temporary folder.
    isolate
        With one process: run it in a rank of its own instead of in the kernel.
    cluster
        Address of a Ray cluster to run on.
    trace
        Have every rank announce each collective and wait until all agree on it. Ranks that do not
        match raise at once and say who called what where. Slow; to find a mistake.
    devices
        Which accelerators to use, by index, one per rank.
    write_back
        Modules of the kernel that receive rank 0's final weights.
    """

    mixed_precision: str = "no"
    use_port: int | None = None
    master_addr: str = "127.0.0.1"
    node_rank: int = 0
    num_nodes: int = 1
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_conf: Mapping[str, Any] | None = None
    rdzv_id: str = "none"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    log_line_prefix_template: str | None = None
    wait: bool = True
    start_method: str = "auto"
    view: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    seed: int | tuple[str, int] | None = None
    threads_per_rank: int | None = None
    timeout: float | None = None
    stall_after: float | None = 60.0
    grace: float = 5.0
    cpu: bool = False
    backend: str | None = None
    oversubscribe: bool = False
    log_dir: str | os.PathLike[str] | None = None
    isolate: bool = False
    cluster: str | None = None
    trace: bool = False
    devices: Sequence[int] | None = None
    write_back: Sequence[Any] = ()

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_ranks_settings()
        self._check_nodes()
        self._refuse_what_is_not_built()

    @classmethod
    def from_keywords(cls, given: Mapping[str, Any]) -> LaunchOptions:
        """Make the options from keyword arguments, naming every one that does not exist.

        Raises
        ------
        TypeError
            A name that is no option, with the nearest ones.
        """
        names = [f.name for f in fields(cls)]
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise TypeError(_unknown_options(unknown, names))
        return cls(**given)

    def _check_choices(self) -> None:
        _one_of("mixed_precision", self.mixed_precision, PRECISIONS)
        _one_of("start_method", self.start_method, START_METHODS)
        _one_of("view", self.view, VIEWS)
        _one_of("rdzv_backend", self.rdzv_backend, ("static", "c10d"))
        for name in ("wait", "cpu", "oversubscribe", "isolate", "trace"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name}={value!r}: expected True or False")

    def _check_numbers(self) -> None:
        _positive_number("timeout", self.timeout, optional=True)
        _positive_number("stall_after", self.stall_after, optional=True)
        _positive_number("grace", self.grace)
        _positive_number("monitor_interval", self.monitor_interval)
        _whole_number("threads_per_rank", self.threads_per_rank, least=1, optional=True)
        _whole_number("max_restarts", self.max_restarts, least=0)
        _whole_number("use_port", self.use_port, least=0, most=65535, optional=True)

    def _check_ranks_settings(self) -> None:
        env: object = self.env
        if not isinstance(env, Mapping) or not all(
            isinstance(text, str) for item in env.items() for text in item
        ):
            raise TypeError(f"env={self.env!r}: expected a dict of strings to strings")
        address: object = self.master_addr
        if not isinstance(address, str) or not address:
            raise TypeError(f"master_addr={address!r}: expected an address such as '127.0.0.1'")
        _check_seed(self.seed)
        _check_devices(self.devices)
        if self.backend is not None and not isinstance(self.backend, str):
            raise TypeError(f"backend={self.backend!r}: expected a name such as 'gloo'")
        if self.log_dir is not None and not isinstance(self.log_dir, (str, os.PathLike)):
            raise TypeError(f"log_dir={self.log_dir!r}: expected the path of a folder")
        if self.log_dir is not None and Path(self.log_dir).is_file():
            raise ValueError(f"log_dir={str(self.log_dir)!r} is a file: give the path of a folder")

    def _check_nodes(self) -> None:
        _whole_number("num_nodes", self.num_nodes, least=1)
        _whole_number("node_rank", self.node_rank, least=0)
        if self.node_rank >= self.num_nodes:
            raise ValueError(
                f"node_rank={self.node_rank} with num_nodes={self.num_nodes}: "
                f"node_rank counts from 0 to {self.num_nodes - 1}"
            )

    def _refuse_what_is_not_built(self) -> None:
        """Nothing is faked: an option whose engine is missing says so."""
        missing = {
            "num_nodes": self.num_nodes > 1,
            "rdzv_backend": self.rdzv_backend != "static",
            "rdzv_endpoint": self.rdzv_endpoint != "",
            "rdzv_conf": bool(self.rdzv_conf),
            "rdzv_id": self.rdzv_id != "none",
            "log_line_prefix_template": self.log_line_prefix_template is not None,
            "cluster": self.cluster is not None,
        }
        for name, used in missing.items():
            if used:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: this version of nbstate cannot do that yet; "
                    f"leave {name} out"
                )


def _one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}")


def _positive_number(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    hint = f"{name}={value!r}: expected a number of seconds above 0{' or None' * optional}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(hint)
    if not value > 0 or math.isinf(value):
        raise ValueError(hint)


def _whole_number(
    name: str, value: object, *, least: int, most: int | None = None, optional: bool = False
) -> None:
    if value is None and optional:
        return
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    hint = f"{name}={value!r}: expected a whole number {limits}{' or None' * optional}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(hint)
    if value < least or (most is not None and value > most):
        raise ValueError(hint)


def _check_seed(seed: object) -> None:
    if seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32):
        return
    if isinstance(seed, tuple) and len(seed) == 2 and seed[0] == "per_rank":
        _check_seed(seed[1])
        return
    raise ValueError(
        f"seed={seed!r}: expected None, an int from 0 to 2**32 - 1, or ('per_rank', int)"
    )


def _check_devices(devices: object) -> None:
    if devices is None:
        return
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence) or not devices:
        raise TypeError(f"devices={devices!r}: expected a list of device indices such as [0, 1]")
    if not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in devices):
        raise ValueError(f"devices={devices!r}: device indices are whole numbers from 0")
    if len(set(devices)) != len(devices):
        raise ValueError(f"devices={devices!r}: name each device once")


def _unknown_options(unknown: Sequence[str], names: Sequence[str]) -> str:
    import difflib

    said = []
    for name in unknown:
        near = difflib.get_close_matches(name, names, n=1)
        said.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return f"unknown option {', '.join(said)}; nbstate.LaunchOptions documents them all"
