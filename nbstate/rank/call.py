"""The user's function and its arguments: at hand in a forked rank, packed for a fresh one.

A fresh rank is also told of the kernel's surroundings, which a forked one has.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from nbstate import travel, values
from nbstate.environment import answers_questions, running_kernel
from nbstate.rank import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Call:
    """A function, its arguments, and the modules whose weights go back to the kernel.

    `prepare` is what the rank calls before the function.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    write_back: Sequence[Any] = ()
    prepare: Callable[[], None] | None = None

    def open(self) -> Call:
        """Return itself: a forked rank has everything."""
        return self


class Descriptor(int):
    """A file descriptor that arrives open in a fresh process; elsewhere it is only its number."""

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _arrive, (reduction.DupFd(int(self)),)


def _arrive(duplicate: Any) -> int:
    descriptor: int = duplicate.detach()
    return descriptor


@dataclass(frozen=True)
class Parcel:
    """A `Call` pickled by value, with its big buffers in a memory file that all ranks share.

    Each rank maps the file privately: the pages are one and the same until a rank writes to them.
    """

    payload: bytes
    buffers: values.Buffers
    shared: Descriptor | None

    def open(self) -> Call:
        """Build the call in the rank's own process."""
        buffers = values.map_shared(self.buffers, self.shared)
        call: Call = travel.load(self.payload, buffers)
        return call


@dataclass(frozen=True)
class Surroundings:
    """What a fresh process must be told and a forked one has: the kernel's own surroundings."""

    environment: Mapping[str, str]
    warning_filters: bytes
    random_states: Mapping[str, Any]
    cells: Mapping[str, tuple[str, list[str]]]
    notebook: bool
    asks: bool

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Take down the kernel's."""
        kernel = running_kernel()
        return cls(
            dict(os.environ),
            # By value: a filter may be for warnings of a kind that the notebook defines.
            values.dump(list(warnings.filters), "warnings.filters")[0],
            random_states(),
            failure.cells_of_notebook(),
            notebook=kernel is not None,
            asks=answers_questions(kernel),
        )

    def restore(self) -> None:
        """Make them the rank's."""
        os.environ.clear()
        os.environ.update(self.environment)
        warnings.filters[:] = travel.load(self.warning_filters, ())  # type: ignore[index] # a list in fact
        warnings._filters_mutated()  # type: ignore[attr-defined] # resets its cache
        set_random_states(self.random_states)
        failure.learn_cells(self.cells)


def random_states() -> dict[str, Any]:
    """Return the states of NumPy's and torch's generators, where these are loaded."""
    # Not Python's own: a forked child reseeds that, so no rank has the kernel's.
    states: dict[str, Any] = {}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if "torch" in sys.modules:
        # As bytes: a tensor on its way to another process would be moved to shared memory.
        states["torch"] = bytes(sys.modules["torch"].get_rng_state().tolist())
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the generators as `random_states` found them."""
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])  # noqa: NPY002 - the generator that users draw from
    if "torch" in states:
        import torch

        state = torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8)
        torch.set_rng_state(state)
