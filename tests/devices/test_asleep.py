"""Nothing that looks for accelerators wakes one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nbstate import devices

# Every call that is known to wake a driver or open a runtime raises.
ALARM = """
import ctypes, sys
import torch

def alarm(name):
    def woken(*args, **kwargs):
        raise AssertionError(f"{name} wakes the device")
    return woken

for module, names in {
    torch.cuda: ["init", "_lazy_init", "is_available", "device_count", "current_device",
                 "set_device", "get_device_properties", "get_device_name", "get_device_capability",
                 "mem_get_info", "current_stream", "synchronize", "manual_seed"],
    torch.xpu: ["init", "_lazy_init", "is_available", "device_count", "set_device"],
    torch.mps: ["is_available", "device_count", "current_allocated_memory", "get_rng_state"],
    torch.backends.mps: ["is_available"],
    getattr(torch, "accelerator", torch): ["device_count", "current_device_index"],
}.items():
    for name in names:
        if hasattr(module, name):
            setattr(module, name, alarm(f"{module.__name__}.{name}"))
for name in dir(torch._C):
    if name.startswith(("_cuda_", "_xpu_", "_mps_")) and callable(getattr(torch._C, name)):
        if "in_bad_fork" not in name and "initialized" not in name:
            setattr(torch._C, name, alarm(f"torch._C.{name}"))
"""

OFFENDERS = (
    "torch_xla", "torch_npu", "bitsandbytes", "torchao", "tensorflow", "jax", "cupy", "deepspeed",
)  # fmt: skip


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALARM + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_everything_public_can_be_imported_and_devices_found():
    code = f"""
import nbstate
from nbstate import devices
everything = [getattr(nbstate, name) for name in nbstate.__all__]
devices.kind(), devices.count(), devices.name(), devices.host(), devices.woken()
devices.visible([0], 0), devices.supports_fp8("cuda")
print(sorted(set(sys.modules) & set({OFFENDERS!r})))
"""
    assert run(code) == "[]"


def test_states_in_the_kernel_and_the_launcher_up_to_the_fork():
    code = """
import os
from nbstate import AcceleratorState, GradientState, PartialState, launch
state = PartialState()
AcceleratorState(mixed_precision="bf16"), GradientState(), repr(state), state.device
class Forked(Exception): pass
def fork():
    os.write(1, b"reached")
    raise Forked
os.fork = fork
try:
    launch(lambda: None, num_processes=2, view="silent").wait()
except BaseException as error:
    print()
"""
    assert run(code).startswith("reached")


def test_a_process_that_woke_nothing_says_so():
    assert devices.woken() is None


DRIVER = """
int cuCtxGetCurrent(void **context) { *context = 0; return STATE; }
"""


@pytest.mark.parametrize(("state", "expected"), [(3, "None"), (0, "CUDA's driver")])
def test_the_driver_is_asked_where_it_is_loaded_and_torch_knows_nothing(tmp_path, state, expected):
    library = tmp_path / "libcuda.so.1"
    built = subprocess.run(
        ["cc", "-shared", "-fPIC", f"-DSTATE={state}", "-Wl,-soname,libcuda.so.1", "-o", str(library),
         "-x", "c", "-"],
        input=DRIVER, text=True, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        pytest.skip("needs a C compiler")
    load = f"ctypes.CDLL({str(library)!r})"

    assert run(f"{load}\nfrom nbstate import devices\nprint(devices.woken())") == expected


def test_torchs_own_flag_counts():
    used = "torch.cuda.is_initialized = lambda: True"

    assert run(f"{used}\nfrom nbstate import devices\nprint(devices.woken())") == "CUDA"
