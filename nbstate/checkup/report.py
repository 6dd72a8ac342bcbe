"""The doctor's report: one line for each thing that a launch depends on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from nbstate.table import as_html, as_text

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name
        What it is, such as ``start method``.
    status
        ``"ok"``; ``"note"``: it works, but something is worth knowing; ``"problem"``: it does not.
    text
        What was found.
    fix
        What to do about it, '' where there is nothing to do.
    """

    name: str
    status: Status
    text: str
    fix: str = ""


class Checkup(Sequence[Check]):
    """What the doctor found: a sequence of `Check`, always in the same order, shown as a table."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = list(checks)

    @property
    def problems(self) -> list[Check]:
        """The checks that say a launch would fail."""
        return [check for check in self._checks if check.status == "problem"]

    @overload
    def __getitem__(self, index: int) -> Check: ...

    @overload
    def __getitem__(self, index: slice) -> list[Check]: ...

    def __getitem__(self, index: int | slice) -> Check | list[Check]:
        return self._checks[index]

    def __len__(self) -> int:
        return len(self._checks)

    def __repr__(self) -> str:
        return as_text(
            [
                row
                for check in self._checks
                for row in (
                    (check.status, check.name, check.text),
                    *([("", "", f"-> {check.fix}")] if check.fix else []),
                )
            ]
        )

    def _repr_html_(self) -> str:
        rows = [(check.status, check.name, check.text, check.fix) for check in self._checks]
        return as_html(("", "what", "found", "what to do"), rows)


def doctor() -> Checkup:
    """Look at all that a launch from here depends on, and say what it would do and why.

    Nothing is changed, no device is woken and no process is started. The text is meant to be pasted
    into a bug report: it has no names of users or of home folders in it.

    Returns
    -------
    Checkup
        One line for each thing; ``ok``, ``note`` or ``problem``, with what to do about it.

    Examples
    --------
    >>> nbstate.doctor().problems                                   # doctest: +SKIP
    []
    """
    from nbstate.checkup.checks import CHECKS

    return Checkup([_anonymous(check()) for check in CHECKS])


def _anonymous(check: Check) -> Check:
    return Check(check.name, check.status, _without_home(check.text), _without_home(check.fix))


def _without_home(text: str) -> str:
    home = str(Path.home())
    if home != os.sep:
        text = re.sub(rf"{re.escape(home)}(?=[/\\]|\b|$)", "~", text)
    return re.sub(r"(/home|/Users|[A-Z]:\\Users)[/\\][^/\\\s]+", "~", text)
