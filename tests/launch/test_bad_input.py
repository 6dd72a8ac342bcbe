"""Every mistake in a call is told in one line, before a process exists."""

from __future__ import annotations

import pytest

from nbstate import LaunchOptions, launch, notebook_launcher


def train(lr):
    return lr


CASES = [
    (lambda: notebook_launcher(train("x"), (0.1,), 2), TypeError, "pass train, not train()"),
    (lambda: notebook_launcher(train, "abc", 2), TypeError, "args=('abc',)"),
    (lambda: notebook_launcher(train, (), 2), TypeError, "train(lr) cannot be called with args=()"),
    (lambda: notebook_launcher(train, (1, 2), 2), TypeError, "too many positional"),
    (lambda: notebook_launcher(train, (1,), 2, kwargs=[1]), TypeError, "kwargs=[1]"),
    (lambda: notebook_launcher(train, (1,), 0), ValueError, "num_processes=0"),
    (lambda: notebook_launcher(train, (1,), "2"), TypeError, "num_processes='2'"),
    (lambda: notebook_launcher(train, (1,), True), TypeError, "num_processes=True"),
    (lambda: notebook_launcher(train, (1,), 2, "bf17"), ValueError, "'no', 'fp16', 'bf16', 'fp8'"),
    (lambda: notebook_launcher(train, (1,), 2, use_port=70000), ValueError, "use_port=70000"),
    (lambda: notebook_launcher(train, (1,), 2, use_port="http"), TypeError, "use_port='http'"),
    (lambda: notebook_launcher(train, (1,), 2, cpu=True, devices=[9]), ValueError, "devices=[9]"),
    (
        lambda: notebook_launcher(train, (1,), 2, seed=("per_rank", None)),
        ValueError,
        "seed=('per_rank', None)",
    ),
    (
        lambda: notebook_launcher(train, (1,), 2, node_rank=1),
        ValueError,
        "node_rank=1 with num_nodes=1: node_rank counts from 0 to 0",
    ),
    (lambda: notebook_launcher(train, (1,), 2, num_nodes=0), ValueError, "num_nodes=0"),
    (
        lambda: notebook_launcher(train, (1,), 2, num_nodes=(1, 3)),
        ValueError,
        "num_nodes=(1, 3): a range of nodes needs rdzv_backend='c10d'",
    ),
    (
        lambda: notebook_launcher(train, (1,), 2, num_nodes=(3, 1), rdzv_backend="c10d"),
        ValueError,
        "num_nodes=(3, 1)",
    ),
    (
        lambda: notebook_launcher(train, (1,), 2, num_nodes=2, rdzv_conf={"timeout": 5}),
        ValueError,
        "rdzv_conf has 'timeout': there are join_timeout",
    ),
    (
        lambda: notebook_launcher(train, (1,), 2, rdzv_conf={"join_timeout": 0}),
        ValueError,
        "rdzv_conf['join_timeout']=0",
    ),
    (
        lambda: notebook_launcher(train, (1,), 2, num_nodes=2, gather_results=True),
        ValueError,
        "give all notebooks of the run the same rdzv_id",
    ),
    (lambda: notebook_launcher(train, (1,), 2, num_nodes=2, trace=True), ValueError, "trace=True"),
    (lambda: notebook_launcher(train, (1,), 2, rdzv_endpoint=5), TypeError, "rdzv_endpoint=5"),
    (lambda: notebook_launcher(train, (1,), 2, start_method="thread"), ValueError, "'fork'"),
    (lambda: notebook_launcher(train, (1,), 2, view="bord"), ValueError, "'board', 'plain'"),
    (lambda: notebook_launcher(train, (1,), 2, veiw="board"), TypeError, "did you mean 'view'"),
    (lambda: notebook_launcher(train, (1,), num_process=2), TypeError, "mean 'num_processes'"),
    (lambda: notebook_launcher(train, (1,), 2, timeout=-1), ValueError, "timeout=-1"),
    (lambda: notebook_launcher(train, (1,), 2, grace="5"), TypeError, "grace='5'"),
    (lambda: notebook_launcher(train, (1,), 2, threads_per_rank=0), ValueError, "threads_per_rank"),
    (lambda: notebook_launcher(train, (1,), 2, env={"A": 1}), TypeError, "env={'A': 1}"),
    (lambda: notebook_launcher(train, (1,), 2, seed="0"), ValueError, "seed='0'"),
    (lambda: notebook_launcher(train, (1,), 2, devices="0,1"), TypeError, "devices='0,1'"),
    (lambda: notebook_launcher(train, (1,), 2, devices=[5]), ValueError, "devices=[5]"),
    (lambda: notebook_launcher(train, (1,), devices=[99]), ValueError, "devices=[99]"),
    (lambda: notebook_launcher(train, (1,), 1, write_back=3), TypeError, "write_back=3"),
    (lambda: notebook_launcher(train, (1,), 2, devices=[1, 1]), ValueError, "each device once"),
    (lambda: notebook_launcher(train, (1,), 2, write_back=(1,)), TypeError, "write_back=(1,)"),
    (lambda: notebook_launcher(train, (1,), 2, log_dir=3), TypeError, "log_dir=3"),
    (lambda: notebook_launcher(train, (1,), 2, wait=1), TypeError, "wait=1"),
    (lambda: notebook_launcher(train, (1,), 2, log_dir="/proc/logs"), ValueError, "log_dir='/proc"),
    (lambda: notebook_launcher(train, (1,), 2, log_dir="/proc"), ValueError, "can be written to"),
    (
        lambda: notebook_launcher(train, (), 2, lr=0.1),
        TypeError,
        "'lr': no option, but an argument of train: pass kwargs={'lr': 0.1}",
    ),
    (lambda: launch(train, lr=1, num_processes=2), TypeError, "pass kwargs={'lr': 1}"),
    (lambda: launch(train, lt=1, num_processes=2), TypeError, "unknown option 'lt'"),
    (lambda: launch(train, 1, num_processes=2, trace=1), TypeError, "trace=1"),
]


