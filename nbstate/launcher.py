"""`notebook_launcher`, `debug_launcher` and `launch`: every argument checked, then a Job.

Nothing here makes a process: mistakes are told before one exists.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nbstate import devices, plan
from nbstate.job import Job, logs
from nbstate.mistakes import told_at_the_call, told_without_us
from nbstate.options import LaunchOptions
from nbstate.rank.call import Call
from nbstate.results import RankResults
from nbstate.start import limits
from nbstate.start.choice import choose_start
from nbstate.start.nodes import OneNode

if TYPE_CHECKING:
    from nbstate.start.nodes import Nodes

_ALONE = "No accelerator here: one process, in the kernel. num_processes=2 asks for two."
_APART = "{}: the one process is a rank of its own; the kernel gets what it returns or writes back"


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: int | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int | tuple[int, int] = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> RankResults | Job:
    """Run a function on several ranks forked from this kernel, and return what each returned.

    Parameters
    ----------
    function
        Called on every rank. An ``async def`` function is awaited.
    args
        Its positional arguments, as a tuple or list.
    num_processes
        How many ranks. None: one per accelerator; without one, a single process. With 1 the
        function runs in the kernel itself, so that what it trains stays there: unless `isolate`
        says otherwise, or an option that only a rank can have, or on a TPU, which the kernel would
        keep for itself.
    mixed_precision, use_port, master_addr, node_rank, num_nodes
        See `LaunchOptions`, which documents every option. The positional order is that of
        Accelerate's function of the same name.
    rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id, max_restarts, monitor_interval
        As torchrun's; see there.
    kwargs
        The function's keyword arguments.
    **options
        Any other field of `LaunchOptions`, such as ``view``, ``timeout`` or ``seed``.

    Returns
    -------
    RankResults
        One value per rank of this node, in rank order. With ``wait=False`` a `Job` instead.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; no process was started.
    RankError
        A rank failed: which, where and why.
    KeyboardInterrupt
        The cell was interrupted; every rank is gone.

    Notes
    -----
    Ranks start with the kernel's random state, equal on all of them; ``seed`` changes that. An
    exception of a function that runs in the kernel arrives as it is.

    Examples
    --------
    >>> def train(lr):
    ...     return PartialState().process_index * lr
    >>> notebook_launcher(train, (0.1,), num_processes=2)
    RankResults([0.0, 0.1])
    """
    given = {
        "mixed_precision": mixed_precision,
        "use_port": use_port,
        "master_addr": master_addr,
        "node_rank": node_rank,
        "num_nodes": num_nodes,
        "rdzv_backend": rdzv_backend,
        "rdzv_endpoint": rdzv_endpoint,
        "rdzv_conf": rdzv_conf,
        "rdzv_id": rdzv_id,
        "max_restarts": max_restarts,
        "monitor_interval": monitor_interval,
        "log_line_prefix_template": log_line_prefix_template,
        **options,
    }
    with told_at_the_call():
        checked = _options(function, given)
    return _run(function, args, kwargs, num_processes, checked)


def debug_launcher(
    function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2
) -> RankResults:
    """Run a function on several CPU ranks: a rehearsal of a launch without accelerators.

    Parameters
    ----------
    function
        Called on every rank.
    args
        Its positional arguments, as a tuple or list.
    num_processes
        How many ranks.

    Returns
    -------
    RankResults
        One value per rank, in rank order.

    Examples
    --------
    >>> debug_launcher(lambda: PartialState().num_processes)
    RankResults([2, 2])
    """
    found = _run(function, args, None, num_processes, LaunchOptions(cpu=True, isolate=True))
    assert isinstance(found, RankResults)
    return found


def launch(
    function: Callable[..., Any],
    *args: Any,
    num_processes: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Job:
    """Run a function on several ranks and return at once; the kernel is free meanwhile.

    Parameters
    ----------
    function
        Called on every rank.
    *args
        Its positional arguments.
    num_processes
        How many ranks. None: one per accelerator, or one.
    kwargs
        Its keyword arguments.
    **options
        Any field of `LaunchOptions`. With several nodes this waits until all have come.

    Returns
    -------
    Job
        A handle: ``job.wait()``, ``job.stop()``, ``job.ranks[0].stdout``, ...

    Examples
    --------
    >>> def train(lr):
    ...     return PartialState().process_index * lr
    >>> job = launch(train, 0.1, num_processes=2)
    >>> job.wait()
    RankResults([0.0, 0.1])
    """
    with told_at_the_call():
        checked = _options(function, {**options, "wait": False})
    job = _run(function, args, kwargs, num_processes, checked)
    assert isinstance(job, Job)
    return job


def _run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    num_processes: int | None,
    options: LaunchOptions,
) -> RankResults | Job:
    named = {} if kwargs is None else kwargs
    with told_at_the_call():
        _check_call(function, args, named)
        plan.check_not_in_a_rank()
        ranks = plan.count_ranks(num_processes, options)
        plan.check_devices(ranks, options)
        _check_write_back(options)
    for_the_kernel, apart = plan.suits_the_kernel(ranks, options), plan.needing_a_rank(options)
    if for_the_kernel and not apart:
        if num_processes is None and devices.count() == 0:
            print(_ALONE)  # noqa: T201 - the opening line of the cell
        from nbstate import one_process

        with told_without_us():
            return one_process.run(function, args, named, options)
    from nbstate import view  # before a job has opened anything: an import can fail

    with told_at_the_call():
        job = _make(Call(function, args, named, options.write_back), ranks, options)
    if for_the_kernel:
        job.notes.append(_APART.format(" and ".join(apart)))
    _tell_of_untouched_modules(job, args, named, options)
    with job.interruptible():
        try:
            job.shown_by(view.attach(job, options.view))
        except BaseException:
            job.give_up()
            raise
        job.start()
        if options.wait:
            job.wait_until_shown()
    return job.results() if options.wait else job


def _make(call: Call, ranks: int, options: LaunchOptions) -> Job:
    """Make the job, which does not run yet; with several nodes, once they have met."""
    start, why = choose_start(call, options, ranks)
    name = getattr(call.function, "__name__", type(call.function).__name__)
    log_dir = logs.new_folder(options.log_dir)
    where = plan.in_words(ranks, options)
    with limits.explained(ranks):
        nodes = _meet(options, ranks)
        if nodes.number is not None:
            where += f", node {nodes.number} of {nodes.count}"
        try:
            job = Job(name, start, options, ranks, where=where, log_dir=log_dir, nodes=nodes)
        except BaseException:
            nodes.close()
            raise
    job.notes += why
    return job


def _meet(options: LaunchOptions, ranks: int) -> Nodes:
    if not options.meets_others:
        return OneNode(ranks, options)
    from nbstate.start import elastic

    return elastic.meet(options, ranks)


# -- checks, before any process exists


def _options(function: object, given: Mapping[str, Any]) -> LaunchOptions:
    """Make the options; the function's own arguments among them are told from mistyped names."""
    known = {field.name for field in fields(LaunchOptions)}
    meant = {name: given[name] for name in _parameters(function) if name in given.keys() - known}
    if meant:
        told = ", ".join(f"{name!r}: {reprlib.repr(value)}" for name, value in meant.items())
        names = " and ".join(map(repr, meant))
        whose = getattr(function, "__name__", "the function")
        raise TypeError(f"{names}: no option, but an argument of {whose}: pass kwargs={{{told}}}")
    return LaunchOptions.from_keywords(given)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or a builtin that does not tell
        return {}


