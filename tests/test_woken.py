"""Which line, cell or import woke an accelerator: told at the next launch, and by the doctor."""

from __future__ import annotations

import pytest

SETUP = """
import sys, types
import torch
import nbstate
from nbstate import notebook_launcher
def train(): return 1
"""

# Stands for what a call on a device does in torch: it runs what waits for CUDA, and opens it.
OPEN = """
source = '''
import torch
def open_cuda():
    for waiting, _ in torch.cuda._queued_calls: waiting()
    torch.cuda.is_initialized = lambda: True
'''
exec(compile(source, torch.cuda.__file__, "exec"))
"""
WAKE = "torch.cuda.is_initialized = lambda: True"


def launch(kernel):
    cell = kernel.run("notebook_launcher(train, (), 2)")
    assert cell.error is None, cell.error
    (line,) = [line for line in cell.stdout.splitlines() if "no restart is needed" in line]
    return line


def test_the_line_that_opened_cuda_is_told(kernel):
    kernel.run(SETUP + OPEN)
    cell = kernel.run("x = 1\ndef look():\n    open_cuda()\nlook()")
    number = cell.contents("execute_input")[0]["execution_count"]
    expected = f"(woken: Cell In[{number}], line 3, in look: open_cuda())"
    assert launch(kernel).endswith(expected)
    refused = kernel.run("notebook_launcher(train, (), 2, start_method='fork')")
    assert refused.error.ename == "RuntimeError"
    assert expected in refused.error.evalue


def test_the_cell_is_told_where_the_line_is_not_known(kernel):
    kernel.run(SETUP)
    kernel.run("y = 2")
    cell = kernel.run(WAKE)
    number = cell.contents("execute_input")[0]["execution_count"]
    kernel.run("z = 3")
    assert launch(kernel).endswith(f"(woken: Cell In[{number}])")
    found = kernel.run("[c.text for c in nbstate.doctor() if c.name == 'runtimes']")
    assert found.result == f"['CUDA is in use in this process: Cell In[{number}]']"


def test_an_import_that_is_known_to_wake_devices_is_named(kernel):
    kernel.run(SETUP)
    cell = kernel.run(f"sys.modules['bitsandbytes'] = types.ModuleType('bitsandbytes')\n{WAKE}")
    number = cell.contents("execute_input")[0]["execution_count"]
    expected = f"(woken: Cell In[{number}], by its import of bitsandbytes)"
    assert launch(kernel).endswith(expected)


def test_a_device_woken_in_the_cell_that_launches(kernel):
    kernel.run(SETUP)
    cell = kernel.run(f"{WAKE}\nnotebook_launcher(train, (), 2)")
    assert "(woken: this cell)" in cell.stdout


@pytest.mark.parametrize("first", ["import torch", "import torch, IPython"])
def test_a_device_woken_before_nbstate_was_there(kernel, first):
    kernel.run(f"{first}\n{WAKE}")
    kernel.run(SETUP)
    assert launch(kernel).endswith("(woken: before nbstate was imported)")


def test_a_first_waker_stays_the_first_and_ranks_do_not_count(kernel):
    kernel.run(SETUP + OPEN)
    kernel.run("notebook_launcher(open_cuda, (), 2)")  # in ranks, not in the kernel
    unwoken = kernel.run("[c.status for c in nbstate.doctor() if c.name == 'runtimes']")
    assert unwoken.result == "['ok']"
    first = kernel.run(WAKE)
    kernel.run("open_cuda()")
    number = first.contents("execute_input")[0]["execution_count"]
    assert launch(kernel).endswith(f"(woken: Cell In[{number}])")
