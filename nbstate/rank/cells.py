"""Cells of a notebook in a rank: run by IPython's shell there, so that they behave as cells do.

A forked rank has the kernel's own shell, of which what speaks to the page is replaced. A fresh one
gets a shell of its own, without history. Names live in `__main__`, as in the kernel.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from nbstate import values
from nbstate.mistakes import without
from nbstate.rank import bootstrap, failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

LONGEST = 200
"""Characters of a value in a table."""


_TORCH = f"{os.sep}torch{os.sep}"
_NO_GROUP = "Default process group has not been initialized"
REFUSED = "DistributedOperationException"
"""What a rank raises instead of a collective that the others do not call."""

_EXITS = "the cell ends here and the rank stays: session.close() ends the ranks"


class CellRaisedError(Exception):
    """A cell ended with `error`; `traceback` is what IPython shows of it, colours included."""

    def __init__(self, error: BaseException, traceback: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.traceback = traceback


# -- what the kernel asks a rank to do


def run(source: str, count: int, *, collect: bool) -> Any:
    """Run a cell; `count` is the number that it has in the notebook.

    Returns
    -------
    object
        With `collect` the value of the last expression, else None.

    Raises
    ------
    CellRaisedError
        The cell raised.
    """
    return _shell().run(source, count, collect=collect)


def call(
    new_cells: Mapping[str, tuple[str, list[str]]],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function of the notebook; `new_cells` are those that its traceback may name."""
    failure.learn_cells(new_cells)
    return bootstrap.call(function, args, kwargs)


def evaluate(expression: str) -> Any:
    """Return the value of an expression over the rank's names."""
    return eval(expression, names())


def described(expression: str) -> str:
    """Return the value of an expression in a line: of a tensor its kind and its mean."""
    return describe(evaluate(expression))


def assign(new: Mapping[str, Any]) -> None:
    """Give the rank variables."""
    names().update(new)


def pack(name: str) -> tuple[bytes, list[Any]]:
    """Return a variable's value, pickled for another rank of this session."""
    return values.dump(evaluate(name), name, values.names_in_main(), within_group=True)


