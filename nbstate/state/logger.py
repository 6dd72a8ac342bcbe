"""A logger that knows which rank it is on."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

from nbstate.state.partial import PartialState, here, is_main_process

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# How far a method here stands between the caller and the logger; before Python 3.11 the frames of
# `logging` itself counted too.
_FRAMES = 1 if sys.version_info >= (3, 11) else 2


def get_logger(name: str, log_level: int | str | None = None) -> RankLogger:
    """A logger that by default speaks on the main process only.

    Each call takes two more keyword arguments: ``main_process_only`` (True unless given), and
    ``in_order``, which has every rank log, one after the other, whatever the first says. Neither
    makes a state: before one is set up the environment tells which rank this is.

    Parameters
    ----------
    name : str
        As for `logging.getLogger`.
    log_level : int or str, optional
        A level to set, such as ``"INFO"``; None leaves it as it is.

    Examples
    --------
    >>> logger = get_logger(__name__)
    >>> logger.warning("said once")
    >>> logger.warning("said by each rank", main_process_only=False)
    >>> logger.warning("said by rank 0, then 1, ...", in_order=True)
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper() if isinstance(log_level, str) else log_level)
    return RankLogger(logger, {})


class RankLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # no parameters on Python 3.10
    """A `logging.Logger` with a say in which ranks log; made by `get_logger`."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log on the ranks that are meant to.

        Parameters
        ----------
        level : int
            As for `logging.Logger.log`.
        msg : object
            The message, with ``%s`` for the further arguments.
        *args, **kwargs
            As for `logging.Logger.log`; ``main_process_only`` (True) and ``in_order`` (False) of
            our own. With ``in_order`` all ranks log, and have to make this call.
        """
        only_main = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        in_turn = in_order and PartialState.is_initialized()
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + _FRAMES + in_turn
        say = functools.partial(super().log, level, msg, *args, **kwargs)
        if in_turn:
            self._in_turn(say, level)
        elif in_order or not only_main or is_main_process():
            say()

    def _in_turn(self, say: functools.partial[None], level: int) -> None:
        facts = here()
        for rank in range(facts.place.world_size):
            if rank == facts.place.rank and self.isEnabledFor(level):
                say()
            facts.wait_for_everyone(None)

    def warning_once(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Warn, unless this logger has given the same warning before."""
        said = _said_by.setdefault(self.logger.name, set())
        if (key := (str(msg), args)) not in said:
            said.add(key)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + _FRAMES
            self.warning(msg, *args, **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave message and arguments as they are: there is nothing to add."""
        return msg, kwargs


_said_by: dict[str, set[tuple[str, tuple[Any, ...]]]] = {}
