"""What a rank tells of an exception: all that the kernel needs to explain it, as plain text.

The traceback begins in the user's function and has the notebook's own source lines; frames of
nbstate itself are left out. The exception object goes along where it can travel.
"""

from __future__ import annotations

import bdb
import functools
import linecache
import os
import re
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbstate import travel, values
from nbstate.wire import Failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType, TracebackType

LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 20_000

_OURS = f"{Path(__file__).resolve().parent.parent}{os.sep}"
_LOST_PEER = re.compile(
    "connection (was )?(likely )?(closed|reset)|broken pipe|socket.*closed|connection refused"
    "|peer(?! access| mapping)|remote process exited|application timeout caused pair closure",
    re.IGNORECASE,
)
# Where functions that need every rank live.
_COLLECTIVES = tuple(
    path.replace("/", os.sep)
    for path in (
        "torch/distributed/distributed_c10d.py",
        "torch/distributed/_functional_collectives.py",
        "nbstate/rank/functional.py",
    )
)
# Wherever: the environment's, the user's own, or the system's below a virtual environment.
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
_WAITING = f"{_OURS}state{os.sep}waiting.py"
_REDUCER = f"{_OURS}rank{os.sep}reducer.py"


def describe(error: BaseException) -> Failed:
    """Turn an exception into the message that travels to the kernel."""
    when = time.monotonic_ns()
    error = _without_late_interrupt(error)
    frames = _frames(error.__traceback__)
    interrupted = isinstance(error, (KeyboardInterrupt, bdb.BdbQuit))
    collective = _collective(error)
    message = _first_words(error)
    return Failed(
        when=when,
        type_name=_type_name(error),
        message=message,
        traceback="" if _says_it_all(error) else _shorten(_format(error), LONGEST_TRACEBACK),
        where=_where((frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)),
        collective=collective,
        interrupted=interrupted,
        peer_lost=_lost_its_peer(error, message, collective),
        exit_code=exit_code(error),
        exception=_pickled(error),
    )


def _without_late_interrupt(error: BaseException) -> BaseException:
    """Return what was on its way here when an interrupt came that met nobody's code but ours."""
    before = error.__context__
    if before is None or not isinstance(error, KeyboardInterrupt):
        return error
    ours = all(is_ours(frame.filename) for frame in _frames(error.__traceback__))
    return before if ours else error


def _says_it_all(error: BaseException) -> bool:
    """Whether a value cannot travel and no code of the user's stands behind that."""
    if not isinstance(error, values.UnpicklableError):
        return False
    causes = (error, error.__cause__)
    frames = [frame for cause in causes if cause for frame in _frames(cause.__traceback__)]
    return not any(is_users(frame.filename) for frame in frames)


