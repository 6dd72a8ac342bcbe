"""A logger that knows its rank and makes no state."""

from __future__ import annotations

import logging

import pytest

from nbstate import PartialState, debug_launcher, get_logger


@pytest.fixture
def said(caplog):
    with caplog.at_level(logging.DEBUG, "nbstate.tests"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_alone_everything_is_said(said):
    logger = get_logger("nbstate.tests")

    logger.info("one %d", 1)
    logger.warning("two", main_process_only=False)
    logger.error("three", in_order=True)

    assert said() == ["one 1", "two", "three"]
    assert not PartialState.is_initialized()


def test_another_rank_is_silent_unless_asked_for(said, monkeypatch):
    monkeypatch.setenv("RANK", "1")  # half set on purpose: asking never fails
    logger = get_logger("nbstate.tests")

    logger.info("for the main process")
    logger.info("for all", main_process_only=False)
    logger.info("in order, as well as it can be told", in_order=True)

    assert said() == ["for all", "in order, as well as it can be told"]
    assert not PartialState.is_initialized()


def test_a_record_names_the_line_that_logged(caplog):
    logger = get_logger("nbstate.tests")

    logger.warning("here")
    logger.log(logging.WARNING, "and here")
    logger.warning_once("here, once")
    try:
        raise ValueError
    except ValueError:
        logger.exception("with a traceback")

    assert {record.funcName for record in caplog.records} == {
        "test_a_record_names_the_line_that_logged"
    }
    assert caplog.records[-1].exc_info[0] is ValueError


def test_a_warning_once_is_given_once(said):
    for _ in range(3):
        get_logger("nbstate.tests").warning_once("watch out for %s", "this")
    get_logger("nbstate.tests").warning_once("watch out for %s", "that")

    assert said() == ["watch out for this", "watch out for that"]


def test_a_level_is_set():
    assert get_logger("nbstate.tests.level", "debug").logger.level == logging.DEBUG
    assert get_logger("nbstate.tests.level").logger.level == logging.DEBUG


def test_in_order_every_rank_speaks_one_after_the_other(tmp_path):
    said = tmp_path / "said"

    def speak():
        logger = get_logger("nbstate.tests.order", "INFO")
        handler = logging.FileHandler(said)
        handler.setFormatter(logging.Formatter("%(funcName)s: %(message)s"))
        logger.logger.addHandler(handler)
        rank = PartialState().process_index
        for turn in range(3):
            logger.info("%d %d", turn, rank, in_order=True)
            logger.info("%d %d", turn, rank, main_process_only=turn == 1, in_order=True)
        PartialState().wait_for_everyone()
        logger.info("main")

    debug_launcher(speak, num_processes=3)
    turns = [f"speak: {turn} {rank}" for turn in range(3) for _ in "ab" for rank in range(3)]
    assert said.read_text().splitlines() == [*turns, "speak: main"]
