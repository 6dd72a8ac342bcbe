"""What a page is sent of one rank: little at a time, and the end of it for a page that comes late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbstate.job.output import RankOutput
from nbstate.view.changes import LINES_PER_FLUSH, SNAPSHOT, RankChanges
from tests.view.hand import HandRank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[HandRank]:
    rank = HandRank(3, RankOutput(tmp_path / "rank3.log"))
    yield rank
    rank.output.finish()


def test_one_flush_has_few_lines_and_counts_the_others(rank: HandRank) -> None:
    changes = RankChanges(rank)
    for i in range(1000):
        rank.says(f"{i}\n")
    marker, *kept = [entry.text for entry in changes.read(10_000)]
    assert f"... {1000 - LINES_PER_FLUSH} lines only in {rank.output.path}" in marker
    assert kept[-1] == "999\n"
    assert len(kept) == LINES_PER_FLUSH


@pytest.mark.parametrize("room", [0, 1, 50, 5000])
def test_one_flush_has_few_characters(rank: HandRank, room: int) -> None:
    changes = RankChanges(rank)
    rank.says("".join(f"{'x' * 39}{i}\n" for i in range(10)))
    entries = changes.read(room)
    lines = [line for entry in entries for line in entry.text.splitlines()]
    told = [line for line in lines if "only in" not in line]
    assert sum(len(line) + 1 for line in told) <= max(room, 0)
    left_out = [int(line.split()[1]) for line in lines if "only in" in line]
    assert len(told) + sum(left_out) == 10


def test_a_line_without_end_is_bounded(rank: HandRank) -> None:
    changes = RankChanges(rank)
    rank.says("x" * 200_000)
    assert sum(len(entry.text) for entry in changes.read(10_000)) == 10_000


def test_what_a_late_page_gets_is_bounded_and_keeps_drawings(rank: HandRank) -> None:
    changes = RankChanges(rank)
    changes.draw("model")
    for i in range(1000):
        rank.says(f"line {i:4} {'x' * 90}\n")
        for entry in changes.read(10_000):
            changes.text(entry)
    assert changes.recent[0] == [3, "draw", "model"]
    assert sum(len(change[2]) for change in changes.recent) <= SNAPSHOT + len("model")
    assert changes.recent[-1][2].startswith("line  999")
    assert changes.drop("model") == [3, "drop", "model"]
    assert changes.clear() == [3, "clear"]
    assert not changes.recent
