"""Ranks that wait for one another without a collective."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from nbstate import PartialState, debug_launcher, gather_object
from nbstate.state import waiting
from nbstate.state.waiting import StoreWaiting


@pytest.mark.slow
def test_an_hour_on_rank_0_ends_nobody_while_collectives_keep_their_timeout(capfd):
    def prepare():
        state = PartialState(timeout=timedelta(seconds=5))
        if state.is_main_process:
            time.sleep(12)  # the hour; longer than the timeout is what matters
        state.wait_for_everyone()
        if not state.is_main_process:
            began = time.monotonic()
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1))
            return time.monotonic() - began
        # Rank 0 stays away from the collective without leaving, which would end it earlier.
        state.wait_for_everyone()
        return None

    def prepare_and_meet():
        took = prepare()
        if took is not None:
            PartialState().wait_for_everyone()
        return took

    nobody, took = debug_launcher(prepare_and_meet)

    assert nobody is None
    assert took >= 4.5
    out = capfd.readouterr()
    assert "rank 1 is waiting for rank 0 since 5 s" in out.out + out.err


def test_waits_are_in_step_however_often_and_across_resets():
    def meet():
        for _ in range(30):
            PartialState().wait_for_everyone()
        PartialState.reset()
        for _ in range(30):
            PartialState().wait_for_everyone()
        return "met"

    assert list(debug_launcher(meet, num_processes=4)) == ["met"] * 4


def test_a_timeout_names_who_is_missing_and_the_wait_can_be_made_again():
    def meet():
        state = PartialState()
        told = ""
        if state.process_index == 0:
            with pytest.raises(TimeoutError) as caught:
                state.wait_for_everyone(timeout=0.2)
            told = str(caught.value)
            dist.barrier()  # only now the others may come
        else:
            dist.barrier()
        state.wait_for_everyone(timeout=timedelta(minutes=1))
        return told

    results = debug_launcher(meet, num_processes=3)

    assert results[0].startswith("rank 0 waited 0.2 s for ranks 1, 2")


def test_main_process_first():
    def prepare(folder):
        state = PartialState()
        with state.main_process_first():
            seen = sorted(path.name for path in folder.iterdir())
            (folder / str(state.process_index)).touch()
        with state.local_main_process_first():
            return seen

    def in_a_folder():
        import pathlib
        import tempfile

        folder = [None]
        if PartialState().is_main_process:
            folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        return prepare(pathlib.Path(folder[0]))

    first, *others = debug_launcher(in_a_folder, num_processes=3)

    assert first == []
    assert all("0" in seen for seen in others)


def test_an_exception_on_the_first_releases_the_others_with_its_text():
    def prepare():
        state = PartialState()
        try:
            with state.main_process_first():
                if state.is_main_process:
                    raise ValueError("no such dataset")
                return "went on"
        except (ValueError, RuntimeError) as error:
            told = f"{type(error).__name__}: {error}"
        # and the next turn is a turn of its own
        with state.main_process_first():
            return told

    assert list(debug_launcher(prepare)) == [
        "ValueError: no such dataset",
        "RuntimeError: rank 0 went first and failed: ValueError: no such dataset",
    ]


@pytest.mark.parametrize(
    "meet",
    [
        lambda: PartialState().wait_for_everyone(),
        lambda: gather_object(1),
        PartialState.on_main_process(lambda: 1, share=True),
    ],
)
def test_meeting_the_others_before_they_may_enter_is_an_error_and_no_hang(meet):
    def prepare():
        try:
            with PartialState().main_process_first():
                meet()
        except RuntimeError as error:
            return str(error)

    first, second = debug_launcher(prepare)

    assert "the other ranks wait for rank 0 to leave that block" in first
    assert first in second


def test_an_exception_on_another_rank_leaves_the_next_turn_in_order():
    def prepare():
        state = PartialState()
        for _ in range(3):
            try:
                with state.main_process_first():
                    if not state.is_main_process:
                        raise ValueError
            except ValueError:
                pass
        state.wait_for_everyone()
        return "done"

    assert list(debug_launcher(prepare)) == ["done"] * 2


def two_ranks():
    store = dist.HashStore()
    return store, StoreWaiting(store, 0, 2), StoreWaiting(store, 1, 2)


def test_an_interrupted_wait_is_taken_back(monkeypatch):
    _, first, second = two_ranks()

    def interrupted(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.for_everyone()
    monkeypatch.undo()

    thread = threading.Thread(target=second.for_everyone)
    thread.start()
    first.for_everyone()
    thread.join()


def test_words_are_removed_once_all_have_read_them():
    store, first, second = two_ranks()
    before = store.num_keys()

    for text in ("", "an error"):
        first.leave_word("main/0", text, readers=1)
        assert second.await_word("main/0", 0, 1) == text

    assert store.num_keys() == before + 2  # the two counts of turns


def test_notices_come_ever_less_often(monkeypatch, capsys):
    _, first, _ = two_ranks()
    clock = iter([0.0, *(float(second) for second in range(1, 400))])
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(waiting.time, "sleep", lambda _: None)

    with pytest.raises(TimeoutError):
        first.for_everyone(timeout=300)

    assert capsys.readouterr().err.splitlines() == [
        f"rank 0 is waiting for rank 1 since {time}"
        for time in ("5 s", "10 s", "20 s", "40 s", "80 s", "3 min")
    ]
