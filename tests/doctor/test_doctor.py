"""The doctor's report: what a launch here would do, in a kernel and from the command line."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest

NAMES = [
    "versions",
    "front end",
    "this process",
    "devices",
    "runtimes",
    "start method",
    "ranks",
    "threads",
    "cores",
    "memory",
    "/dev/shm",
    "logs",
    "rendezvous",
]

PRINT = """
import json, nbstate
found = nbstate.doctor()
print(json.dumps({check.name: [check.status, check.text, check.fix] for check in found}))
"""


def ask(before="", **environment):
    """The report of a process in which some lines ran before, as {name: [status, text, fix]}."""
    left_out = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "NBSTATE_VIEW")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", before + PRINT],
        env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sound_machine_is_told_line_by_line_in_one_order():
    found = ask()
    assert list(found) == NAMES
    assert "problem" not in {status for status, _, _ in found.values()}
    assert "torch 2." in found["versions"][1]
    assert found["runtimes"][:2] == [
        "ok",
        "asleep: nothing in this process has used an accelerator",
    ]
    assert found["start method"][1].startswith("fork: ")
    assert found["front end"][1] == "plain Python; a run shows as plain"


def test_the_command_prints_it():
    done = subprocess.run(
        [sys.executable, "-m", "nbstate", "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [name for name in NAMES if any(f" {name} " in line for line in lines)] == NAMES
    wrong = subprocess.run(
        [sys.executable, "-m", "nbstate", "nurse"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "doctor" in wrong.stderr


def test_a_problem_has_its_fix_and_the_command_fails():
    environment = os.environ | {"NBSTATE_VIEW": "huge"}
    done = subprocess.run(
        [sys.executable, "-m", "nbstate", "doctor"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (at,) = [at for at, line in enumerate(done.stdout.splitlines()) if line.startswith("problem")]
    line, fix = done.stdout.splitlines()[at : at + 2]
    assert "NBSTATE_VIEW='huge'" in line
    assert fix.strip() == "-> unset NBSTATE_VIEW"


def test_nothing_is_woken_and_no_process_started():
    before = """
import multiprocessing, os, subprocess, torch
def alarm(*args, **kwargs): raise AssertionError("the doctor changes nothing")
for module, names in {
    torch.cuda: ["init", "_lazy_init", "is_available", "device_count"],
    os: ["fork"], subprocess: ["Popen"], multiprocessing.Process: ["start"],
}.items():
    for name in names: setattr(module, name, alarm)
"""
    assert list(ask(before)) == NAMES


def test_who_woke_a_device_and_what_follows():
    found = ask("import torch\ntorch.cuda.is_initialized = lambda: True\n")
    assert found["runtimes"][0] == "note"
    told = "CUDA is in use in this process: before nbstate was imported"
    assert found["runtimes"][1] == told
    assert found["start method"][0] == "note"
    assert found["start method"][1].startswith("forkserver: ")
    assert "no restart is needed" in found["start method"][1]


@pytest.mark.parametrize(
    ("check", "environment", "status", "told"),
    [
        ("this process", {"RANK": "3", "WORLD_SIZE": "4"}, "note", "RANK, WORLD_SIZE set: "),
        ("front end", {"NBSTATE_VIEW": "silent"}, "note", "a run shows as silent"),
        ("ranks", {"OMP_NUM_THREADS": "3"}, "ok", "threads per rank: OMP_NUM_THREADS=3"),
    ],
)
def test_the_environment_counts(check, environment, status, told):
    found = ask(**environment)[check]
    assert found[0] == status
    assert told in found[1]


def test_scarce_memory_is_told_with_the_fix():
    before = """
import psutil, shutil
class Little: total, available = 1 << 31, 1 << 28
psutil.virtual_memory = lambda: Little
real = shutil.disk_usage
def usage(path):
    small = {"total": 64 << 20, "free": 60 << 20} if str(path) == "/dev/shm" else {}
    return real(path)._replace(**small)
shutil.disk_usage = usage
"""
    found = ask(before)
    assert found["memory"][:2] == ["note", "256 MiB free of the machine's 2.0 GiB"]
    status, text, fix = found["/dev/shm"]
    assert (status, text.split(";")[0]) == ("note", "60 MiB free of 64 MiB")
    assert "--shm-size" in fix


def test_a_deaf_loopback_is_a_problem():
    before = """
import socket
def refuse(*args, **kwargs): raise ConnectionRefusedError(111, "Connection refused")
socket.create_connection = refuse
"""
    assert ask(before)["rendezvous"] == [
        "problem",
        "the loopback address 127.0.0.1 does not answer: Connection refused",
        "let this process listen on and connect to 127.0.0.1",
    ]


def test_it_names_no_user_and_no_home(tmp_path):
    home = tmp_path / "home" / "gertrude"
    home.mkdir(parents=True)
    spoil = f"""
from nbstate import environment
environment.choose_view = lambda kind: "{home}/plain"
environment.front_end = lambda: environment.FrontEnd("/home/ada/lab and /Users/grace", "plain")
"""
    told = json.dumps(ask(spoil, HOME=str(home), USER="gertrude"))
    assert "~/plain" in told
    assert [name for name in ("gertrude", "ada", "grace") if name in told] == []


def test_in_a_kernel_it_is_a_table_and_says_which_rank_one_is_in(kernel):
    cell = kernel.run("import nbstate\nnbstate.doctor()")
    (bundle,) = cell.displays
    assert [line for line in bundle["text/plain"].splitlines() if "headless; a run" in line]
    assert bundle["text/html"].count("<tr>") == 1 + len(NAMES)
    again = kernel.run("nbstate.doctor()").displays[0]
    stable = [line for line in bundle["text/plain"].splitlines() if "free" not in line]
    assert [line for line in again["text/plain"].splitlines() if "free" not in line] == stable
    in_ranks = kernel.run("""
        def look(): return [check.text for check in nbstate.doctor().problems]
        told = nbstate.notebook_launcher(look, (), 2)
        [text for texts in told for text in texts]
    """)
    assert in_ranks.error is None
    assert ast.literal_eval(in_ranks.result) == [
        f"rank {rank} of 2: a rank cannot launch ranks" for rank in range(2)
    ]
