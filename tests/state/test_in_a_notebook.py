"""States in a real kernel, around launches."""

from __future__ import annotations

import pytest


@pytest.fixture
def cells(shared_kernel):
    def run(code):
        cell = shared_kernel.run(code)
        assert cell.error is None, cell.error
        return cell

    run("from nbstate import *\nfrom nbstate.state import reset_all\nreset_all('a test began')")
    return run


def test_a_state_made_in_the_kernel_is_as_it_was_after_a_launch(cells, shared_kernel):
    cells("""
before = AcceleratorState(mixed_precision="bf16")
GradientState(GradientAccumulationPlugin(num_steps=4)).sync_gradients = False
def train():
    fresh = not (PartialState.is_initialized() or GradientState.is_initialized())
    try:
        before.process_index
        stale = "still holds"
    except AttributeError as error:
        stale = str(error)
    state = AcceleratorState(mixed_precision="fp16")
    return fresh, stale, state.process_index, state.mixed_precision, GradientState().num_steps
results = debug_launcher(train)
""")
    for rank in range(2):
        fresh, stale, index, precision, steps = shared_kernel.eval(f"results[{rank}]")
        assert (fresh, index, precision, steps) == (True, rank, "fp16", 1)
        assert "a rank was forked" in stale
        assert "Make a new one with AcceleratorState()" in stale
    assert shared_kernel.eval(
        "[before.initialized, before.mixed_precision, PartialState().num_processes,"
        "GradientState().num_steps, GradientState().sync_gradients]"
    ) == [True, "bf16", 1, 4, False]


def test_one_process_then_two_then_other_settings(cells, shared_kernel):
    cells("""
def train(precision):
    state = AcceleratorState(mixed_precision=precision)
    return state.num_processes, state.mixed_precision
one = notebook_launcher(train, ("no",), num_processes=1)
two = notebook_launcher(train, ("bf16",), num_processes=2)
again = notebook_launcher(train, ("fp16",), num_processes=1)
""")
    assert shared_kernel.eval("[list(one), list(two), list(again)]") == [
        [[1, "no"]],
        [[2, "bf16"]] * 2,
        [[1, "fp16"]],
    ]
    assert shared_kernel.eval("AcceleratorState.is_initialized()") is False


def test_a_function_decorated_in_the_kernel_behaves_in_the_ranks(cells, shared_kernel):
    cells("""
@PartialState().on_main_process
def save():
    return "saved"
results = debug_launcher(save)
""")
    assert shared_kernel.eval("[*results, save()]") == ["saved", None, "saved"]


def test_a_reset_in_a_cell_is_told_as_one(cells, shared_kernel):
    cells("state = PartialState()\nPartialState.reset()")

    cell = shared_kernel.run("state.device")

    assert "PartialState.reset() at a notebook cell:2" in cell.error.evalue


def test_the_launchers_precision_reaches_every_state(cells, shared_kernel):
    cells("""
def precisions():
    import accelerate
    return (PartialState().mixed_precision, AcceleratorState().mixed_precision,
            accelerate.Accelerator(cpu=True).mixed_precision)
results = notebook_launcher(precisions, num_processes=2, mixed_precision="bf16", cpu=True)
""")
    assert shared_kernel.eval("list(results)") == [["bf16"] * 3] * 2


def test_a_dataloader_worker_forked_by_a_rank_sees_the_ranks_state(cells, shared_kernel):
    cells("""
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        state = PartialState()
        return state.process_index, state.num_processes, GradientState().num_steps
def load():
    PartialState(), GradientState(GradientAccumulationPlugin(num_steps=3))
    loader = torch.utils.data.DataLoader(Rows(), num_workers=1)
    return [[int(value) for value in row] for row in loader]
results = debug_launcher(load)
""")
    assert shared_kernel.eval("list(results)") == [[[0, 2, 3]] * 2, [[1, 2, 3]] * 2]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_in_fresh_processes_it_is_the_same(cells, shared_kernel, method):
    cells(f"""
kept = PartialState()
@PartialState.on_main_process(share=True)
def shared():
    return PartialState().process_index
def train():
    state = AcceleratorState()
    state.wait_for_everyone()
    with state.split_between_processes([1, 2, 3]) as part:
        return (state.process_index, state.num_processes, str(state.distributed_type),
                state.fork_launched, kept.initialized, shared(), state.gather_in_order(part))
results = notebook_launcher(train, num_processes=2, cpu=True, start_method={method!r})
""")
    assert shared_kernel.eval("list(results)") == [
        [rank, 2, "DistributedType.MULTI_CPU", True, False, 0, [1, 2, 3]] for rank in range(2)
    ]
