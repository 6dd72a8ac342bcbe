"""How ranks come to life. Each way is one class with the same few parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from contextlib import AbstractContextManager
    from multiprocessing.process import BaseProcess
    from typing import Any

    from nbstate.rank.bootstrap import Setup
    from nbstate.rank.call import Call, Parcel, Surroundings


class Start(Protocol):
    """A way to start ranks: made in the cell, used in the job's thread."""

    @property
    def call(self) -> Call | Parcel:
        """What each rank is given to call."""

    @property
    def by_reference(self) -> Mapping[int, str]:
        """Functions and classes of the notebook that a rank finds as they are, by their `id`."""

    @property
    def classes(self) -> MutableMapping[str, Any]:
        """Classes that come back as what they are here, by their numbers: kept while ranks live."""

    @property
    def surroundings(self) -> Surroundings | None:
        """What a rank must be told of the kernel's surroundings; None where it has them."""

    @property
    def kernel_pid(self) -> int | None:
        """The parent that a rank must find, None where that is not the kernel."""

    def ready(self) -> AbstractContextManager[None]:
        """Hold what is needed while the ranks of a run are started."""

    def start(self, setup: Setup) -> BaseProcess:
        """Start one rank."""

    def why_ended(self, exitcode: int | None, *, began: bool) -> str:
        """Return why a rank is gone that left no word, where its start explains it; else ``""``."""