def _lost_its_peer(error: BaseException, message: str, collective: str) -> bool:
    from_torch = isinstance(error, RuntimeError) and _LOST_PEER.search(message) is not None
    return from_torch or (isinstance(error, KeyboardInterrupt) and bool(collective))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__.partition(".")[0] in {"builtins", "__main__", "nbstate"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _first_words(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as trouble:
        return f"<its text could not be made: {type(trouble).__name__}>"
    return _shorten(text, LONGEST_MESSAGE)


def _shorten(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - longest:,} characters left out ...\n{text[-half:]}"


def exit_code(error: BaseException) -> int | None:
    """Return what the interpreter would exit with for a `SystemExit`, None for anything else."""
    if not isinstance(error, SystemExit):
        return None
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _pickled(error: BaseException) -> bytes | None:
    for form in (error, _Bare(error)):
        try:
            payload, buffers = travel.dump_back(form, "exception")
            travel.try_to_load(payload, buffers)  # many exceptions pickle but cannot be made again
        except Exception:
            continue
        if not buffers and len(payload) <= 1 << 20:
            return payload
    return None


class _Bare:
    """An exception that is made anew without its `__init__`, with all of it that can travel.

    Pickle would call that with `args`: with what the exception passed on, not with what it got.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        kept = {name: value for name, value in vars(self._error).items() if _travels(value)}
        return _remade, (type(self._error), self._error.args, kept)


def _travels(value: object) -> bool:
    try:
        travel.dump_back(value, "a part")
    except values.UnpicklableError:
        return False
    return True


def _remade(kind: type[BaseException], args: tuple[Any, ...], kept: Mapping[str, Any]) -> Any:
    made = kind.__new__(kind, *args)
    vars(made).update(kept)
    return made


# -- the traceback


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(trace))


def _format(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    _rename_cells(told, set())
    text = "".join(told.format())
    return re.sub(r'File "(Cell In\[\d+\]|notebook cell)", line', r"\1, line", text)


def _rename_cells(told: traceback.TracebackException | None, seen: set[int]) -> None:
    """Drop nbstate's frames and call cells by their number, along the whole chain of causes."""
    if told is None or id(told) in seen:
        return
    seen.add(id(told))
    kept = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    told.stack[:] = kept or list(told.stack)
    for frame in told.stack:
        _ = frame.line  # read the source now: it is found by the name that is replaced next
        frame.filename = cell_name(frame.filename)
    _rename_cells(told.__cause__, seen)
    _rename_cells(told.__context__, seen)
    for part in getattr(told, "exceptions", None) or ():
        _rename_cells(part, seen)


def is_ours(filename: str) -> bool:
    """Tell whether a source file is one of nbstate's own."""
    return filename.startswith(_OURS) or f"{os.sep}multiprocessing{os.sep}" in filename


cell_names: dict[str, str] = {}
"""Cells of the notebook by file name, where this process has no notebook of its own."""


def cells_of_notebook() -> dict[str, tuple[str, list[str]]]:
    """Return name and source of each cell run so far, by the file name that IPython gave it."""
    return {
        filename: (cell_name(filename), linecache.getlines(filename))
        for filename in list(linecache.cache)
        if is_cell(filename)
    }


def learn_cells(cells: Mapping[str, tuple[str, list[str]]]) -> None:
    """Know the kernel's cells, as `cells_of_notebook` tells of them, in tracebacks."""
    for name, (label, lines) in cells.items():
        cell_names[name] = label
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def cell_name(filename: str) -> str:
    """Return ``Cell In[3]`` for the file name that IPython gave that cell, others as they are."""
    if filename in cell_names:
        return cell_names[filename]
    if not is_cell(filename):
        return filename
    from IPython import get_ipython

    number = _number_of_cell(filename, get_ipython())
    return "notebook cell" if number is None else f"Cell In[{number}]"


def _number_of_cell(filename: str, shell: Any) -> int | None:
    if shell is None:
        return None
    if hasattr(shell.compile, "_filename_map"):
        number: int | None = shell.compile._filename_map.get(filename)
        return number
    # IPython 7: the file's name has the number in a terminal, in a notebook a hash of the text.
    named = re.match(r"<ipython-input-(\d+)-", filename)
    if named:
        return int(named[1])
    cells = enumerate(shell.history_manager.input_hist_raw)
    found = (number for number, text in cells if Path(filename).name in names_of_cell(text))
    return max(found, default=None)


@functools.cache
def names_of_cell(text: str) -> tuple[str, ...]:
    """Return what ipykernel may call the file of a cell with this source."""
    from ipykernel import compiler

    name: Any = compiler.get_file_name
    # Whole paths have the process's number. The history drops empty lines at the end.
    return tuple(Path(name(text + end)).name for end in ("", "\n"))


def is_cell(filename: str) -> bool:
    if "IPython" not in sys.modules:
        return False
    return "ipykernel_" in filename or filename.startswith("<ipython-input-")


def is_users(filename: str) -> bool:
    """Tell whether a source file is the user's own, not a library's."""
    generated = ("<frozen", "<eval_with_key>")  # the latter is what the compiler writes
    known = filename.startswith((_standard_library(), *generated)) or is_ours(filename)
    return not (known or _INSTALLED.search(filename))


@functools.cache
def _standard_library() -> str:
    return sysconfig.get_path("stdlib")


def line_in_words(filename: str, line: int, name: str) -> str:
    """Return a line of code as text, such as ``Cell In[3], line 2, in train: dist.barrier()``."""
    source = linecache.getline(filename, line).strip()
    text = f"{cell_name(filename)}, line {line}, in {name}"
    return f"{text}: {source}" if source else text


def where_of(frame: FrameType | None) -> str:
    """Return the innermost line that is the user's own, of a frame and those that called it."""
    return _where(
        (found.f_code.co_filename, found.f_lineno, found.f_code.co_name) for found in walk(frame)
    )


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _where(innermost_first: Iterable[tuple[str, int, str]]) -> str:
    return next((line_in_words(*code) for code in innermost_first if is_users(code[0])), "")


def collective_name(filename: str, function: str) -> str:
    """Return what a user calls this function, if it is one that needs every rank; else ``""``."""
    if filename == _WAITING and function == "for_everyone":
        return "wait_for_everyone"
    if filename == _REDUCER:
        return function if function.startswith(("all_reduce_", "broadcast_")) else ""
    public = not function.startswith(("_", "<"))
    return function if public and filename.endswith(_COLLECTIVES) else ""


def _collective(error: BaseException) -> str:
    """Return the collective under way, also where an interrupt came on top of its error."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        for frame in _frames(cause.__traceback__):
            name = collective_name(frame.filename, frame.name)
            if name:
                return name
        cause = cause.__cause__ or cause.__context__
    return ""
