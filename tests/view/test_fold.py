from __future__ import annotations

import itertools

import pytest

from nbstate.view.fold import Said, fold, ranges


def folded(**lines: str) -> list[str]:
    said = {int(rank[1:]): [Said("stdout", c) for c in text] for rank, text in lines.items()}
    return [f"{ranges(f.ranks)}{f.line.text}" for f in fold(said)]


@pytest.mark.parametrize(
    ("ranks", "short"),
    [((0,), "0"), ((0, 1, 2, 3), "0-3"), ((2, 0), "0,2"), ((0, 1, 5, 7, 8, 9), "0-1,5,7-9")],
)
def test_ranges(ranks: tuple[int, ...], short: str) -> None:
    assert ranges(ranks) == short


def test_equal_lines_stand_once() -> None:
    assert folded(r0="ab", r1="ab", r2="ab") == ["0-2a", "0-2b"]


def test_different_lines_alternate_between_equal_ones() -> None:
    assert folded(r0="hxyz", r1="hXYz") == ["0-1h", "0x", "1X", "0y", "1Y", "0-1z"]


def test_a_line_waits_for_the_rank_that_will_say_it_too() -> None:
    assert folded(r0="ab", r1="xyab") == ["1x", "1y", "0-1a", "0-1b"]


def test_a_crossing_is_not_folded_against_a_ranks_order() -> None:
    assert folded(r0="ab", r1="ba") in (["0a", "0-1b", "1a"], ["1b", "0-1a", "0b"])


def test_streams_are_not_mixed() -> None:
    lines = {0: [Said("stdout", "a")], 1: [Said("stderr", "a")]}
    assert [(f.ranks, f.line.stream) for f in fold(lines)] == [((0,), "stdout"), ((1,), "stderr")]


def test_every_line_of_every_rank_is_there_in_its_order() -> None:
    for texts in itertools.product(["", "a", "ab", "aab", "ba", "bcab"], repeat=3):
        lines = dict(zip(("r0", "r1", "r2"), texts, strict=True))
        for rank, text in enumerate(texts):
            said = {i: [Said("stdout", c) for c in t] for i, t in enumerate(texts)}
            assert "".join(f.line.text for f in fold(said) if rank in f.ranks) == text, lines


def test_the_order_in_which_ranks_are_given_does_not_matter() -> None:
    lines = {0: [Said("stdout", c) for c in "axb"], 1: [Said("stdout", c) for c in "ayb"]}
    assert fold(lines) == fold(dict(reversed(lines.items())))
