"""A rank's pulse: unfinished lines are sent, a sign that it moves, and word of where it is.

A thread sends ten times a second what Python holds back of a line that has no end yet, and looks at
the main thread's frames once a second. It speaks only if they have moved since,
so a rank that waits says nothing, and silence means something.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING

from nbstate.rank import background, capture, collectives, failure
from nbstate.wire import Look, Pulse

if TYPE_CHECKING:
    from types import FrameType

    from nbstate.rank.channel import Channel

EVERY = 0.1
"""Seconds between two beats."""
LOOK_EVERY = 10
"""Beats between two looks."""

# Somebody who waits in one of these looks at the clock now and then, and does not move.
_WAITING_ROOMS = ("nbstate/state/waiting.py", "nbstate/rank/stdin.py")


def start(channel: Channel) -> None:
    """Begin to tell the kernel where this process's main thread is."""
    channel.handlers[Look] = lambda _: channel.send(_look(moved=False))
    background.run(_beat, channel, threading.Event())


def _beat(channel: Channel, never: threading.Event) -> None:
    before = None
    for beat in itertools.count(1):
        never.wait(EVERY)
        capture.flush()
        if beat % LOOK_EVERY:
            continue
        now = _position()
        if now != before:
            channel.send(_look(moved=before is not None))  # the first look has none before it
            before = now


def _look(*, moved: bool) -> Pulse:
    frame = _main_frame()
    collective = collectives.of_thread(frame)
    doing = failure.where_of(frame)
    if collective is not None:
        doing = f"in {collective.name}: {doing}"
    return Pulse(doing, collective, collectives.calls(), moved)


def _position() -> object:
    """Return something that changes when the main thread gets on."""
    frames = list(failure.walk(_main_frame()))
    waits = [i for i, f in enumerate(frames) if f.f_code.co_filename.endswith(_WAITING_ROOMS)]
    kept = frames[waits[-1] + 1 :] if waits else frames
    return collectives.calls(), tuple((f.f_code, f.f_lasti) for f in kept)


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)