def _check_call(function: object, args: object, kwargs: object) -> None:
    if not callable(function):
        raise TypeError(
            f"function={function!r}: expected a function; pass train, not train(), which calls it"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args={args!r}: expected a tuple or list, such as args=({args!r},)")
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise TypeError(f"kwargs={kwargs!r}: expected a dict of argument names to values")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"{name}{signature} cannot be called with args={args!r}"
            + (f", kwargs={kwargs!r}" if kwargs else "")
            + f": {error}"
        ) from None


def _check_write_back(options: LaunchOptions) -> None:
    modules = options.write_back
    if not isinstance(modules, (tuple, list)) or not all(
        hasattr(module, "load_state_dict") for module in modules
    ):
        raise TypeError(f"write_back={modules!r}: expected a tuple of modules, such as (model,)")


# -- what is told


def _tell_of_untouched_modules(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any], options: LaunchOptions
) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    given = [*args, *kwargs.values()]
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    written = {id(module) for module in options.write_back}
    left = [item for item in given if isinstance(item, kinds) and id(item) not in written]
    if left:
        names = ", ".join(sorted({type(item).__name__ for item in left}))
        told = f"the kernel's own {names} is as it was: the ranks trained copies"
        if any(isinstance(item, torch.nn.Module) for item in left):
            told += "; write_back=(model,) loads rank 0's weights into the model"
        job.note_when_done(told)
