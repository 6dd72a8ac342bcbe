"""States under XLA, with a stand-in for torch_xla that records what is opened.

The stand-in is a package of its own on the path, not a patch: real TPUs are not at hand.
"""

from __future__ import annotations

import json

import pytest

from tests.state.processes import python

PACKAGE = {
    "__init__.py": """
opened, steps = [], []
ordinals = {}
class _XLAC:
    @staticmethod
    def _xla_runtime_is_initialized():
        return bool(opened)
def device():
    import torch
    opened.append("device")
    return torch.device("xla", 0)
def sync():
    steps.append("step")
""",
    "runtime.py": """
import threading, torch_xla
def _mine():
    torch_xla.opened.append("ordinal")
    return torch_xla.ordinals.get(threading.current_thread().name, 1)
def global_ordinal(): return _mine()
def local_ordinal(): return _mine()
def world_size(): torch_xla.opened.append("size"); return 2
def addressable_device_count(): return 2
""",
    "core/__init__.py": "",
    "core/xla_model.py": """
import threading
_meeting, _brought, _lock = threading.Barrier(2), {}, threading.Lock()
def rendezvous(tag, payload=b""):
    from torch_xla import runtime
    with _lock:
        _brought[runtime.global_ordinal()] = payload
    _meeting.wait()
    all_brought = [_brought[rank] for rank in sorted(_brought)]
    _meeting.wait()
    return all_brought
def all_reduce(kind, tensors):
    assert kind == "sum"
    for tensor in tensors:
        tensor.copy_(sum(rendezvous("all_reduce", tensor.clone())))
""",
}


@pytest.fixture
def run(tmp_path):
    for name, text in PACKAGE.items():
        path = tmp_path / "torch_xla" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(lines, **variables):
        (tmp_path / "script.py").write_text("import json, torch_xla\n" + lines)
        done = python([str(tmp_path / "script.py")], {"PJRT_DEVICE": "TPU", **variables})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_in_the_kernel_nothing_is_opened_until_the_device_is_asked_for(run):
    told = run("""
from nbstate import AcceleratorState, GradientState, PartialState, devices, is_main_process
state = PartialState()
AcceleratorState(), GradientState(), repr(state), is_main_process()
devices.kind(), devices.count(), devices.woken()
before = list(torch_xla.opened)
str(state.device)
print(json.dumps([before, torch_xla.opened, state.distributed_type, state.num_processes,
                  devices.woken()]))
""")
    assert told == [[], ["device"], "XLA", 1, "XLA"]


def test_in_a_rank_the_place_is_the_runtimes_ordinal(run):
    told = run(
        """
from nbstate import PartialState
state = PartialState()
print(json.dumps([state.process_index, state.num_processes, state.local_process_index,
                  state.backend, str(state.device), state.is_main_process]))
""",
        FORK_LAUNCHED="1",
    )
    assert told == [1, 2, 1, "xla", "xla:0", False]


def test_the_end_of_a_window_marks_a_step(run):
    told = run("""
from nbstate import GradientState, PartialState
state = GradientState()
state.sync_gradients = True
PartialState()
state.sync_gradients = False
before = list(torch_xla.steps)
state.sync_gradients = True
state._set_sync_gradients(True)
print(json.dumps([before, torch_xla.steps]))
""")
    assert told == [[], ["step", "step"]]


def test_replicas_as_threads_of_torch_xla_have_states_of_their_own(run):
    told = run("""
import threading
from nbstate import GradientState, PartialState
torch_xla.opened.append("by the launcher of torch_xla")
torch_xla.ordinals.update({"first": 0, "second": 1})
seen = {}
def helper(name):
    seen[name].append(PartialState().process_index)
def replica(name):
    state = PartialState()
    state.wait_for_everyone()
    GradientState().plugin_kwargs = {"num_steps": 5 + state.process_index}
    with state.split_between_processes([1, 2, 3]) as part:
        together = state.gather_in_order(part)
    with state.main_process_first():
        pass
    shared = PartialState.on_process(lambda: name, process_index=1, share=True)()
    seen[name] = [state.process_index, GradientState().num_steps, together, shared]
    thread = threading.Thread(target=helper, args=(name,))
    thread.start(); thread.join()
threads = [threading.Thread(target=replica, args=(n,), name=n) for n in ("first", "second")]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(seen))
""")
    assert told == {
        "first": [0, 5, [1, 2, 3], "second", 0],
        "second": [1, 6, [1, 2, 3], "second", 1],
    }


