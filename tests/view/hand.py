"""A job made by hand around real outputs: what a view reads, without processes."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbstate.job.output import RankOutput
from nbstate.options import LaunchOptions

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class HandRank:
    index: int
    output: RankOutput
    state: str = "running"
    pid: int | None = 4000
    exitcode: int | None = None
    memory: int | None = None
    doing: str = ""

    def says(self, text: str, stream: str = "stdout") -> None:
        self.output.feed(stream, text.encode())


@dataclass
class HandJob:
    log_dir: Path
    world_size: int
    name: str = "train"
    state: str = "running"
    elapsed: float = 1.25
    where: str = "2 CPU processes, gloo"
    error: Exception | None = None
    notes: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    options: LaunchOptions = field(default_factory=LaunchOptions)
    listeners: list[threading.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [
            HandRank(i, RankOutput(self.log_dir / f"rank{i}.log")) for i in range(self.world_size)
        ]

    @property
    def done(self) -> bool:
        return self.over.is_set()

    def over_within(self, seconds: float) -> bool:
        return self.over.wait(seconds)

    def listen(self, event: threading.Event) -> None:
        self.listeners.append(event)

    def unlisten(self, event: threading.Event) -> None:
        self.listeners.remove(event)

    def notify(self) -> None:
        for event in self.listeners:
            event.set()

    def end(self, state: str = "done") -> None:
        for rank in self.ranks:
            rank.output.finish()
            if rank.state == "running":
                rank.state = state
        self.state = state
        self.over.set()
        self.notify()


@dataclass
class Paper:
    """A place that keeps what is shown on it."""

    draws: bool = True
    watched: bool = True
    bounded: bool = True
    writes: list[tuple[str, str]] = field(default_factory=list)
    bundles: list[dict[str, str]] = field(default_factory=list)

    def write(self, stream: str, text: str) -> None:
        self.writes.append((stream, text))

    def flush(self) -> None:
        """What is written is there."""

    def show(
        self,
        bundle: dict[str, str],
        display_id: str | None = None,
        *,
        update: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.bundles.append(bundle)

    def text(self, stream: str | None = None) -> str:
        out = io.StringIO()
        for name, text in self.writes:
            if stream in (None, name):
                out.write(text)
        return out.getvalue()
