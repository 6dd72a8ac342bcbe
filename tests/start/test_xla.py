"""Launches on a TPU: each rank is one of torch_xla's processes, and the kernel opens nothing."""

from __future__ import annotations

import ast

import pytest

from tests.kernels import Kernel
from tests.start.fake_xla import FakeXLA

TRAIN = """
import os, torch, torch_xla
from nbstate import PartialState, devices, launch, notebook_launcher

def train(word="here"):
    state = PartialState()
    print(word, "from", state.process_index)
    return (state.process_index, state.num_processes, str(state.device),
            str(state.distributed_type.value), os.environ["TPU_VISIBLE_CHIPS"])
"""


@pytest.fixture
def fake(tmp_path):
    return FakeXLA(tmp_path / "fake")


@pytest.fixture
def tpu(fake, tmp_path):
    """A kernel on a machine with a TPU of four chips, as Kaggle and Colab have them."""
    with Kernel(tmp_path / "cwd", env=fake.environment | {"PJRT_DEVICE": "TPU"}) as kernel:
        kernel.run(fake.lay_out_tpu(chips=4))
        kernel.run(TRAIN)
        yield kernel


def result(cell):
    assert cell.error is None, cell.error
    return ast.literal_eval(cell.result)


def test_without_a_number_all_cores_are_used_and_the_kernel_opens_nothing(tpu, fake):
    told = result(tpu.run("list(notebook_launcher(train))"))
    assert told == [(rank, 4, "xla:0", "XLA", str(rank)) for rank in range(4)]
    calls = fake.calls()
    assert tpu.pid not in {pid for pid, _ in calls}
    assert sorted(what for _, what in calls if what.startswith("initialize")) == [
        f"initialize_multiprocess {rank} 4" for rank in range(4)
    ]
    assert {what for _, what in calls} >= {f"ordinal {rank} of 4" for rank in range(4)}
    assert result(tpu.run("devices.woken(), os.environ.get('PJRT_LOCAL_PROCESS_RANK')")) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("chips", "service", "told"),
    [
        (1, {"COLAB_RELEASE_TAG": "release-colab"}, "1 tpu: TPU (Colab TPU)"),
        (8, {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "8 tpu: TPU (Kaggle TPU)"),
    ],
)
def test_the_tpus_of_notebook_services_are_found_and_used(fake, tmp_path, chips, service, told):
    environment = fake.environment | service | {"PJRT_DEVICE": "TPU"}
    with Kernel(tmp_path / "cwd", env=environment) as kernel:
        kernel.run(fake.lay_out_tpu(chips))
        kernel.run(TRAIN)
        found = result(kernel.run("import nbstate; {c.name: c.text for c in nbstate.doctor()}"))
        assert found["devices"] == told
        assert found["ranks"].startswith(f"{chips} unless")
        assert fake.calls() == []
        cell = kernel.run("[told[:2] for told in notebook_launcher(train)]")
        assert result(cell) == [(rank, chips) for rank in range(chips)]


def test_one_core_is_a_process_of_its_own_too_and_all_can_follow(tpu, fake):
    assert result(tpu.run("notebook_launcher(train, (), 1)[0]")) == (0, 1, "xla:0", "XLA", "0")
    assert [what for _, what in fake.calls()][:2] == ["initialize_singleprocess", "runtime"]
    assert len(result(tpu.run("list(notebook_launcher(train, (), 4))"))) == 4
    assert tpu.pid not in {pid for pid, _ in fake.calls()}


def test_output_failures_and_interrupts_are_those_of_every_launch(tpu):
    cell = tpu.run("job = launch(train, 'good day'); job.wait(); job.ranks[2].stdout")
    assert result(cell) == "good day from 2\n"
    failed = tpu.run("""
        def fail():
            if PartialState().process_index == 3: raise ValueError("boom")
        notebook_launcher(fail)
    """)
    assert failed.error.evalue.startswith("rank 3 of 4: ValueError: boom")
    assert 'raise ValueError("boom")' in failed.error.traceback
    assert "pjrt" not in failed.error.traceback
    waiting = tpu.start("""
        import signal
        def wait():
            print("up")
            signal.pause()
        notebook_launcher(wait)
    """)
    tpu.read_until(lambda: "[0-3] up" in waiting.stdout)
    tpu.interrupt()
    tpu.wait(waiting)
    assert waiting.error.ename == "KeyboardInterrupt"


@pytest.mark.parametrize("ranks", [2, 3])
def test_another_number_is_refused_by_name(tpu, fake, ranks):
    refused = tpu.run(f"notebook_launcher(train, (), {ranks})")
    assert refused.error.ename == "ValueError"
    assert refused.error.evalue.startswith(
        f"num_processes={ranks} on a TPU with 4 cores: torch_xla uses 1 of them or all 4"
    )
    assert fake.calls() == []


def test_cores_that_share_a_process_are_refused_with_the_way_out(tpu, fake):
    tpu.run("os.environ['TPU_ACCELERATOR_TYPE'] = 'v3-8'")
    refused = tpu.run("notebook_launcher(train)")
    assert refused.error.ename == "ValueError"
    assert refused.error.evalue.startswith("num_processes=8 on a TPU v2 or v3: two of its cores")
    assert "torch_xla.launch(train)" in refused.error.evalue
    problems = result(tpu.run("import nbstate; [c.text for c in nbstate.doctor().problems]"))
    assert problems == [refused.error.evalue]
    assert result(tpu.run("notebook_launcher(train, (), 1)[0][:2]")) == (0, 1)


def test_a_tpu_that_the_kernel_has_opened_is_told(tpu):
    tpu.run("os.environ['TPU_VISIBLE_CHIPS'] = '0'; torch_xla.device()")
    refused = tpu.run("notebook_launcher(train)")
    assert refused.error.ename == "RuntimeError"
    assert refused.error.evalue.startswith("this kernel has opened the TPU")


def test_ranks_on_the_cpu_have_nothing_to_do_with_it(tpu, fake):
    cell = tpu.run("list(notebook_launcher(lambda: str(PartialState().device), (), 2, cpu=True))")
    assert result(cell) == ["cpu", "cpu"]
    assert fake.calls() == []


def test_without_a_tpu_torch_xla_counts_once_the_kernel_has_used_it_and_has_one_device(
    fake, tmp_path
):
    with Kernel(tmp_path / "cwd", env=fake.environment | {"PJRT_DEVICE": "CPU"}) as kernel:
        kernel.run(TRAIN)
        untouched = "list(notebook_launcher(lambda: str(PartialState().device), (), 2))"
        assert result(kernel.run(untouched)) == ["cpu", "cpu"]
        assert fake.calls() == []
        kernel.run("os.environ['TPU_VISIBLE_CHIPS'] = '0'; torch_xla.device()")
        cell = kernel.run("notebook_launcher(train)[0]")
        assert result(cell) == (0, 1, "xla:0", "XLA", "0")
        assert "no restart is needed" in cell.stdout
        refused = kernel.run("notebook_launcher(train, (), 2)")
    assert refused.error.evalue.startswith("num_processes=2 with PJRT_DEVICE='CPU'")
    assert "cpu=True for 2 ranks" in refused.error.evalue
