"""The helper itself: what the other tests believe about kernels is true."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.kernels import Kernel, KernelDiedError


def test_a_cell_shows_streams_result_and_status(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run("import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    assert (cell.stdout, cell.stderr, cell.result, cell.status) == ("out\n", "err\n", "42", "ok")


def test_an_error_comes_without_colours(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run("def f():\n    raise ValueError('boom')\nf()")
    assert (cell.status, cell.error.ename, cell.error.evalue) == ("error", "ValueError", "boom")
    assert "raise ValueError('boom')" in cell.error.traceback
    assert "\x1b" not in cell.error.traceback


def test_updates_reach_a_display_of_an_earlier_cell(shared_kernel: Kernel) -> None:
    first = shared_kernel.run("handle = display({'text/plain': 'one'}, raw=True, display_id=True)")
    assert first.displays == [{"text/plain": "one"}]
    shared_kernel.run("handle.update({'text/plain': 'two'}, raw=True)")
    assert first.displays == [{"text/plain": "two"}]


def test_messages_that_come_after_a_cell_has_ended_are_read_on_demand(
    shared_kernel: Kernel,
) -> None:
    cell = shared_kernel.run(
        "import threading\n"
        "go = threading.Event()\n"
        "handle = display('early', display_id=True)\n"
        "threading.Thread(target=lambda: (go.wait(), handle.update('late'))).start()"
    )
    assert cell.displays == [{"text/plain": "'early'"}]
    shared_kernel.start("go.set()")
    shared_kernel.read_until(lambda: cell.displays == [{"text/plain": "'late'"}], timeout=10)


def test_clear_output_waits_for_the_next_output(shared_kernel: Kernel) -> None:
    cell = shared_kernel.run(
        "from IPython.display import clear_output\nprint(1)\nclear_output(wait=True)\nprint(2)"
    )
    assert cell.stdout == "2\n"


def test_eval_carries_values(shared_kernel: Kernel) -> None:
    shared_kernel.run("text = 'ä' * 3000 + '\\n'")
    assert shared_kernel.eval("[text, 1.5, None, {'a': [True]}]") == [
        "ä" * 3000 + "\n",
        1.5,
        None,
        {"a": [True]},
    ]
    with pytest.raises(AssertionError, match="NameError: name 'nowhere' is not defined"):
        shared_kernel.eval("nowhere")


def test_an_interrupt_reaches_a_started_cell(shared_kernel: Kernel) -> None:
    cell = shared_kernel.start("print('in')\nimport threading; threading.Event().wait()")
    shared_kernel.read_until(lambda: cell.stdout == "in\n")
    shared_kernel.interrupt()
    assert shared_kernel.wait(cell).error.ename == "KeyboardInterrupt"


def test_prompts_are_answered() -> None:
    with Kernel(allow_stdin=True) as kernel:
        cell = kernel.run("input('name? ') + input('age? ')", answers=["Ada", "36"])
        assert (cell.prompts, cell.result) == (["name? ", "age? "], "'Ada36'")


def test_the_death_of_the_kernel_ends_the_wait_for_its_cell(kernel: Kernel) -> None:
    with pytest.raises(KernelDiedError):
        kernel.run("import ctypes; ctypes.string_at(0)")


def test_a_cell_that_does_not_end_fails_with_the_kernels_stacks(kernel: Kernel) -> None:
    with pytest.raises(AssertionError, match=r"(?s)did not finish in time.*in wait_for_ever"):
        kernel.run(
            "import threading\ndef wait_for_ever(): threading.Event().wait()\nwait_for_ever()",
            timeout=1,
        )


def test_an_orphan_is_seen_after_the_kernel_was_killed(kernel: Kernel) -> None:
    kernel.run("import subprocess; child = subprocess.Popen(['sleep', '600'])")
    (child,) = kernel.children()
    kernel.kill()
    assert child in psutil.Process().children()
    child.send_signal(signal.SIGKILL)


def test_a_restart_forgets_variables(kernel: Kernel) -> None:
    kernel.run("x = 1")
    kernel.restart()
    assert kernel.eval("'x' in globals()") is False
