"""Accumulation: when ranks sync, what they send, and that the gradients are right."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from nbstate import (
    Accelerator,
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    GradientState,
    RankError,
    debug_launcher,
)
from nbstate.state import reset_all
from tests.train.ranks import close, data, loader, loss_of, mlp, weights


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def one_weight(value=0.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def windows(batches, **plugin):
    """Which batches sync, and the weight after each: every batch's gradient is 1, the rate 1."""
    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(**plugin))
    model = one_weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, ones = accelerator.prepare(
        model, optimizer, DataLoader(torch.ones(batches, 1))
    )

    def epoch():
        synced, moved = [], []
        for number, batch in enumerate(ones):
            before = model.weight.item()
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                synced.append(number)
                moved.append(round(before - model.weight.item(), 5))
        return synced, moved

    return epoch


def test_an_incomplete_last_window_weighs_as_much_as_a_full_one():
    epoch = windows(10, num_steps=4)
    assert epoch() == ([3, 7, 9], [1.0, 1.0, 1.0])
    assert epoch() == ([3, 7, 9], [1.0, 1.0, 1.0])


def test_an_incomplete_last_window_can_be_carried_into_the_next_epoch():
    epoch = windows(10, num_steps=4, last_window="carry")
    assert epoch() == ([3, 7], [1.0, 1.0])
    assert epoch() == ([1, 5, 9], [1.0, 1.0, 1.0])


def test_without_sync_with_dataloader_windows_do_not_end_with_the_data():
    epoch = windows(10, num_steps=4, sync_with_dataloader=False)
    assert epoch() == ([3, 7], [1.0, 1.0])
    assert epoch() == ([1, 5, 9], [1.0, 1.0, 1.0])


def test_an_incomplete_last_window_can_be_dropped():
    epoch = windows(10, num_steps=4, last_window="drop")
    assert epoch() == ([3, 7], [1.0, 1.0])
    assert epoch() == ([3, 7], [1.0, 1.0])


def micro_windows(cut, samples, *, batch_size=4, window=4, epochs=1):
    """Which micro-batches of each epoch sync, and the weight after each epoch.

    Every gradient is 1, the rate 1; `cut` makes the micro-batches of a batch.
    """
    accelerator = Accelerator(gradient_accumulation_steps=window)
    model = one_weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, ones = accelerator.prepare(
        model, optimizer, DataLoader(torch.ones(samples, 1), batch_size=batch_size)
    )
    seen, position, ended = [], 0, True
    for _ in range(epochs):
        synced = []
        for batch in ones:
            for micro in cut(batch):
                position = 1 if ended else position + 1
                with accelerator.accumulate(model):
                    accelerator.backward(model(micro).mean())
                    optimizer.step()
                    optimizer.zero_grad()
                ended = accelerator.sync_gradients
                synced.append(ended)
                assert accelerator.window_position == position
        seen.append(("".join(".^"[each] for each in synced), round(model.weight.item(), 5)))
    return seen


def test_micro_batches_sync_once_a_window_also_at_the_end():
    assert micro_windows(lambda batch: batch.split(1), 12) == [("...^...^...^", -3.0)]


@pytest.mark.parametrize("of_each", [1, 2])
def test_a_last_batch_of_fewer_micro_batches_ends_the_window_with_its_last(of_each):
    def cut(batch):
        return batch.split(of_each)

    found = micro_windows(cut, 10 * of_each, batch_size=4 * of_each, epochs=2)
    assert found == [("...^...^.^", -3.0), ("...^...^.^", -6.0)]
    reset_all("again")
    found = micro_windows(cut, 10 * of_each - 1, batch_size=4 * of_each, window=8, epochs=2)
    assert found[0][1] == -2.0
    assert found[1][1] == -4.0


def test_micro_batches_that_nothing_foretold_are_not_lost_and_weigh_no_more_than_others():
    def by_feature(batch):  # as many of a short batch as of a full one
        return [batch] * 4

    found = micro_windows(by_feature, 5, window=8, epochs=2)
    assert found == [("....^^^^", -1 - 3 / 8), (".......^", -2 - 3 / 8)]


