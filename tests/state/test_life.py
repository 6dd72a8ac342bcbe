"""A beginning and an end: singletons, resets, objects that no longer hold."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nbstate import AcceleratorState, GradientState, PartialState
from nbstate.state import enter_replica, fresh_states, reset_all

ALL = (PartialState, AcceleratorState, GradientState)


def test_every_object_shows_the_same():
    state, other = GradientState(), GradientState()

    state.sync_gradients = False

    assert other.sync_gradients is False


@pytest.mark.parametrize("cls", ALL)
def test_asking_whether_it_exists_makes_nothing(cls):
    assert not cls.is_initialized()
    state = cls()
    assert cls.is_initialized()
    assert state.initialized


@pytest.mark.parametrize("cls", ALL)
def test_reset_of_one_ends_all_three_and_old_objects_say_where(cls):
    made = [each() for each in ALL]

    cls.reset()  # this line is named

    assert not any(each.is_initialized() for each in ALL)
    for state in made:
        assert not state.initialized
        with pytest.raises(AttributeError) as caught:
            _ = state.sync_gradients if isinstance(state, GradientState) else state.process_index
        told = str(caught.value)
        assert f"{cls.__name__}.reset() at {__file__}:" in told
        assert f"Make a new one with {type(state).__name__}()" in told
        assert "no longer holds" in repr(state)


def test_an_old_object_does_not_come_back_to_life_with_a_new_one():
    old = PartialState()
    PartialState.reset()

    new = PartialState()

    assert new.process_index == 0
    with pytest.raises(AttributeError, match="no longer holds"):
        _ = old.process_index


@pytest.mark.parametrize("cls", ALL)
def test_a_with_block_leaves_no_state_behind(cls):
    with cls() as state:
        assert state.initialized
        GradientState()

    assert not any(each.is_initialized() for each in ALL)
    with pytest.raises(AttributeError, match=f"`with {cls.__name__}"):
        state.print() if cls is not GradientState else state.num_steps


def test_settings_can_change_between_with_blocks():
    with AcceleratorState(mixed_precision="no") as state:
        assert state.mixed_precision == "no"
    with AcceleratorState(mixed_precision="bf16") as state:
        assert state.mixed_precision == "bf16"


def test_private_resets_that_other_libraries_call():
    partial, accelerator, gradient = PartialState(), AcceleratorState(), GradientState()

    GradientState._reset_state()
    assert (gradient.initialized, accelerator.initialized, partial.initialized) == (
        False,
        True,
        True,
    )
    AcceleratorState._reset_state()
    assert (accelerator.initialized, partial.initialized) == (False, True)
    AcceleratorState()
    AcceleratorState._reset_state(True)
    assert not partial.initialized


def test_no_accelerator_state_is_left_standing_on_nothing():
    accelerator = AcceleratorState()

    PartialState._reset_state()

    with pytest.raises(AttributeError, match=r"PartialState\._reset_state"):
        _ = accelerator.mixed_precision


def test_the_reason_of_reset_all_is_told():
    state = PartialState()

    reset_all("the moon was full")

    with pytest.raises(AttributeError, match="the moon was full"):
        _ = state.device


def test_fresh_states_give_back_what_was_there():
    before = AcceleratorState(mixed_precision="bf16")

    with fresh_states("the block was over"):
        assert not PartialState.is_initialized()
        inside = AcceleratorState(mixed_precision="no")

    assert before.mixed_precision == AcceleratorState().mixed_precision == "bf16"
    with pytest.raises(AttributeError, match="the block was over"):
        _ = inside.mixed_precision


@pytest.mark.parametrize("cls", ALL)
def test_a_copy_is_the_same_state_and_a_pickled_one_is_not_ours(cls):
    state = cls()

    assert copy.deepcopy([state])[0] is state
    arrived = pickle.loads(pickle.dumps(state))
    assert not arrived.initialized
    assert "another process" in repr(arrived)


def test_one_thread_at_a_time_makes_the_state():
    starting = threading.Barrier(8)

    def make(_):
        starting.wait()
        state = GradientState()
        return state._life

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1


def test_replicas_as_threads_have_their_own_and_helpers_their_replicas():
    outside = GradientState()
    seen = {}
    both = threading.Barrier(2)

    def helper(name):
        seen[name, "helper"] = GradientState().num_steps
        with ThreadPoolExecutor(1) as pool:
            seen[name, "helper's helper"] = pool.submit(lambda: GradientState().num_steps).result()

    def replica(name):
        enter_replica()
        state = GradientState()
        state.plugin_kwargs = {"num_steps": name}
        both.wait()
        thread = threading.Thread(target=helper, args=(name,))
        thread.start()
        thread.join()
        seen[name] = state.num_steps
        GradientState.reset()
        both.wait()

    threads = [threading.Thread(target=replica, args=(name,)) for name in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = {2: 2, 3: 3}
    expected |= {(n, who): n for n in (2, 3) for who in ("helper", "helper's helper")}
    assert seen == expected
    assert outside.num_steps == 1