@pytest.mark.parametrize(("call", "kind", "told"), CASES, ids=[case[2] for case in CASES])
def test_a_mistake_is_told_in_one_line(call, kind, told):
    with pytest.raises(kind) as caught:
        call()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


MISTAKES = {
    "notebook_launcher(train, 1, 2)": "TypeError: args=1: expected a tuple or list, such as args=(1,)",
    "notebook_launcher(train, (1,), 2, veiw='board')": "TypeError: unknown option 'veiw'",
    "launch(train, 1, num_processes=2, log_dir='/proc/logs')": "ValueError: log_dir='/proc/logs'",
    "Session(2, timeout=3)": "TypeError: timeout=3: a session has no such option",
    "Session(0)": "ValueError: num_processes=0",
    "Accelerator('bf17')": "ValueError: mixed_precision='bf17'",
    "GradientAccumulationPlugin(0)": "ValueError: GradientAccumulationPlugin: num_steps=0",
    "nbstate.inspect(3)": "TypeError: inspect(3): expected a job or a session",
    "job.wait('a')": "TypeError: timeout='a': expected seconds, or None to wait for ever",
    "notebook_launcher(train, (lock,), 2, start_method='spawn')": (
        "UnpicklableError: args[0] cannot travel between processes (_thread.lock)"
    ),
}


@pytest.mark.parametrize("call", MISTAKES)
def test_a_cell_shows_its_own_line_and_the_message_and_nothing_of_ours(shared_kernel, call):
    shared_kernel.run("""
        import nbstate, threading
        from nbstate import *
        lock = threading.Lock()
        job = launch(print, num_processes=2, view="silent")
    """)
    cell = shared_kernel.run(f"def train(lr): ...\ndef start():\n    {call}\nstart()")
    shown = cell.error.traceback
    arrows = [line for line in shown.splitlines() if line.startswith("--")]
    assert [line.lstrip("-> 0123456789") for line in arrows[1:]] == ["start()", call]
    assert shown.splitlines()[-1].startswith(MISTAKES[call])
    assert "nbstate/" not in shown


def test_so_do_cells_that_ask_a_session_for_what_it_cannot_do(kernel):
    kernel.run("import threading\nfrom nbstate import *\nsession = Session(2)")
    calls = {
        "session.push(lock=threading.Lock())": "lock cannot travel between processes",
        "session.run(3)": "function=3: expected a function",
        "session.cell('1', ranks=[5])": "rank 5 of 2: there are ranks 0 to 1",
    }
    for call, told in calls.items():
        shown = kernel.run(call).error.traceback
        assert f"----> 1 {call}" in shown
        assert told in shown.splitlines()[-1]
        assert "session.py" not in shown
    kernel.run("session.close()")


def test_an_error_of_the_users_own_function_is_shown_in_full(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        def train(lr):
            raise ValueError("lr is too high")
        notebook_launcher(train, (1,), 1)
    """)
    assert 'raise ValueError("lr is too high")' in cell.error.traceback


def test_a_taken_port_is_named_with_who_holds_it():
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match=f"use_port={port}.*pid {os.getpid()}"):
            notebook_launcher(train, (1,), 2, use_port=port)


def test_an_address_that_is_not_this_machines_is_not_taken_for_a_port():
    with pytest.raises(OSError, match=r"master_addr='192\.0\.2\.1'.*needs no master_addr"):
        notebook_launcher(train, (1,), 2, use_port=29501, master_addr="192.0.2.1")


def test_a_port_and_a_precision_may_be_written_as_accelerates_users_do():
    options = LaunchOptions(use_port="29501", mixed_precision="BF16")
    assert (options.use_port, options.mixed_precision) == (29501, "bf16")


def test_options_are_frozen_and_documented():
    options = LaunchOptions(seed=3)
    with pytest.raises(AttributeError):
        options.seed = 4
    for name in LaunchOptions.__dataclass_fields__:
        assert name in LaunchOptions.__doc__, f"{name} is not documented"