def unpack(name: str, payload: bytes, buffers: Sequence[Any]) -> None:
    """Take a value that another rank has packed; a module only takes its weights."""
    value = values.load(payload, buffers)
    mine = names().get(name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(mine, torch.nn.Module) and type(mine) is type(value):
        mine.load_state_dict(value.state_dict())
    else:
        names()[name] = value


def complete(line: str, at: int) -> list[str]:
    """Return how the name before position `at` of a line may go on."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return [found.text for found in _shell().shell.Completer.completions(line, at)]


# -- names


def names() -> dict[str, Any]:
    """Return the namespace of the notebook."""
    return vars(sys.modules["__main__"])


def introduce(rank: int, world_size: int) -> None:
    """Let cells know `rank` and `world_size`, unless the notebook has other uses for the names."""
    names().setdefault("rank", rank)
    names().setdefault("world_size", world_size)


def describe(value: Any) -> str:
    """Return a value in one line.

    Examples
    --------
    >>> describe([1, 2])
    '[1, 2]'
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
        if not value.numel() or value.is_complex():
            return kind
        return f"{kind}, mean {value.detach().double().mean().item():.6g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


# -- the shell


@functools.cache
def _shell() -> _Cells:
    from IPython import get_ipython
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell: Any = get_ipython()
    if shell is None:
        config = Config()
        config.HistoryManager.enabled = False
        main = sys.modules["__main__"]
        shell = InteractiveShell.instance(config=config, user_module=main)
    return _Cells(shell)


class _Cells:
    """IPython's shell of this rank, with what spoke to the kernel's page replaced."""

    def __init__(self, shell: Any) -> None:
        from IPython.core import page

        self.shell = shell
        self.traceback: Sequence[str] = ()
        self._display()
        self.hook = _hook(shell)
        shell.displayhook = self.hook
        # The kernel was forked inside a cell, so that its own hook may be the one in force.
        sys.displayhook = shell.display_trap.hook = self.hook
        if not hasattr(shell.compile, "_filename_map"):
            shell.compile.get_code_name = self._name_by_number
        shell.Completer.use_jedi = False  # it takes a second to load, and the names live here
        shell._showtraceback = self._keep_traceback
        shell.InteractiveTB.structured_traceback = _pruning(shell.InteractiveTB)
        warnings.filterwarnings("ignore", "To exit: use 'exit'", UserWarning)  # of no use here
        shell.set_hook("show_in_pager", page.as_hook(_print_page), 0)  # type: ignore[no-untyped-call]

    def run(self, source: str, count: int, *, collect: bool) -> Any:
        self.hook.source, self.hook.value = source, None
        self.shell.execution_count = count
        self.traceback = ()
        result = self.shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise CellRaisedError(error, "\n".join(self.traceback)) from None
        return self.hook.value if collect else None

    def _name_by_number(self, _raw: str, code: str, _number: int) -> str:
        # IPython 7 in a kernel: its name has this process's number in it, and not the cell's.
        from IPython.core import compilerop

        return str(compilerop.code_name(code, self.shell.execution_count))

    def _keep_traceback(self, kind: type, _error: BaseException, lines: Sequence[str]) -> None:
        self.traceback = [_EXITS] if issubclass(kind, SystemExit) else lines

    def _display(self) -> None:
        """Have a fresh rank's drawings travel; a forked one's do already."""
        here = bootstrap.current
        if here is not None and bootstrap.talk is not None and here.surroundings is not None:
            from nbstate.rank import display

            display.install(bootstrap.talk, here.stdout, self.shell)


def _pruning(tracebacks: Any) -> Callable[..., Any]:
    """Return what makes IPython's tracebacks, but without lines that are of no use to the user."""
    make = tracebacks.structured_traceback

    def made(kind: type, error: BaseException, trace: TracebackType | None, **more: Any) -> Any:
        before = [(cause, cause.__traceback__) for cause in _chain(error)]
        try:
            for cause, whole in before:
                cause.__traceback__ = _pruned(whole, cause)
            return make(kind, error, _pruned(trace, error), **more)
        finally:
            for cause, whole in before:  # what ranks waited in is read from it
                cause.__traceback__ = whole

    return made


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _pruned(trace: TracebackType | None, error: BaseException) -> TracebackType | None:
    """Leave nbstate's own lines out, and torch's too where the mistake is the call."""
    torchs = is_of_the_call(error)

    def unwanted(part: TracebackType) -> bool:
        file = part.tb_frame.f_code.co_filename
        return failure.is_ours(file) or (torchs and _TORCH in file)

    return without(trace, unwanted) or trace


def is_of_the_call(error: BaseException) -> bool:
    """Tell whether a collective was refused before it began: the line that called it says all."""
    return lacks_group(error) or type(error).__name__ == REFUSED


def lacks_group(error: BaseException) -> bool:
    """Tell whether a collective was called before there was a process group."""
    return isinstance(error, (ValueError, RuntimeError)) and _NO_GROUP in str(error)


def _hook(shell: Any) -> Any:
    from IPython.core.displayhook import DisplayHook

    class Hook(DisplayHook):
        """Displays a cell's last value as a drawing, and remembers it."""

        source = ""
        value: Any = None

        def __call__(self, result: Any = None) -> None:
            self.value = result
            super().__call__(result)  # type: ignore[no-untyped-call]

        def quiet(self) -> bool:
            return self.source.rstrip().endswith(";")

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            shell.display_pub.publish(format_dict, md_dict)

        def log_output(self, format_dict: Any) -> None:
            pass

        def finish_displayhook(self) -> None:
            self._is_active = False

    return Hook(shell=shell)  # type: ignore[no-untyped-call]


def _print_page(text: Any, *_: Any, **__: Any) -> None:
    data = text.get("text/plain", "") if isinstance(text, dict) else text
    print(data)  # noqa: T201 - a page of help, in the cell's output
