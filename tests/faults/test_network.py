"""One machine needs no network: no host name, no route, no fixed port."""

from __future__ import annotations

from tests.faults.conftest import forked, setup
from tests.faults.inside import with_namespaces
from tests.kernels import Kernel

TRAIN = """
def train():
    PartialState()
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()
"""

LAUNCHES = """
import socket
try:
    held = socket.create_server(("127.0.0.1", 29500))
except OSError:
    held = None     # the other kernel holds it
def one(): return list(notebook_launcher(train, num_processes=2, view="silent"))
[one() for _ in range(10)]
"""


def test_loopback_alone_and_a_host_name_that_nobody_knows(start_method):
    cell = with_namespaces(
        ["--net", "--uts"],
        "ip link set lo up; hostname nowhere.invalid",
        setup(start_method),
        TRAIN,
        "import socket\nsocket.gethostname(), list(notebook_launcher(train, num_processes=2))",
    )
    assert cell.error is None
    assert cell.result == "('nowhere.invalid', [2.0, 2.0])"


@forked("the port is the kernel's")
def test_two_kernels_launch_at_the_same_moment(tmp_path, start_method):
    with Kernel(tmp_path / "one") as one, Kernel(tmp_path / "other") as other:
        for kernel in (one, other):
            kernel.run(setup(start_method) + TRAIN)
        cells = [kernel.start(LAUNCHES) for kernel in (one, other)]
        for kernel, cell in zip((one, other), cells, strict=True):
            kernel.wait(cell)
            assert cell.error is None
            assert eval(cell.result) == [[2.0, 2.0]] * 10
