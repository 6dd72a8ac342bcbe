"""How a shared state begins, is shared and ends.

    PartialState() ─┐
    PartialState() ─┼──> Life(facts, ended=None) <── the scope's table: class -> life
    PartialState() ─┘

Every object of a class holds the *life* it was made in. A reset ends the life and takes it out of
the table, so the next construction begins another; objects of the ended one say where it ended
instead of showing half of something. A scope is the process, or one replica where replicas are
threads.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nbstate.state.scopes import notice_replica, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

Facts = TypeVar("Facts")

_PACKAGE = str(Path(__file__).parent.parent)


class Life(Generic[Facts]):
    """What the objects of one class share, from a construction to the next reset."""

    __slots__ = ("ended", "facts")

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.ended: str | None = None


class SharedState(Generic[Facts]):
    """The base of the three states: one set of facts, shared by all objects of a class.

    A subclass makes its facts in ``__init__`` through `_begin` and reads them from ``self._facts``.
    Also a context manager, which leaves none of the three states behind.
    """

    _life: Life[Facts]

    @classmethod
    def is_initialized(cls) -> bool:
        """Whether this state exists here; asking makes nothing.

        Examples
        --------
        >>> PartialState.is_initialized()
        True
        """
        return cls in scope().lives

    @property
    def initialized(self) -> bool:
        """Whether this object still holds; False after a reset."""
        return self._life.ended is None

    @classmethod
    def reset(cls) -> None:
        """Forget all three states at once, so that the next construction starts anew.

        Objects made before say, when they are used, that this call ended them. The process group is
        torch's and stays; the next PartialState uses it as it is.

        Examples
        --------
        >>> PartialState.reset()
        >>> state.initialized
        False
        """
        reset_all(f"{cls.__name__}.reset() {caller()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        reset_all(f"the `with {type(self).__name__}(...)` block was left {caller()}")

    @property
    def _facts(self) -> Facts:
        if self._life.ended is not None:
            name = type(self).__name__
            raise AttributeError(
                f"this {name} no longer holds: {self._life.ended}. Make a new one with {name}()."
            )
        return self._life.facts

    @classmethod
    def _current(cls) -> Life[Facts] | None:
        return scope().lives.get(cls)

    def _begin(self, make: Callable[[], Facts], check: Callable[[Facts], None]) -> None:
        """Join the life that there is, after `check` found no conflict; otherwise `make` one."""
        notice_replica()
        here = scope()
        with here.lock:
            life = here.lives.get(type(self))
            if life is None:
                life = here.lives[type(self)] = Life(make())
            else:
                check(life.facts)
        self._life = life

    # A copy is the same state; one that travels to another process is not that process's.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[type], object], tuple[type]]:
        return _from_elsewhere, (type(self),)

    def __repr__(self) -> str:
        if self._life.ended is not None:
            return f"<{type(self).__name__} that no longer holds: {self._life.ended}>"
        return "\n".join(f"{label}: {value}" for label, value in self._lines())

    def _lines(self) -> Iterator[tuple[str, object]]:
        raise NotImplementedError


def _from_elsewhere(cls: type[SharedState[Any]]) -> SharedState[Any]:
    state = cls.__new__(cls)
    state._life = Life(None)
    state._life.ended = "it was made in another process and sent here"
    return state


def end(why: str, *classes: type) -> None:
    """End the lives of these classes in the calling thread's scope, all together."""
    here = scope()
    with here.lock:
        for life in [here.lives.pop(cls) for cls in classes if cls in here.lives]:
            life.ended = why


def reset_all(reason: str | None = None) -> None:
    """Forget all three states; no process group is touched.

    Parameters
    ----------
    reason : str, optional
        What objects made before will give as the cause, a clause such as ``"the kernel's states
        stay in the kernel"``. By default the place of the call.
    """
    here = scope()
    # In a process just forked, another thread of the parent may have held the lock.
    here.lock = threading.RLock()
    end(reason or f"reset_all() {caller()}", *here.lives)


@contextmanager
def fresh_states(reason: str) -> Iterator[None]:
    """Set the states aside for a block, and have them back after it as they were.

    For a function that runs in the kernel as if it were a rank. States made inside end with the
    block; `reason` is what their objects will say.
    """
    here = scope()
    before, here.lives = here.lives, {}
    try:
        yield
    finally:
        end(reason, *here.lives)
        here.lives = before


def caller() -> str:
    """Where the code outside this package stands: ``at train.py:12``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    name = frame.f_code.co_filename
    # ipykernel compiles a cell under a path nobody has seen.
    where = "a notebook cell" if "ipykernel_" in name or name.startswith("<") else name
    return f"at {where}:{frame.f_lineno}"
