"""The real torch_xla on its one CPU device, in an environment of its own: `-m xla` asks for it.

The environment takes 5.7 GB and some minutes to make, once; it stays in `.venv-xla`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-xla"
PACKAGES = (
    *("torch==2.9.0", "torch_xla==2.9.0", "numpy", "safetensors"),
    *("anywidget", "cloudpickle", "ipykernel", "ipywidgets", "psutil"),
)

SCRIPT = """
import json, os
import torch, torch_xla
from nbstate import GradientState, PartialState, RankError, devices, notebook_launcher

def train(x, y):
    state = PartialState()
    model = torch.nn.Linear(2, 1).to(state.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = x.to(state.device), y.to(state.device)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    state.wait_for_everyone()
    gradients = GradientState()
    gradients.is_xla_gradients_synced = gradients.sync_gradients = True    # marks the step
    learned = losses[-1] < losses[0] / 10 and gradients.is_xla_gradients_synced
    return learned, str(state.device), state.num_processes, os.getpid()

def where():
    return str(PartialState().device), PartialState().num_processes

def fail():
    torch.ones(2, device=PartialState().device) @ torch.ones(3, device=PartialState().device)

if __name__ == "__main__":
    x = torch.randn(64, 2)
    data = x, x @ torch.tensor([[1.0], [-2.0]])
    told = {"woken": [devices.woken()], "untouched": notebook_launcher(where, (), 2)[1]}
    torch.ones(2, device=torch_xla.device()).sum().item()      # the kernel uses the device
    told["woken"].append(devices.woken())
    told["trained"] = [notebook_launcher(train, data)[0], notebook_launcher(train, data)[0]]
    for function, ranks in ((fail, 1), (where, 2)):
        try:
            notebook_launcher(function, (), ranks)
        except (RankError, ValueError) as error:
            told[function.__name__] = str(error)
    told["kernel"] = os.getpid()
    print("told:", json.dumps(told))
"""


@pytest.fixture
def python(pytestconfig):
    """The interpreter of an environment with torch_xla, made at the first need."""
    if "xla" not in pytestconfig.getoption("markexpr"):
        pytest.skip("downloads 5.7 GB: run with -m xla")
    executable = VENV / "bin/python"
    if not (VENV / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([executable, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (VENV / ".ready").touch()
    return executable


@pytest.mark.xla
def test_the_real_torch_xla_trains_in_ranks_of_a_kernel_that_used_it(python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told: ")]
    told = json.loads(line.removeprefix("told: "))
    assert told["woken"] == [None, "XLA"]
    assert told["untouched"] == ["cpu", 2]  # importing torch_xla is not using it
    for learned, device, ranks, pid in told["trained"]:
        assert (learned, device, ranks) == (True, "xla:0", 1)
        assert pid != told["kernel"]
    assert told["fail"].startswith("rank 0 of 1: RuntimeError: ")
    assert told["where"].startswith(
        "num_processes=2 with PJRT_DEVICE='CPU': torch_xla has 1 device"
    )
