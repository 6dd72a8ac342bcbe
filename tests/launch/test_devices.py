"""Which of several accelerators ranks get, on a machine that only looks as if it had them."""

from __future__ import annotations

import pytest


@pytest.fixture
def eight_gpus(kernel, tmp_path):
    """A kernel that finds the device files of eight GPUs, which torch here cannot use."""
    (tmp_path / "machine/dev").mkdir(parents=True)
    for number in range(8):
        (tmp_path / f"machine/dev/nvidia{number}").touch()
    kernel.run(f"""
        import functools, os, pathlib
        from nbstate import devices, notebook_launcher
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        machine = dict(root=pathlib.Path({str(tmp_path / "machine")!r}), builds=frozenset({{"cuda"}}))
        devices.Machine = functools.partial(devices.Machine, nvml=False, **machine)
        def visible():
            return os.environ.get("CUDA_VISIBLE_DEVICES")
    """)
    return kernel


def test_each_rank_sees_the_one_it_was_given_and_the_kernel_all(eight_gpus):
    cell = eight_gpus.run("list(notebook_launcher(visible, devices=[3, 5])), visible()")
    assert cell.result == "(['3', '5'], None)"


def test_without_a_number_there_is_a_rank_for_each(eight_gpus):
    assert eight_gpus.run("len(notebook_launcher(visible))").result == "8"


def test_more_ranks_than_there_are_need_a_word(eight_gpus):
    refused = eight_gpus.run("notebook_launcher(visible, (), 9)")
    assert refused.error.evalue.startswith("num_processes=9 with 8 accelerators: ask for 8 at most")
    refused = eight_gpus.run("notebook_launcher(visible, (), 3, devices=[3])")
    assert refused.error.evalue.startswith("num_processes=3 with 1 accelerator: ask for 1 at most")
    refused = eight_gpus.run("notebook_launcher(visible, devices=[3, 8])")
    assert refused.error.evalue == "devices=[3, 8]: this machine has 8 accelerators"
    shared = "list(notebook_launcher(visible, (), 3, devices=[3, 5], oversubscribe=True))"
    assert eight_gpus.run(shared).result == "['3', '5', '3']"