def test_as_many_micro_batches_of_a_short_batch_as_of_a_full_one_are_foreseen_once_met():
    def views(batch):
        return batch, batch

    assert micro_windows(views, 10, window=2, epochs=2) == [(".^.^^^", -3.5), (".^.^.^", -6.5)]


def test_a_short_batch_that_is_cut_into_fewer_than_foreseen_ends_its_window_once_met():
    def cut(batch):  # 6 make 4 and 2, which are two as 4 might be
        return batch.split(4)

    found = micro_windows(cut, 10, batch_size=6, window=4, epochs=3)
    assert [synced for synced, _ in found] == ["...", "^.^", "..^"]


def test_batches_that_differ_between_ranks_are_not_cut_but_may_be_used_twice():
    def train(window, again):
        accelerator = Accelerator(gradient_accumulation_steps=window)
        sampler = [[0, 1, 2, 3], [4], [5, 6], [7, 8]]
        model, batches = accelerator.prepare(
            one_weight(), DataLoader(torch.ones(9, 1), batch_sampler=sampler)
        )
        for batch in batches:
            for micro in again(batch):
                with accelerator.accumulate(model):
                    accelerator.backward(model(micro).mean())
        return model.module.weight.grad.item()

    assert list(debug_launcher(train, (1, lambda batch: [batch] * 2))) == [4.0, 4.0]
    assert list(debug_launcher(train, (2, lambda batch: [batch]))) == [1.0, 1.0]
    with pytest.raises(RankError, match="one batch, of which ranks hold 4 and 1 samples: cut into"):
        debug_launcher(train, (2, lambda batch: batch.split(1)))


def test_a_validation_loop_inside_does_not_disturb_the_window():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = one_weight()
    training, validation = accelerator.prepare(
        DataLoader(torch.ones(5, 1)), DataLoader(torch.ones(3, 1))
    )
    model = accelerator.prepare(model)
    synced = []
    for number, batch in enumerate(training):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
        synced.append(accelerator.sync_gradients)
        if number == 1:
            for inner, _ in enumerate(validation):
                assert GradientState().active_dataloader is validation
                assert accelerator.sync_gradients
                if inner == 1:
                    break
        assert GradientState().active_dataloader is training
    assert synced == [False, True, False, True, True]


def test_the_window_can_be_changed_between_batches():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    accelerator.gradient_accumulation_steps = 3
    assert GradientState().num_steps == 3
    with pytest.raises(ValueError, match="num_steps=0"):
        accelerator.gradient_accumulation_steps = 0


def test_accumulation_settings_that_contradict_are_refused():
    plugin = GradientAccumulationPlugin(num_steps=4)
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2 and .* num_steps=4"):
        Accelerator(gradient_accumulation_steps=2, gradient_accumulation_plugin=plugin)


def gradients(window, fsdp=False, clip=None):
    """Gradients of one window over 16 samples, and how often ranks exchanged gradients."""
    plugin = FullyShardedDataParallelPlugin() if fsdp else None
    accelerator = Accelerator(gradient_accumulation_steps=window, fsdp_plugin=plugin)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_size = 16 // window // accelerator.num_processes
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(16, batch_size))
    exchanged = count_exchanges(model)
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
    grads = [parameter.grad for parameter in model.parameters()]
    norm = None if clip is None else float(accelerator.clip_grad_norm_(model.parameters(), clip))
    return [(g.full_tensor() if fsdp else g).clone() for g in grads], exchanged, norm


def count_exchanges(model):
    """A list that grows whenever DDP sends gradients."""
    sent = []
    if isinstance(model, nn.parallel.DistributedDataParallel):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def counted(group, bucket):
            sent.append(bucket.index())
            return allreduce_hook(group, bucket)

        model.register_comm_hook(None, counted)
    return sent


def whole_batch():
    model = mlp()
    nn.functional.mse_loss(model(data()[0]), data()[1]).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_accumulated_gradients_are_those_of_one_big_batch_and_only_syncs_send():
    def train():
        ddp, sent, _ = gradients(4)
        reset_all("once more")
        fsdp, _, _ = gradients(4, fsdp=True)
        return close(ddp, whole_batch()), len(sent), close(fsdp, whole_batch())

    for ddp_right, sent, fsdp_right in debug_launcher(train):
        assert ddp_right
        assert fsdp_right
        assert sent == 1  # one bucket, at the last of four batches


