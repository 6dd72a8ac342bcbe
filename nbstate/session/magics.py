"""`%%ranks` and its kin: cells that run on the ranks of a session.

%%ranks 0,2        a cell on these ranks           %ranks expr        a table, a row per rank
%autoranks on      every cell on all ranks         %%kernel           a cell that is not
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from nbstate import memory
from nbstate.rank import bootstrap
from nbstate.session import current
from nbstate.session.selection import select
from nbstate.view.page import duration
from nbstate.view.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbstate.job.ranks import Rank
    from nbstate.results import RankResults
    from nbstate.session import Session

OURS = ("%%ranks", "%ranks", "%autoranks")
KERNEL = "%%kernel"


@magics_class
class RankMagics(Magics):
    """The magics, for the session that was opened last."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._user = shell
        self.automatic = False
        self._cells = threading.local()  # a subshell is a thread, and runs cells of its own

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> object:
        """Run a cell on ranks, or show an expression's value on each.

        ::

            %%ranks                       %%ranks 0,2    %%ranks 1:    %%ranks -1    %%ranks main
            %%ranks 0 --out losses        # the last expression's value per rank, in the kernel
            %%ranks --quiet               # show nothing of what they print
            %%ranks --time                # each rank's time, and the spread
            %ranks loss.item()            # a table, differences marked
            %ranks --status               # what each rank is doing
        """
        if cell is not None:
            self._run(line, cell)
            return None
        if line.strip() == "--status":
            return Table(("rank", "pid", "state", "memory"), _status(_session()))
        if not line.strip():
            raise UsageError("%ranks: give an expression such as loss.item(), or --status")
        return self._table(line)

    @line_magic
    def autoranks(self, line: str) -> None:
        """Have every cell run on all ranks (on), or not (off)."""
        chosen = line.strip()
        if chosen not in ("on", "off"):
            raise UsageError(f"%autoranks {chosen}: on or off")
        self.automatic = chosen == "on"

    def _run(self, line: str, cell: str) -> None:
        options = _parsed(line)
        session = _session()
        try:
            ranks = select(options.ranks, session.world_size)
        except ValueError as error:
            raise UsageError(f"%%ranks: {error}") from None
        source = (
            cell if cell.lstrip().startswith("%%") else f"# %%ranks {line}".rstrip() + f"\n{cell}"
        )
        results: RankResults | None = None
        try:
            results = session.cell(
                source,
                ranks,
                collect=options.out is not None,
                count=_number_of_cell(self._user),
                quiet=options.quiet,
            )
        finally:
            if options.time:
                session.tell(_times(session.seconds))
        if options.out is not None:
            self._user.user_ns[options.out] = results

    def _table(self, expression: str) -> Table:
        session = _session()
        found = session.describe(expression)
        return Table(("rank", expression), list(enumerate(found)), marked=_odd(found))

    # -- cells before they are parsed

    @property
    def _running(self) -> int:
        return getattr(self._cells, "running", 0)

    def cell_begins(self, _info: object) -> None:
        """Count cells that run: one may run others."""
        self._cells.running = self._running + 1

    def cell_ends(self, _result: object) -> None:
        """A cell is over, perhaps one whose beginning nobody counted."""
        self._cells.running = max(0, self._running - 1)

    def route(self, lines: list[str]) -> list[str]:
        """Send a cell to the ranks where `%autoranks` is on; `%%kernel` keeps it here."""
        first = next((line.strip() for line in lines if line.strip()), "")
        if first == KERNEL:
            at = next(i for i, line in enumerate(lines) if line.strip())
            rest = lines[at + 1 :]
            magic = rest and rest[0].startswith("%%")
            return rest if magic else [f"# {KERNEL}\n", *rest]
        if not self.automatic or not first or first.startswith(OURS) or self._is_here():
            return lines
        return ["%%ranks\n", *lines]

    def _is_here(self) -> bool:
        """Tell whether what is about to be parsed belongs into this process in any case.

        That is what a magic such as %%time parses inside a cell, and all that a rank runs.
        """
        return self._running > 0 or bootstrap.current is not None or self._is_silent()

    def _is_silent(self) -> bool:
        """Tell whether a front end asks for itself, not the user."""
        kernel = getattr(self._user, "kernel", None)
        if kernel is None:
            return False
        request = kernel.get_parent("shell")
        return bool((request or {}).get("content", {}).get("silent", False))

    def complete(self, cell: str, line: str) -> list[str]:
        """Return how a line may go on with names that live in ranks, in cells that run there.

        Parameters
        ----------
        cell
            The whole cell.
        line
            Its line with the cursor, up to there.
        """
        if not (self.automatic or cell.lstrip().startswith(("%%ranks", "%ranks"))):
            return []
        expression = line.removeprefix("%ranks ")
        try:
            return current().complete(expression, len(expression))
        except RuntimeError:  # no session
            return []


