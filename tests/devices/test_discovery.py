"""What accelerators there are, on machines laid out as files and variables."""

from __future__ import annotations

import pytest

from nbstate import devices
from nbstate.devices import Machine

TWO_GPUS = ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm")
KAGGLE = {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "KAGGLE_URL_BASE": "https://www.kaggle.com"}
COLAB = {"COLAB_RELEASE_TAG": "release-colab_20260601", "COLAB_GPU": "0"}
KFD = "sys/class/kfd/kfd/topology/nodes/{}/properties"


@pytest.fixture
def machine(tmp_path):
    def lay_out(*files, builds=(), platform="linux", **environ):
        for each in files:
            name, _, text = each.partition("=")
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Machine(tmp_path, environ, frozenset(builds), platform, nvml=False)

    return lay_out


@pytest.mark.parametrize(
    ("files", "builds", "environ", "expected"),
    [
        pytest.param((), (), {}, ("cpu", 0, "CPU"), id="plain"),
        pytest.param(TWO_GPUS, ("cuda",), {}, ("cuda", 2, "GPU"), id="two GPUs"),
        pytest.param(TWO_GPUS, (), {}, ("cpu", 0, "CPU"), id="GPUs, torch built for the CPU"),
        pytest.param((), ("cuda",), {}, ("cpu", 0, "CPU"), id="torch built for CUDA, no GPU"),
        pytest.param(
            ("usr/lib/wsl/lib/libcuda.so.1",), ("cuda",), {}, ("cuda", 1, "GPU"), id="WSL"
        ),
        pytest.param(TWO_GPUS, ("cuda",), KAGGLE, ("cuda", 2, "Kaggle GPU"), id="Kaggle 2 x T4"),
        pytest.param((), ("cuda",), KAGGLE, ("cpu", 0, "Kaggle CPU"), id="Kaggle without"),
        pytest.param(
            tuple(f"dev/accel{chip}" for chip in range(4)),
            ("torch_xla",),
            {**KAGGLE, "TPU_ACCELERATOR_TYPE": "v3-8", "PJRT_DEVICE": "TPU"},
            ("tpu", 8, "Kaggle TPU"),
            id="Kaggle TPU v3-8",
        ),
        pytest.param(
            (*(f"dev/vfio/{chip}" for chip in range(8)), "dev/vfio/vfio"),
            ("torch_xla",),
            {**KAGGLE, "TPU_ACCELERATOR_TYPE": "v5litepod-8"},
            ("tpu", 8, "Kaggle TPU"),
            id="Kaggle TPU v5e-8",
        ),
        pytest.param(
            ("dev/nvidia0",), ("cuda",), {**COLAB, "COLAB_GPU": "1"}, ("cuda", 1, "Colab GPU"),
            id="Colab GPU",
        ),
        pytest.param(
            tuple(f"dev/accel{chip}" for chip in range(4)),
            ("torch_xla",),
            {**COLAB, "TPU_ACCELERATOR_TYPE": "v2-8"},
            ("tpu", 8, "Colab TPU"),
            id="Colab TPU v2-8",
        ),
        pytest.param(
            ("dev/vfio/0", "dev/vfio/vfio", "sys/bus/pci/devices/0000:00:05.0/vendor=0x1ae0\n"),
            ("torch_xla", "cuda"),
            COLAB,
            ("tpu", 1, "Colab TPU"),
            id="Colab TPU v5e-1",
        ),
        pytest.param(
            ("dev/accel0", "sys/bus/pci/devices/0/vendor=0x1ae0",
             "sys/bus/pci/devices/0/device=0x0027"),
            ("torch_xla",),
            {},
            ("tpu", 2, "TPU"),
            id="a TPU v3 chip that only its number names",
        ),
        pytest.param(
            ("dev/vfio/0", "sys/bus/pci/devices/0/vendor=0x10de"),
            ("torch_xla",),
            {},
            ("cpu", 0, "CPU"),
            id="VFIO of something else",
        ),
        pytest.param(
            (KFD.format(0) + "=cpu_cores_count 8\nsimd_count 0", KFD.format(1) + "=simd_count 256",
             KFD.format(2) + "=simd_count 256"),
            ("hip",),
            {},
            ("cuda", 2, "GPU"),
            id="ROCm",
        ),
        pytest.param(
            ("sys/class/drm/renderD128/device/vendor=0x8086",
             "sys/class/drm/renderD129/device/vendor=0x1002"),
            ("xpu",),
            {},
            ("xpu", 1, "GPU"),
            id="XPU",
        ),
        pytest.param(
            ("dev/davinci0", "dev/davinci1", "dev/davinci_manager"),
            ("torch_npu",),
            {"ASCEND_RT_VISIBLE_DEVICES": "1"},
            ("npu", 1, "GPU"),
            id="NPU",
        ),
        pytest.param(
            ("dev/accel/accel0", "dev/accel/accel1"),
            ("habana_frameworks",),
            {},
            ("hpu", 2, "GPU"),
            id="HPU",
        ),
    ],
)  # fmt: skip
def test_kinds_of_machines(machine, files, builds, environ, expected):
    here = machine(*files, builds=builds, **environ)

    assert (devices.kind(here), devices.count(here), devices.host(here)) == expected


