"""Checkpoints: exact, whole after a kill, readable by other numbers of ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys

import pytest
import torch
from torch import nn

from nbstate import (
    Accelerator,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    ProjectConfiguration,
    RankError,
    debug_launcher,
)
from nbstate.state import reset_all
from nbstate.train import storage
from tests.train.ranks import close, loader, loss_of, weights


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def dropout_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))


class Counter:
    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Training:
    """A training with everything in it that a checkpoint has to hold."""

    def __init__(self, batch_size=2, **options):
        self.accelerator = Accelerator(**options)
        model = dropout_mlp()
        torch.manual_seed(self.accelerator.process_index + 5)  # dropout differs between ranks
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        self.model, self.optimizer, self.schedule, self.batches = self.accelerator.prepare(
            model, optimizer, schedule, loader(24, batch_size, shuffle=True)
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)
        self.losses = []

    def run(self, epochs, after_step=lambda training: None):
        for _ in range(self.batches.setup.progress.next_epoch, epochs):
            for batch in self.batches:
                with self.accelerator.accumulate(self.model):
                    loss = loss_of(self.model, batch)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
                self.counter.count += 1
                self.losses.append(float(loss.detach()))
                after_step(self)
        return self

    @property
    def weights(self):
        return weights(self.accelerator.unwrap_model(self.model))


class Enough(Exception):
    pass


def interrupted(where, at, **options):
    """Train to a step, save there, and break off."""

    def save(training):
        if training.counter.count == at:
            training.accelerator.save_state(where)
            raise Enough

    training = Training(**options)
    with pytest.raises(Enough):
        training.run(3, save)
    return training


def resumed(where, **options):
    training = Training(**options)
    torch.manual_seed(99)
    training.accelerator.load_state(where)
    return training.run(3)


LAYOUTS = {
    "one process": (1, dict),
    "fp16": (1, lambda: {"mixed_precision": "fp16"}),
    "accumulating": (2, lambda: {"gradient_accumulation_steps": 3}),
    "ddp": (2, dict),
    "split batches": (2, lambda: {"split_batches": True}),
    "fsdp": (2, lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()}),
    "fsdp, whole files": (
        2,
        lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin(state_dict_type="full_state_dict")},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(name, tmp_path):
    ranks, options = LAYOUTS[name]

    def train():
        whole = Training(**options()).run(3)
        random_after = torch.get_rng_state()
        verdicts = []
        steps = len(whole.batches)
        for at in (3, steps, steps + 3):  # within an epoch, at its end, within the next
            reset_all("interrupted")
            first = interrupted(tmp_path / str(at), at, **options())
            reset_all("resumed")
            second = resumed(tmp_path / str(at), **options())
            verdicts.append(
                (
                    first.losses + second.losses == whole.losses,
                    close(second.weights, whole.weights, 0),
                    second.counter.count == whole.counter.count,
                    second.schedule.get_last_lr() == whole.schedule.get_last_lr(),
                    torch.equal(torch.get_rng_state(), random_after),
                )
            )
        return verdicts

    results = [train()] if ranks == 1 else debug_launcher(train, num_processes=ranks)
    for verdicts in results:
        assert verdicts == [(True,) * 5] * 3


def test_files_are_named_as_documented(tmp_path):
    interrupted(tmp_path / "plain", 1)
    assert {path.name for path in (tmp_path / "plain").iterdir()} == {
        "checkpoint.json",
        "model.safetensors",
        "random_0.pt",
        "training.pt",
    }
    assert json.loads((tmp_path / "plain" / "checkpoint.json").read_text())["num_processes"] == 1

    def save():
        interrupted(tmp_path / "fsdp", 1, fsdp_plugin=FullyShardedDataParallelPlugin())

    debug_launcher(save)
    names = {path.name for path in (tmp_path / "fsdp").iterdir()}
    assert "sharded" in names
    assert "random_1.pt" in names
    assert "model.safetensors" not in names


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ((2, dict), (1, dict)),
        ((1, dict), (2, dict)),
        (
            (2, lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()}),
            (4, lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()}),
        ),
        (
            (4, lambda: {"parallelism_config": ParallelismConfig(2, 2)}),
            (1, dict),
        ),
        (
            (
                2,
                lambda: {
                    "fsdp_plugin": FullyShardedDataParallelPlugin(state_dict_type="full_state_dict")
                },
            ),
            (2, dict),
        ),
        (
            (
                1,
                lambda: {
                    "fsdp_plugin": FullyShardedDataParallelPlugin(state_dict_type="full_state_dict")
                },
            ),
            (2, lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()}),
        ),
        ((2, dict), (2, lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin()})),
    ],
    ids=[
        "ddp to one",
        "one to ddp",
        "fsdp to more",
        "hsdp to one",
        "full fsdp to ddp",
        "fsdp of one to more",
        "ddp to fsdp",
    ],
)
def test_another_number_of_ranks_goes_on_from_a_checkpoint(saved, loaded, tmp_path):
    def save():
        training = interrupted(tmp_path / "c", 2, batch_size=2, **saved[1]())
        state = training.optimizer.optimizer.state
        first = next(iter(training.model.parameters()))
        moment = state[first]["exp_avg"]
        moment = moment.full_tensor() if hasattr(moment, "full_tensor") else moment
        return training.weights, moment

    def load():
        training = Training(batch_size=2, **loaded[1]())
        training.accelerator.load_state(tmp_path / "c")
        state = training.optimizer.optimizer.state
        first = next(iter(training.accelerator.unwrap_model(training.model).parameters()))
        moment = state[first]["exp_avg"]
        moment = moment.full_tensor() if hasattr(moment, "full_tensor") else moment
        before = training.weights
        number = sum(len(batch[0]) for batch in training.batches)
        return before, moment, number

    def on(ranks, function):
        return [function()] if ranks == 1 else debug_launcher(function, num_processes=ranks)

    first = on(saved[0], save)[0]
    reset_all("saved")
    for got, moment, number in on(loaded[0], load):
        assert close(got, first[0], 0)
        assert torch.equal(moment, first[1])
        left = 12 - 2 * saved[0]  # two steps were taken, of a batch for each rank
        assert number == 2 * -(-left // loaded[0])


def test_checkpoints_are_named_and_the_oldest_go(tmp_path):
    config = ProjectConfiguration(tmp_path, automatic_checkpoint_naming=True, total_limit=2)
    training = Training(project_config=config)
    for _ in range(4):
        where = training.accelerator.save_state()
    folder = tmp_path / "checkpoints"
    assert where == folder / "checkpoint_3"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_2", "checkpoint_3"]
    assert training.accelerator.load_state() == folder / "checkpoint_3"
    for number in (9, 10, 11):
        training.accelerator.save_state(tmp_path / "elsewhere" / f"checkpoint_{number}")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3  # the limit is for numbered ones
    reset_all("another run of the program")
    again = Training(project_config=config)
    assert again.accelerator.save_state() == folder / "checkpoint_4"


def test_a_checkpoint_takes_the_place_of_an_older_one(tmp_path):
    training = Training()
    training.accelerator.save_state(tmp_path / "c")
    training.counter.count = 7
    training.accelerator.save_state(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    training.counter.count = 0
    training.accelerator.load_state(tmp_path / "c")
    assert training.counter.count == 7


def test_a_directory_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(FileExistsError, match="which saving would delete"):
        Training().accelerator.save_state(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_saving_and_loading_say_what_is_missing(tmp_path):
    training = Training()
    with pytest.raises(ValueError, match="automatic_checkpoint_naming=True"):
        training.accelerator.save_state()
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        training.accelerator.load_state(tmp_path / "nothing")
    with pytest.raises(TypeError, match="no `state_dict`"):
        training.accelerator.register_for_checkpointing(3)
    training.accelerator.save_state(tmp_path / "c")
    training.accelerator.register_for_checkpointing(Counter())
    with pytest.raises(ValueError, match="1 registered, not 2"):
        training.accelerator.load_state(tmp_path / "c")


def test_saving_before_the_first_step_changes_nothing(tmp_path):
    def train(save):
        reset_all("again")
        training = Training(fsdp_plugin=FullyShardedDataParallelPlugin())
        if save:
            training.accelerator.save_state(tmp_path / "c")
            training.accelerator.load_state(tmp_path / "c")
        return training.run(1).losses

    def both():
        return train(False), train(True)

    for without, with_saving in debug_launcher(both):
        assert without == with_saving


def test_what_rank_0_saved_from_its_gpu_is_loaded_onto_each_ranks_own_device(tmp_path):
    def train():
        first = interrupted(tmp_path / "c", 3)
        if first.accelerator.is_main_process:
            file = tmp_path / "c" / "training.pt"
            saved = torch.load(file, weights_only=False)
            # The file says of every tensor that it was on the first GPU, which is not here.
            said = ["cuda:0"]
            torch.serialization.register_package(0, lambda _: said[-1], lambda *_: None)
            torch.save(saved, file)
            said.append(None)
        first.accelerator.wait_for_everyone()
        reset_all("resumed")
        second = resumed(tmp_path / "c")
        held = next(iter(second.optimizer.state.values()))["exp_avg"].device
        return second.counter.count, held == second.accelerator.device

    assert list(debug_launcher(train)) == [(18, True)] * 2


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

    accelerator = Accelerator()
    model = accelerator.prepare(Tied())
    accelerator.save_state(tmp_path / "c")
    kept = model.head.weight.detach().clone()
    nn.init.zeros_(model.head.weight)
    accelerator.load_state(tmp_path / "c")
    assert torch.equal(model.head.weight, kept)
    assert model.head.weight is model.embed.weight


def save_twice_and_die(config, where, last_step):
    """Save, then save again and be killed at some step of it; tell how many steps there were."""
    training = Training(project_config=config)
    training.counter.count = 1
    training.accelerator.save_state(where)
    steps = iter(range(last_step))

    def count(event, args):
        changes = event in {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree"}
        writes = event == "open" and isinstance(args[1], str) and args[1][0] in "wax"
        if (changes or writes) and next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    if training.accelerator.is_main_process:
        sys.addaudithook(count)
    training.counter.count = 2
    training.accelerator.save_state(where)
    return last_step - len(list(steps))


@pytest.mark.parametrize("numbered", [False, True], ids=["replacing", "numbered"])
def test_a_kill_at_any_step_leaves_the_last_good_checkpoint(numbered, tmp_path):
    """Rank 0 is killed at each change that it makes to the disk; what is there always loads."""
    directory = tmp_path / "all"
    config = ProjectConfiguration(
        directory, automatic_checkpoint_naming=numbered, total_limit=1 if numbered else None
    )
    where = None if numbered else directory / "c"
    (steps, _) = debug_launcher(save_twice_and_die, (config, where, 1000))
    assert steps > 5
    counts = []
    for step in range(steps):
        shutil.rmtree(directory)
        with pytest.raises(RankError, match="SIGKILL"):
            debug_launcher(save_twice_and_die, (config, where, step))
        training = Training(project_config=config)
        training.accelerator.load_state(where)
        counts.append(training.counter.count)
        reset_all("the next kill")
    # Until some step it is the first checkpoint, from then on the second.
    assert counts == sorted(counts)
    assert set(counts) == {1, 2}


def test_every_step_of_replacing_can_be_the_last(tmp_path):
    """The three states of a directory that a kill can leave behind, made by hand."""
    final, old, partial = tmp_path / "c", tmp_path / ".c.old", tmp_path / ".c.partial"

    def checkpoint(path, text):
        path.mkdir()
        (path / storage.MANIFEST).write_text(text)

    checkpoint(old, "1")
    checkpoint(partial, "2")  # killed between the two renames
    storage.recover(final)
    assert (final / storage.MANIFEST).read_text() == "1"
    assert storage.begin(final) == partial
    assert list(partial.iterdir()) == []
    (partial / storage.MANIFEST).write_text("3")
    checkpoint(old, "left over")  # killed before the old one was deleted
    storage.commit(final)
    assert (final / storage.MANIFEST).read_text() == "3"
    assert not old.exists()
    assert not partial.exists()
