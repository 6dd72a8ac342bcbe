"""Every knob of a launch: its default and its meaning, checked when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

PRECISIONS = ("no", "fp16", "bf16", "fp8")
START_METHODS = ("auto", "fork", "forkserver", "spawn")
RDZV_SECONDS = ("join_timeout", "last_call_timeout", "keep_alive_interval")
VIEWS = ("auto", "board", "plain", "silent")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What a launch may be told, beyond the function and its arguments.

    Parameters
    ----------
    mixed_precision
        ``"no"``, ``"fp16"``, ``"bf16"`` or ``"fp8"``; what the states of each rank report.
    use_port
        Port of the rendezvous store. None: a free one, bound before any rank starts. With several
        nodes the port at which their notebooks meet, 29500 unless given.
    master_addr
        Address of the rendezvous store, one of node 0's; nothing listens on its other ones.
    num_nodes, node_rank
        On how many machines a notebook makes this launch, and which of them this is. All ranks of
        all nodes train together; each notebook shows and returns its own.
    rdzv_backend
        ``"static"``: `num_nodes` notebooks, of which that with `node_rank` 0 listens.
        ``"c10d"``: the first that can listen at the endpoint does, and nodes are numbered as they
        come. `num_nodes` may then be a range such as ``(1, 3)``: a node that comes or goes has all
        ranks started anew, and does not count as a restart; the ranks' own failures do.
    rdzv_endpoint
        Where the notebooks meet, as ``"host:port"``, instead of `master_addr` and `use_port`.
    rdzv_id
        What the run is called: equal in all its notebooks, who prove to each other that they know
        it without sending it.
    rdzv_conf
        ``join_timeout``: seconds to wait for all nodes (600). ``last_call_timeout``: seconds to
        wait for more of a range once there are enough (30). ``keep_alive_interval`` and
        ``keep_alive_max_attempt``: seconds between two signs of life of another node, and how many
        must be missing (1 and 5). ``is_host``: with c10d, whether this notebook listens.
    gather_results
        Return what the ranks of all nodes returned, in every notebook. It needs an `rdzv_id` that
        is no stranger's to guess: what knows it can run code here, as pickled values can.
    max_restarts, monitor_interval
        How often all ranks are started anew once one has failed; they find the count in
        ``TORCHELASTIC_RESTART_COUNT``. The second is accepted as torchrun's: here a failure is
        seen at once.
    log_line_prefix_template
        What stands before each line of text instead of ``[0]``, as torchrun's: with
        ``${role_name}``, ``${local_rank}`` and ``${rank}``.
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
        Folder for the whole output of each rank. None: a temporary folder that only this user can
        read; those of the last ten runs are kept until the kernel ends.
    isolate
        With one process: run it in a rank of its own instead of in the kernel. `devices`,
        `backend`, `threads_per_rank`, `timeout`, `max_restarts`, `trace` and `log_dir` are for
        ranks, so that each of them does this too.
    cluster
        Refused: launches on a Ray cluster are not built yet.
    trace
        Have every rank announce each collective, what DistributedDataParallel reduces included, and
        wait until all agree on it. Ranks that do not match raise at once and say who called what
        where. `Job.timeline` shows who was late. Slow; to find a mistake.
    devices
        Which accelerators to use, by index, one per rank.
    write_back
        Modules of the kernel that receive rank 0's final weights; with several nodes, those of the
        first rank here.

    Examples
    --------
    >>> LaunchOptions(timeout=60, start_method="fork").grace
    5.0
    >>> LaunchOptions(start_method="thread")
    Traceback (most recent call last):
    ValueError: start_method='thread': choose one of 'auto', 'fork', 'forkserver', 'spawn'
    """

    mixed_precision: str = "no"
    use_port: int | None = None
    master_addr: str = "127.0.0.1"
    node_rank: int = 0
    num_nodes: int | tuple[int, int] = 1
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_conf: Mapping[str, Any] | None = None
    rdzv_id: str = "none"
    gather_results: bool = False
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
        self._read_as_accelerate_does()
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
            raise TypeError(_unknown_options(unknown, ["num_processes", "args", "kwargs", *names]))
        return cls(**given)

    def _read_as_accelerate_does(self) -> None:
        """Take a port as text, and a precision in capitals."""
        if isinstance(port := cast("Any", self.use_port), str) and port.isdecimal():
            object.__setattr__(self, "use_port", int(port))
        if isinstance(self.mixed_precision, str):
            object.__setattr__(self, "mixed_precision", self.mixed_precision.lower())

    def _check_choices(self) -> None:
        _one_of("mixed_precision", self.mixed_precision, PRECISIONS)
        _one_of("start_method", self.start_method, START_METHODS)
        _one_of("view", self.view, VIEWS)
        _one_of("rdzv_backend", self.rdzv_backend, ("static", "c10d"))
        for name in ("wait", "cpu", "oversubscribe", "isolate", "trace", "gather_results"):
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

    @property
    def node_range(self) -> tuple[int, int]:
        """The least and the most nodes that may take part."""
        nodes = self.num_nodes
        return (nodes, nodes) if isinstance(nodes, int) else nodes

    @property
    def endpoint(self) -> tuple[str, int | None]:
        """Where to meet: an address, and the port where one is asked for."""
        host, _, port = self.rdzv_endpoint.rpartition(":")
        if not port.isdecimal() or (":" in host and "[" not in host):
            host, port = self.rdzv_endpoint, ""  # no port: what looks like one is of the host
        return host.strip("[]") or self.master_addr, int(port) if port else self.use_port

    @property
    def meets_others(self) -> bool:
        """Whether other notebooks take part, or may."""
        return self.node_range[1] > 1

    def _check_nodes(self) -> None:
        _check_node_range(self.num_nodes, self.rdzv_backend)
        _whole_number("node_rank", self.node_rank, least=0)
        most = self.node_range[1]
        if self.node_rank >= most:
            raise ValueError(
                f"node_rank={self.node_rank} with num_nodes={self.num_nodes}: "
                f"node_rank counts from 0 to {most - 1}"
            )
        for name in ("rdzv_endpoint", "rdzv_id"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name}={getattr(self, name)!r}: expected a text")
        _check_rdzv_conf(self.rdzv_conf)
        self._check_meeting()

    def _check_meeting(self) -> None:
        if self.meets_others and self.trace:
            raise ValueError("trace=True compares the ranks of one machine: leave num_nodes out")
        if self.meets_others and self.gather_results and self.rdzv_id == "none":
            raise ValueError(
                "gather_results=True builds what other machines send, which can run code here: "
                "give all notebooks of the run the same rdzv_id='...', known to nobody else"
            )
        template: object = self.log_line_prefix_template
        if template is not None and not isinstance(template, str):
            raise TypeError(
                f"log_line_prefix_template={template!r}: expected a text such as "
                "'[${role_name}${rank}]: '"
            )

    def _refuse_what_is_not_built(self) -> None:
        """Nothing is faked: an option whose engine is missing says so."""
        if self.cluster is not None:
            raise ValueError(
                f"cluster={self.cluster!r}: this version of nbstate cannot do that yet; "
                "leave cluster out"
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


def _check_node_range(nodes: object, backend: str) -> None:
    if not isinstance(nodes, (tuple, list)):
        _whole_number("num_nodes", nodes, least=1)
        return
    hint = f"num_nodes={nodes!r}: expected a whole number, or a range such as (1, 3)"
    if len(nodes) != 2:
        raise ValueError(hint)
    for number in nodes:
        _whole_number("num_nodes", number, least=1)
    if nodes[0] > nodes[1]:
        raise ValueError(hint)
    if backend != "c10d":
        raise ValueError(f"num_nodes={nodes!r}: a range of nodes needs rdzv_backend='c10d'")


def _check_rdzv_conf(conf: object) -> None:
    if conf is None:
        return
    if not isinstance(conf, Mapping):
        raise TypeError(f"rdzv_conf={conf!r}: expected a dict such as {{'join_timeout': 60}}")
    for name, value in conf.items():
        if name in RDZV_SECONDS:
            _positive_number(f"rdzv_conf[{name!r}]", value)
        elif name == "keep_alive_max_attempt":
            _whole_number(f"rdzv_conf[{name!r}]", value, least=1)
        elif name != "is_host":
            known = ", ".join((*RDZV_SECONDS, "keep_alive_max_attempt", "is_host"))
            raise ValueError(f"rdzv_conf has {name!r}: there are {known}")
        elif not isinstance(value, bool):
            raise TypeError(f"rdzv_conf['is_host']={value!r}: expected True or False")


def _check_seed(seed: object) -> None:
    per_rank = isinstance(seed, tuple) and len(seed) == 2 and seed[0] == "per_rank"
    number = cast("Any", seed)[1] if per_rank else seed
    whole = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**32
    if seed is not None and not whole:
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
