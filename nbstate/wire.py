"""The messages that kernel and rank exchange: small frozen dataclasses, nothing else.

One `multiprocessing` connection per rank carries them, in order, in both directions. What a rank
writes to its standard output and error does not travel here but through two pipes, so that C code
and child programs are heard too; `mark` ties a drawing to its place in that text.

    rank   -> kernel:  Started, Pulse, Announced, Display, ClearOutput, CommMessage, Question,
                       Unasked, Returned, Failed
    kernel -> rank:    Look, Verdict, CommMessage, Answer, Leave

`nbstate.log` adds Logged, `nbstate.trace` Traced; an inspector asks with Inspect and is told with
Inspected.
Ranks of a session also hear Task, Cut and End, and answer a Task with a TaskDone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

MARK = re.compile(rb"\x1b\]nbstate;(\d+)\x07")
"""What a rank leaves in its standard output where something that is not text belongs."""


def mark(number: int) -> bytes:
    """Return the bytes that hold the place of message `number` in a rank's standard output."""
    return b"\x1b]nbstate;%d\x07" % number


@dataclass(frozen=True, slots=True)
class Started:
    """The rank is set up and calls the user's function next; `memory` is what it uses, in bytes."""

    memory: int


@dataclass(frozen=True, slots=True)
class Collective:
    """An operation that needs every rank of a group.

    `name` is the function called, `details` what it was given, such as ``SUM of float32[2, 3]``.
    `group` says whose it is, `members` are that group's global ranks. `number` counts the group's
    collectives from 1; 0 where it cannot be told. `where` is the line of the user's that called it.
    """

    name: str
    details: str = ""
    group: str = ""
    members: tuple[int, ...] = ()
    number: int = 0
    where: str = ""

    def __str__(self) -> str:
        what = f"{self.name} {self.details}".rstrip()
        return f"{what}, {self.call}" if self.number else what

    @property
    def call(self) -> str:
        """Which of the group's collectives it is, such as ``call 3 of the default group``."""
        return f"call {self.number} of the {self.group}"


@dataclass(frozen=True, slots=True)
class Look:
    """Say where you are; answered with a `Pulse`."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Where the rank is: sent when it has moved, at most once a second, and when asked.

    `calls` is how many collectives of the default group it has begun.
    """

    doing: str
    collective: Collective | None
    calls: int
    moved: bool = True


@dataclass(frozen=True, slots=True)
class Announced:
    """A traced rank is about to call a collective of a group; `key` is what all must agree on.

    It `waits` for a `Verdict`, unless the collective is to run in the background.
    """

    group: str
    collective: Collective
    key: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A traced rank no longer waits in call `number` of a group: it was interrupted."""

    group: str
    number: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """All members agree on the collective that was announced, or what is wrong with it."""

    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Display:
    """Something drawn: a mime bundle as IPython's `display_data` or `update_display_data`."""

    number: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    transient: dict[str, Any]
    update: bool = False

    @property
    def widget(self) -> str | None:
        """The id of the widget that it shows, or None."""
        view = self.data.get(WIDGET_MIME)
        return str(view["model_id"]) if view else None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """The rank asked to clear what it has shown so far; `wait`: once something new arrives."""

    number: int
    wait: bool


@dataclass(frozen=True, slots=True)
class CommMessage:
    """Traffic of a widget, either way; `kind` is comm_open, comm_msg or comm_close."""

    kind: str
    content: dict[str, Any]
    metadata: dict[str, Any]
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The rank waits for a line typed by the user."""

    number: int
    prompt: str
    password: bool = False


@dataclass(frozen=True, slots=True)
class Unasked:
    """The rank no longer waits for the answer to question `number`: it was interrupted."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The line typed, or why there is none: 'eof' or 'interrupt' with `text` as the reason."""

    number: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Every rank is done, or the run is over: exit, which also ends the process group."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned: the pickled value, and its buffers apart.

    `shared` is the length in bytes of the memory file whose descriptor follows this message, 0
    where there is none. `weights` are pickled state dicts, one for each module to be written back.
    `lingering` names what the function left running.
    """

    payload: bytes
    buffers: tuple[bytes | bytearray | tuple[int, int], ...]
    shared: int = 0
    weights: tuple[bytes, ...] = ()
    lingering: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Logged:
    """What `nbstate.log` was given since the last such message: `(step, values)` in order."""

    entries: tuple[tuple[int, dict[str, float]], ...]


STEP = "step"
"""The name of a span that is a step of an optimizer and no collective."""


@dataclass(frozen=True, slots=True)
class Span:
    """A collective of `size` bytes, or a step, which is one of an optimizer's.

    `scope` is within what it was counted, the same on all ranks: other groups may have the same
    members. `began` and `ended` are on the monotonic clock, in nanoseconds.
    """

    what: Collective
    scope: str
    size: int
    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class Traced:
    """The collectives and steps that a traced rank has ended since the last such message."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Tell of your states; answered with an `Inspected`."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """The facts of each state that there is, as text, by the state's name."""

    states: dict[str, dict[str, str]]


READY = 0
"""The number of the task that nobody asks for: a rank's first `TaskDone` tells that it is there."""


@dataclass(frozen=True, slots=True)
class Task:
    """A pickled `(function, args, kwargs)` that the rank calls when it has done those before.

    `shared` is as in `Returned`.
    """

    number: int
    payload: bytes
    buffers: tuple[bytes | bytearray | tuple[int, int], ...] = ()
    shared: int = 0


@dataclass(frozen=True, slots=True)
class TaskDone:
    """What a task returned, as in `Returned`, or how it `failed`; `seconds` it took."""

    number: int
    seconds: float
    payload: bytes = b""
    buffers: tuple[bytes | bytearray | tuple[int, int], ...] = ()
    shared: int = 0
    failed: Failed | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Shut these sockets down: `(descriptor, port of the other end)`. What waits on them fails."""

    sockets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class End:
    """No more tasks: return."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised, or its value could not travel.

    `when` is a reading of the machine's monotonic clock in nanoseconds, comparable between ranks.
    `where` is the innermost line of the user's own code; `collective` the operation it waited in.
    `exception` is the pickled exception where it can travel; `exit_code` what `sys.exit` was given.
    `returned`: the function had returned, and its value could not travel.
    """

    when: int
    type_name: str
    message: str
    traceback: str
    where: str = ""
    collective: str = ""
    interrupted: bool = False
    peer_lost: bool = False
    exit_code: int | None = None
    exception: bytes | None = None
    returned: bool = False