def test_replicas_train_one_model_though_xla_has_no_process_group(run):
    told = run("""
import threading, torch
from nbstate import Accelerator
torch_xla.opened.append("by the launcher of torch_xla")
torch_xla.ordinals.update({"first": 0, "second": 1})
torch_xla.device = lambda: torch.device("cpu")  # whose tensors this torch can compute with
trained = {}
def replica(name):
    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for step in range(2):
        accelerator.backward(-model(torch.full((1, 1), 2.0 * accelerator.process_index)).sum())
        optimizer.step()
        optimizer.zero_grad()
    trained[name] = model.weight.item()
threads = [threading.Thread(target=replica, args=(n,), name=n) for n in ("first", "second")]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(trained))
""")
    assert told == {"first": 2.0, "second": 2.0}


def test_clipping_reduces_the_gradients_of_each_optimizer(run):
    told = run("""
import threading, torch
from nbstate import Accelerator
torch_xla.opened.append("by the launcher of torch_xla")
torch_xla.ordinals.update({"first": 0, "second": 1})
torch_xla.device = lambda: torch.device("cpu")
trained = {}
def replica(name):
    accelerator = Accelerator()
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        torch.nn.init.zeros_(model.weight)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    one, other, *optimizers = accelerator.prepare(*models, *optimizers)
    inputs = torch.full((1, 1), 2.0 * accelerator.process_index)
    accelerator.backward(-(one(inputs) + other(inputs)).sum())
    accelerator.clip_grad_norm_([*one.parameters(), *other.parameters()], 100.0)
    for optimizer in optimizers:
        optimizer.step()
    trained[name] = [one.weight.item(), other.weight.item()]
threads = [threading.Thread(target=replica, args=(n,), name=n) for n in ("first", "second")]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(trained))
""")
    assert told == {"first": [1.0, 1.0], "second": [1.0, 1.0]}


def test_a_package_that_imports_torch_xla_does_not_turn_it_on(run):
    told = run(
        """
from nbstate import PartialState
first = str(PartialState().device)
PartialState.reset()
torch_xla.device()
print(json.dumps([first, str(PartialState().device)]))
""",
        PJRT_DEVICE="CPU",
    )
    assert told == ["cpu", "xla:0"]


def test_a_stream_that_rank_0_reads_reaches_the_other_replica(run):
    told = run("""
import threading
from torch.utils.data import DataLoader, IterableDataset
from nbstate import Accelerator, PartialState
torch_xla.opened.append("by the launcher of torch_xla")
torch_xla.ordinals.update({"first": 0, "second": 1})
seen = {}
class Stream(IterableDataset):
    def __iter__(self):
        assert PartialState().process_index == 0
        return iter(range(5))
def replica(name):
    loader = Accelerator(device_placement=False).prepare(DataLoader(Stream(), 2))
    seen[name] = [batch.tolist() for batch in loader]
threads = [threading.Thread(target=replica, args=(n,), name=n) for n in ("first", "second")]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(seen))
""")
    assert told == {"first": [[0, 1], [4, 0]], "second": [[2, 3], [1, 2]]}


def test_cpu_is_the_cpu(run):
    told = run("""
from nbstate import PartialState
state = PartialState(cpu=True)
print(json.dumps([str(state.device), state.distributed_type, torch_xla.opened]))
""")
    assert told == ["cpu", "NO", []]
