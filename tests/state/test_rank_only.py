"""Decorators that let one rank run a function."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from nbstate import AcceleratorState, PartialState, debug_launcher


@PartialState.on_main_process
def on_main():
    """Tell that it ran."""
    return "ran"


@PartialState.on_main_process()
def with_parentheses():
    return "ran"


@PartialState.on_last_process
def on_last():
    return "ran"


@PartialState.on_process(process_index=1)
def on_1():
    return "ran"


@PartialState.on_local_process(local_process_index=1)
def on_local_1():
    return "ran"


@PartialState.on_local_main_process
def on_local_main():
    return "ran"


@AcceleratorState.on_main_process
def by_accelerator():
    return "ran"


class Trainer:
    name = "method"

    @PartialState.on_main_process
    def save(self, suffix):
        return self.name + suffix

    @PartialState.on_main_process(share=True)
    async def load(self):
        await asyncio.sleep(0)
        return self.name


@PartialState.on_main_process
async def asynchronous():
    await asyncio.sleep(0)
    return "ran"


@PartialState.on_process(process_index=1, share=True)
def vocabulary():
    return {"a": PartialState().process_index}


@PartialState.on_main_process(share=True)
def failing():
    raise KeyError("column")


@PartialState.on_main_process(share=True)
def unsendable():
    return lambda: None


ONE_RANK = {
    on_main: 0,
    with_parentheses: 0,
    on_last: 1,
    on_1: 1,
    on_local_1: 1,
    on_local_main: 0,
    by_accelerator: 0,
}


def test_the_rank_is_looked_up_at_the_call_with_or_without_a_state():
    def call_all():
        early = [function() for function in ONE_RANK]
        made = PartialState.is_initialized()
        PartialState()
        return early, made, [function() for function in ONE_RANK]

    results = debug_launcher(call_all)

    for rank, (early, made, late) in enumerate(results):
        expected = ["ran" if rank == chosen else None for chosen in ONE_RANK.values()]
        assert early == late == expected
        assert made is False


def test_with_one_process_everything_runs():
    assert [function() for function in ONE_RANK] == ["ran"] * len(ONE_RANK)
    assert vocabulary() == {"a": 0}
    with pytest.raises(KeyError, match="column"):
        failing()


def test_name_docstring_and_signature_are_kept():
    assert on_main.__name__ == "on_main"
    assert on_main.__doc__ == "Tell that it ran."
    assert list(inspect.signature(Trainer.save).parameters) == ["self", "suffix"]
    assert inspect.iscoroutinefunction(asynchronous)


def test_methods_and_coroutines():
    def call():
        trainer = Trainer()
        return trainer.save(".pt"), asyncio.run(asynchronous()), asyncio.run(trainer.load())

    assert list(debug_launcher(call)) == [("method.pt", "ran", "method"), (None, None, "method")]


def test_share_gives_every_rank_the_value_and_the_exception():
    def call():
        with pytest.raises(KeyError, match="column"):
            failing()
        return vocabulary()

    assert list(debug_launcher(call)) == [{"a": 1}] * 2


def test_a_value_that_cannot_be_sent_is_an_error_for_the_others_and_no_hang():
    def call():
        try:
            return callable(unsendable())
        except RuntimeError as error:
            return str(error)

    first, second = debug_launcher(call)
    assert first is True
    assert "cannot be sent" in second


def test_an_instance_decorates_too():
    state = PartialState()

    assert state.on_main_process(lambda: 3)() == 3


@pytest.mark.parametrize("index", [None, -1, "1", True])
def test_an_index_that_is_no_rank(index):
    with pytest.raises(ValueError, match="process_index="):
        PartialState.on_process(process_index=index)


def test_only_functions_can_be_decorated():
    with pytest.raises(TypeError, match="'text'"):
        PartialState.on_main_process("text")


def test_a_share_from_a_rank_that_is_not_there():
    @PartialState.on_process(process_index=7, share=True)
    def nobody():
        return 1

    def call():
        with pytest.raises(ValueError, match="no rank 7"):
            nobody()

    debug_launcher(call)
