"""GradientState: settings, and the dataloaders being iterated."""

from __future__ import annotations

import contextlib
import gc

import accelerate.utils
import pytest

from nbstate import (
    AcceleratorState,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradientState,
)


class Loader:
    """What a dataloader of nbstate.train does with the state."""

    def __init__(self, length, remainder=0):
        self.length = length
        self.remainder = remainder
        self.end_of_dataloader = False

    def __iter__(self):
        state = GradientState()
        state._add_dataloader(self)
        try:
            for item in range(self.length):
                self.end_of_dataloader = item == self.length - 1
                yield item
        finally:
            state._remove_dataloader(self)


def test_at_the_start():
    state = GradientState()

    assert state.sync_gradients is True
    assert (state.end_of_dataloader, state.remainder) == (False, -1)
    assert (state.in_dataloader, state.active_dataloader) == (False, None)
    assert state.dataloader_references == []
    assert (state.num_steps, state.adjust_scheduler) == (1, False)
    assert (state.sync_with_dataloader, state.sync_each_batch) == (True, False)
    assert state.is_xla_gradients_synced is False
    assert state.plugin_kwargs == {}
    assert repr(state).splitlines() == [
        "Sync gradients: True",
        "In dataloader: False",
        "End of dataloader: False",
        "Remainder: -1",
        "Num steps: 1",
        "Plugin settings: {}",
    ]


def test_a_later_plugin_updates_the_same_state():
    state = GradientState(GradientAccumulationPlugin(num_steps=4, sync_each_batch=True))
    state.sync_gradients = False

    GradientState()
    assert (state.num_steps, state.sync_each_batch) == (4, True)
    GradientState(
        GradientAccumulationPlugin(num_steps=2, adjust_scheduler=True, sync_with_dataloader=False)
    )

    assert (state.num_steps, state.sync_each_batch, state.adjust_scheduler) == (2, False, True)
    assert state.sync_with_dataloader is False
    assert state.sync_gradients is False


def test_the_plugin_of_accelerate_is_taken():
    assert GradientState(accelerate.utils.GradientAccumulationPlugin(num_steps=3)).num_steps == 3


def test_something_else_in_the_plugins_place():
    with pytest.raises(TypeError, match="must be a GradientAccumulationPlugin, not 4"):
        GradientState(4)


def test_what_other_libraries_call():
    state = GradientState()

    state._set_sync_gradients(False)
    state.plugin_kwargs = {"num_steps": 8}

    assert GradientState().sync_gradients is False
    assert GradientState().num_steps == 8


def test_the_innermost_loader_is_the_active_one():
    state, outer, inner = GradientState(), Loader(2, remainder=3), Loader(3, remainder=1)

    seen = []
    for _ in outer:
        for _ in inner:
            seen.append((state.active_dataloader is inner, state.end_of_dataloader))
            assert state.remainder == 1
            assert state.dataloader_references == [outer, inner]
        assert state.active_dataloader is outer
        assert state.remainder == 3

    assert seen == [(True, False), (True, False), (True, True)] * 2
    assert not state.in_dataloader


def leave_by_break(inner):
    for _ in inner:
        break


def leave_by_return(inner):
    for _ in inner:
        return


def leave_by_exception(inner):
    with contextlib.suppress(ValueError):
        for _ in inner:
            raise ValueError


def leave_by_forgetting_the_iterator(inner):
    iterator = iter(inner)
    next(iterator)
    assert GradientState().active_dataloader is inner


def leave_by_forgetting_the_loader(_):
    loader = Loader(3)
    GradientState()._add_dataloader(loader)
    assert GradientState().active_dataloader is loader
    del loader
    gc.collect()


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_return,
        leave_by_exception,
        leave_by_forgetting_the_iterator,
        leave_by_forgetting_the_loader,
    ],
)
def test_leaving_a_loop_in_any_way_restores_the_outer_loader(leave):
    state, outer = GradientState(), Loader(1)

    for _ in outer:
        leave(Loader(3))
        assert state.active_dataloader is outer
        assert state.dataloader_references == [outer]


def test_one_loader_iterated_within_itself():
    state, loader = GradientState(), Loader(2)

    for _ in loader:
        for _ in loader:
            pass
        assert state.dataloader_references == [loader]
    assert not state.in_dataloader


def test_removing_a_loader_that_is_not_there_changes_nothing():
    state, outer = GradientState(), Loader(1)
    state._add_dataloader(outer)

    state._remove_dataloader(Loader(1))

    assert state.active_dataloader is outer


def test_gradients_are_always_synced_for_xla_under_fsdp():
    state = GradientState()
    state.is_xla_gradients_synced = True
    assert state.is_xla_gradients_synced is True
    state.is_xla_gradients_synced = False
    assert state.is_xla_gradients_synced is False

    AcceleratorState(fsdp_plugin=FullyShardedDataParallelPlugin())

    assert state.is_xla_gradients_synced is True