def test_fsdp_sends_gradients_only_at_the_end_of_a_window():
    def train():
        accelerator = Accelerator(
            gradient_accumulation_steps=3, fsdp_plugin=FullyShardedDataParallelPlugin()
        )
        model, batches = accelerator.prepare(mlp(), loader(12, 2))
        reduced = []
        for batch in batches:
            with torch.profiler.profile() as profile, accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
            names = {event.key for event in profile.key_averages()}
            reduced.append(any("reduce_scatter" in name for name in names))
        return reduced

    assert debug_launcher(train)[0] == [False, False, True]


def test_sync_each_batch_sends_at_every_batch_and_gives_the_same_gradients():
    def train():
        plugin = GradientAccumulationPlugin(num_steps=4, sync_each_batch=True)
        accelerator = Accelerator(gradient_accumulation_plugin=plugin)
        model, batches = accelerator.prepare(mlp(), loader(16, 2))
        sent = count_exchanges(model)
        synced = []
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
            synced.append(accelerator.sync_gradients)
        grads = [parameter.grad for parameter in model.parameters()]
        return close(grads, whole_batch()), len(sent), synced

    assert debug_launcher(train)[1] == (True, 4, [False, False, False, True])


def test_no_sync_keeps_gradients_on_their_rank():
    def train():
        accelerator = Accelerator()
        model = accelerator.prepare(one_weight())
        sent = count_exchanges(model)
        inputs = torch.full((1, 1), float(accelerator.process_index))
        with accelerator.no_sync(model):
            accelerator.backward(model(inputs).mean())
        alone = model.module.weight.grad.item()
        accelerator.backward(model(inputs).mean())
        return alone, model.module.weight.grad.item(), len(sent)

    assert list(debug_launcher(train)) == [(0.0, 1.0, 1), (1.0, 1.0, 1)]


def test_a_rank_that_is_through_takes_part_until_the_others_are():
    def train():
        accelerator = Accelerator(
            dataloader_config=DataLoaderConfiguration(even_batches=True),
            gradient_accumulation_steps=2,
        )
        model, optimizer, batches = accelerator.prepare(
            model := mlp(), torch.optim.SGD(model.parameters(), lr=0.1), loader(5, 1)
        )
        seen = 0
        with accelerator.join_uneven_inputs([model], even_batches=False):
            for inputs, targets in batches:
                seen += len(inputs)
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, (inputs, targets)))
                    optimizer.step()
                    optimizer.zero_grad()
        return seen, batches.even_batches, weights(model)

    (first, even, one), (second, _, other) = debug_launcher(train)
    assert (first, second, even) == (3, 2, True)
    assert close(one, other, 0)


def joined_windows(batches, window, **plugin):
    """Which of this rank's batches sync, and the weight at the end: every gradient is 1."""
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(window, **plugin),
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
    )
    model = one_weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    synced = ""
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
            synced += ".^"[accelerator.sync_gradients]
    weight = model.module.weight.item()
    reset_all("once more")
    return synced, weight


def test_where_batches_are_uneven_windows_end_for_all_with_the_first_that_is_through():
    def train():
        return [
            joined_windows(DataLoader(torch.ones(size, 1)), window)
            for size, window in ((7, 2), (5, 2), (9, 4), (6, 2))
        ]

    # Updates of both ranks weigh 1; DDP takes the mean with nothing for a rank that is through.
    first, second = debug_launcher(train)
    assert first == [(".^^^", -2.5), (".^^", -1.5), ("...^^", -1.5), (".^^", -2.0)]
    assert second == [(".^^", -2.5), (".^", -1.5), ("...^", -1.5), (".^^", -2.0)]


def test_windows_that_uneven_ranks_cannot_agree_on_are_refused():
    class Unsized(IterableDataset):
        def __iter__(self):
            return iter(torch.ones(7, 1))

    def carry():
        return joined_windows(DataLoader(torch.ones(7, 1)), 2, last_window="carry")

    def stream():
        return joined_windows(DataLoader(Unsized()), 2)

    with pytest.raises(RankError, match="cannot be carried into the next epoch: use last_window"):
        debug_launcher(carry)
    with pytest.raises(RankError, match="a dataloader without a length: use even_batches=True"):
        debug_launcher(stream)