def test_a_mac(machine):
    here = machine(builds=("mps",), platform="darwin")

    assert (devices.kind(here), devices.count(here), devices.visible([0], 0, here)) == (
        "mps",
        1,
        {},
    )


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", 0),
        ("0", 1),
        ("1,0", 2),
        ("0, 1", 2),
        ("-1", 0),
        ("0,7,1", 1),
        ("0,0", 0),
        ("NoDevFiles", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
        ("GPU-8932f937,GPU-12345678", 2),
        ("MIG-GPU-8932f937/1/0,MIG-GPU-8932f937/2/0,MIG-GPU-8932f937/3/0", 3),
        ("MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2", 1),
    ],
)
def test_what_cuda_visible_devices_leaves(machine, visible, expected):
    here = machine(*TWO_GPUS, builds=("cuda",), CUDA_VISIBLE_DEVICES=visible)

    assert devices.count(here) == expected
    assert devices.kind(here) == ("cuda" if expected else "cpu")


def test_a_rank_is_shown_its_own_device(machine):
    files = [f"dev/nvidia{index}" for index in range(8)]
    here = machine(*files, builds=("cuda",))

    assert [devices.visible([3, 5], rank, here) for rank in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": "3"},
        {"CUDA_VISIBLE_DEVICES": "5"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]


def test_devices_are_counted_among_those_that_the_kernel_may_use(machine):
    by_index = machine(*TWO_GPUS, builds=("cuda",), CUDA_VISIBLE_DEVICES="1,0")
    by_name = machine(*TWO_GPUS, builds=("cuda",), CUDA_VISIBLE_DEVICES="GPU-aaaa,MIG-bbbb")

    assert devices.visible([1], 0, by_index) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert devices.visible([1], 0, by_name) == {"CUDA_VISIBLE_DEVICES": "MIG-bbbb"}


def test_amd_devices_are_limited_by_their_own_variable(machine):
    here = machine(
        *(KFD.format(node) + "=simd_count 256" for node in range(4)),
        builds=("hip",),
        HIP_VISIBLE_DEVICES="2,3",
    )

    assert devices.count(here) == 2
    assert devices.visible([1], 0, here) == {"HIP_VISIBLE_DEVICES": "3"}


def test_without_an_accelerator_nothing_needs_to_be_shown(machine):
    assert devices.visible([0], 0, machine()) == {}


def test_names(machine):
    assert devices.name(0, machine()) == "CPU"
    assert devices.name(0, machine(*TWO_GPUS, builds=("cuda",))) == "CUDA"


@pytest.mark.parametrize(
    ("kind", "able"),
    [("cpu", False), ("mps", False), ("xpu", False), ("hpu", True), ("cuda", True)],
)
def test_who_computes_in_8_bits_as_far_as_can_be_told_asleep(machine, kind, able):
    assert devices.supports_fp8(kind, 0, machine(*TWO_GPUS, builds=("cuda",))) is able
