"""Trackers write real files, from the main process, and nobody waits for them at the end."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from nbstate import Accelerator, Tracker, debug_launcher
from nbstate.state import reset_all


@pytest.fixture(autouse=True)
def fresh_states():
    yield
    reset_all("the test is over")


def log_three(directory, *log_with, end=True):
    """A training that logs three steps on every rank."""
    accelerator = Accelerator(log_with=log_with, project_dir=directory)
    accelerator.init_trackers("digits", config={"lr": 0.1, "layers": [1, 2]})
    for step in range(3):
        mean = accelerator.reduce(torch.tensor(float(accelerator.process_index + step)), "mean")
        accelerator.log({"loss": mean, "lr": np.float32(0.5), "note": "fine"}, step=step)
    if end:
        accelerator.end_training()
    return len(accelerator.trackers)


def lines(directory):
    return [json.loads(line) for line in (directory / "digits.jsonl").read_text().splitlines()]


def test_lines_of_json_are_written_by_the_main_process_alone(tmp_path):
    assert list(debug_launcher(log_three, (tmp_path, "jsonl"))) == [0, 0]
    config, *steps = lines(tmp_path)
    assert config == {"config": {"lr": 0.1, "layers": [1, 2]}}
    assert steps == [
        {"step": step, "loss": step + 0.5, "lr": 0.5, "note": "fine"} for step in range(3)
    ]


def test_nothing_is_lost_where_the_training_is_not_ended(tmp_path):
    def train():
        return log_three(tmp_path, "jsonl", "tensorboard", end=False)

    assert list(debug_launcher(train)) == [2, 0]
    assert len(lines(tmp_path)) == 4
    assert scalars(tmp_path)["loss"] == [(0, 0.5), (1, 1.5), (2, 2.5)]


def scalars(directory):
    """What TensorBoard itself reads, in a process of its own: it brings deprecated imports."""
    code = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "tags = events.Tags()\n"
        "found = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in tags['scalars']}\n"
        "found['tensors'] = tags['tensors']\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory / "digits")],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        tag: [tuple(each) if isinstance(each, list) else each for each in values]
        for tag, values in found.items()
    }


def test_tensorboard_reads_what_was_logged(tmp_path):
    debug_launcher(log_three, (tmp_path, "tensorboard"))
    found = scalars(tmp_path)
    assert found["loss"] == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert found["lr"] == [(step, 0.5) for step in range(3)]
    assert "config/text_summary" in found["tensors"]


def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert list(debug_launcher(log_three, (tmp_path, "wandb"))) == [0, 0]
    runs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 1
    assert runs[0].stat().st_size > 0


def test_a_tracker_of_ones_own_and_those_of_other_ranks():
    class Kept(Tracker):
        name = "kept"

        def start(self, project_name, directory, **settings):
            self.seen = [(project_name, directory, settings)]

        def log(self, values, step=None):
            self.seen.append((step, dict(values)))

    def only_seen():
        accelerator = Accelerator(log_with=Kept())
        accelerator.init_trackers("p", init_kwargs={"kept": {"tag": 3}})
        accelerator.log({"a": torch.tensor(1)}, step=2)
        tracker = accelerator.get_tracker("kept")
        if not accelerator.is_main_process:
            tracker.run.add("whatever").more()
            return None
        return tracker.seen

    assert list(debug_launcher(only_seen)) == [[("p", None, {"tag": 3}), (2, {"a": 1})], None]


def test_settings_of_a_tracker_and_values_that_only_it_knows_reach_it():
    class Told(Tracker):
        name = "told"

        def start(self, project_name, directory):
            self.lines = []

        def log(self, values, step=None, **settings):
            self.lines.append((values, step, settings))

    accelerator = Accelerator(log_with=Told())
    accelerator.init_trackers("trial")
    picture = object()
    accelerator.log({"picture": picture, "loss": torch.tensor(0.5)}, 1, {"told": {"commit": False}})
    accelerator.log({"loss": 1}, step=2, log_kwargs={"wandb": {"commit": False}})
    assert accelerator.get_tracker("told").lines == [
        ({"picture": picture, "loss": 0.5}, 1, {"commit": False}),
        ({"loss": 1}, 2, {}),
    ]


def test_mistakes_are_told_before_anything_is_logged(tmp_path):
    with pytest.raises(ValueError, match="'nosuch' is no tracker; choose of 'tensorboard'"):
        Accelerator(log_with="nosuch")
    with pytest.raises(ValueError, match="give the Accelerator a project_dir"):
        Accelerator(log_with="jsonl").init_trackers("p")
    accelerator = Accelerator(log_with="jsonl", project_dir=tmp_path)
    with pytest.raises(ValueError, match="call init_trackers"):
        accelerator.get_tracker("jsonl")
    with pytest.raises(ValueError, match="there are \\['jsonl'\\]"):
        accelerator.get_tracker("tensorboard")