def register(shell: Any) -> None:
    """Give a shell the magics; a second time changes nothing."""
    if any(isinstance(known, RankMagics) for known in shell.magics_manager.registry.values()):
        return
    magics = RankMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(magics.route)
    # Not pre_execute: callbacks of widgets are told of as well, and not of each one's end.
    shell.events.register("pre_run_cell", magics.cell_begins)
    shell.events.register("post_run_cell", magics.cell_ends)
    _complete_with(shell, magics)


def _complete_with(shell: Any, magics: RankMagics) -> None:
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        _complete_before_8_6(shell.Completer, magics)
        return

    @context_matcher()  # type: ignore[untyped-decorator]
    def names_of_ranks(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position]
        found = magics.complete(context.full_text, line)
        return {"completions": [SimpleCompletion(text) for text in found]}

    shell.Completer.custom_matchers.append(names_of_ranks)


def _complete_before_8_6(completer: Any, magics: RankMagics) -> None:
    """Complete by a matcher of IPython 7, which is only told of the line with the cursor."""
    complete, cell = completer.completions, ""

    def completions(text: str, offset: int) -> Any:
        nonlocal cell
        cell = text
        return complete(text, offset)

    def names_of_ranks(_token: str) -> list[str]:
        return magics.complete(cell, completer.text_until_cursor)

    completer.completions = completions
    completer.custom_matchers.append(names_of_ranks)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%ranks: {message}")


def _parsed(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument("--out")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--time", action="store_true")
    options, rest = parser.parse_known_args(shlex.split(line))
    unknown = [word for word in rest if word.startswith("--")]
    if unknown:
        raise UsageError(f"%%ranks: unknown option {unknown[0]}; --out NAME, --quiet, --time")
    if options.out is not None and not options.out.isidentifier():
        raise UsageError(f"%%ranks: --out {options.out}: expected the name of a variable")
    options.ranks = re.sub(r"\s*,\s*|\s+", ",", " ".join(rest))
    return options


def _number_of_cell(shell: Any) -> int:
    """Return the number that the running cell has in the notebook.

    Not `execution_count`: some versions of IPython have counted on before the cell runs.
    """
    return len(shell.history_manager.input_hist_parsed) - 1


def _session() -> Session:
    try:
        return current()
    except RuntimeError as error:
        raise UsageError(str(error)) from None


def _odd(values: Sequence[str]) -> list[int]:
    """Return the places of the values that are not the most frequent one."""
    usual, _ = Counter(values).most_common(1)[0]
    return [i for i, value in enumerate(values) if value != usual]


def _times(seconds: Mapping[int, float]) -> str:
    if not seconds:
        return "no rank has told how long it took"
    told = ", ".join(f"rank {rank} {_time(took)}" for rank, took in sorted(seconds.items()))
    spread = max(seconds.values()) - min(seconds.values())
    middle = statistics.median(seconds.values())
    return f"{told}; median {_time(middle)}, spread {_time(spread)}"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else duration(seconds)


def _status(session: Session) -> list[tuple[object, ...]]:
    return [
        (rank.index, rank.pid, _state(session, rank), memory.in_words(rank.memory or 0))
        for rank in session.ranks
    ]


def _state(session: Session, rank: Rank) -> str:
    if rank.alive:
        at_work = session.doing is not None and rank.index in session.doing.pending
        return rank.doing if at_work and rank.doing else "idle"
    from nbstate.errors import end_in_words

    return end_in_words(rank.exitcode)
