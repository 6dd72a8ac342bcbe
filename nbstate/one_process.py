"""A launch with one process: the function runs in the kernel, so what it trains stays there."""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbstate.rank.bootstrap import call, seed
from nbstate.rank.call import random_states, set_random_states
from nbstate.results import RankResults
from nbstate.start.place import PLACE_VARIABLES
from nbstate.state import fresh_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nbstate.options import LaunchOptions


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: LaunchOptions,
) -> RankResults:
    """Call the function here, alone; leave the kernel's environment, states and seed alone."""
    with (
        _environment(options),
        fresh_states("a launch with one process was over"),
        _seeded(options.seed),
    ):
        return RankResults([call(function, args, kwargs)])


@contextmanager
def _seeded(chosen: int | tuple[str, int] | None) -> Iterator[None]:
    if chosen is None:  # it draws from the kernel's generators, as any cell does
        yield
        return
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and not cuda.is_initialized():
        cuda = None  # asking it would wake it
    before, others = random.getstate(), random_states()
    on_devices = None if cuda is None else cuda.get_rng_state_all()
    try:
        seed(chosen, 0)
        yield
    finally:
        random.setstate(before)
        set_random_states(others)
        if cuda is not None:
            cuda.set_rng_state_all(on_devices)


@contextmanager
def _environment(options: LaunchOptions) -> Iterator[None]:
    before = dict(os.environ)
    for name in PLACE_VARIABLES:  # left over from something else: this process is alone
        os.environ.pop(name, None)
    os.environ["ACCELERATE_MIXED_PRECISION"] = options.mixed_precision
    if options.cpu:
        os.environ["NBSTATE_CPU"] = "1"
    os.environ.update(options.env)
    ours = dict(os.environ)
    try:
        yield
    finally:
        # What the function itself set stays; only what is set above is taken back.
        for name in before.keys() | ours.keys():
            if os.environ.get(name) == ours.get(name):
                _restore(name, before.get(name))


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
