"""The floor: the least that running a function on N ranks can cost, written by hand.

The kernel holds a TCPStore on a loopback socket bound beforehand and forks N children from a fresh
thread. Each runs the function, sends its pickled value through a pipe, and leaves with os._exit.
There is no output capture, no report of failures, no view.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import sys
import threading
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import TCPStore

if TYPE_CHECKING:
    from collections.abc import Callable

READ_SIZE = 1 << 20


def run(function: Callable[..., Any], n: int, *args: Any) -> list[Any]:
    """Return what `function(*args)` returned on each of n ranks."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    pipes = [Pipe(duplex=False) for _ in range(n)]
    children = fork_each(n, lambda rank: _rank(function, args, rank, n, port, pipes[rank][1]))
    # Not before the forks: see nbstate.start.rendezvous.
    store = TCPStore(
        "127.0.0.1",
        port,
        n,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    for _, writer in pipes:
        writer.close()
    values = [pickle.loads(reader.recv_bytes()) for reader, _ in pipes]
    reap(children)
    del store
    return values


def _rank(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    n: int,
    port: int,
    out: Connection,
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (for as long as it lives)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // n))
    out.send_bytes(pickle.dumps(function(*args)))


def fork_each(n: int, body: Callable[[int], None]) -> list[int]:
    """Fork n children from one fresh thread (OpenMP works in those) and return their pids."""
    pids: list[int] = []

    def fork_all() -> None:
        for rank in range(n):
            pid = os.fork()
            if pid == 0:
                try:
                    body(rank)
                finally:
                    os._exit(0)
            pids.append(pid)

    thread = threading.Thread(target=fork_all)
    thread.start()
    thread.join()
    return pids


def reap(pids: list[int]) -> None:
    """Wait for the end of every child."""
    for pid in pids:
        os.waitpid(pid, 0)


def count_lines(
    function: Callable[..., Any], n: int, *args: Any, by_line: bool = True
) -> list[int]:
    """Return how many lines n children wrote to descriptor 1, read from their pipes in bulk.

    By line, a line is out when it is printed: before those of programs that the child starts after
    it, and whatever ends the child. Else lines gather in blocks of 8 kB first.
    """
    pipes = [os.pipe() for _ in range(n)]

    def body(rank: int) -> None:
        os.dup2(pipes[rank][1], 1)
        with open(1, "w", buffering=1 if by_line else -1, closefd=False) as out:
            function(*args, out=out)

    children = fork_each(n, body)
    for _, writer in pipes:
        os.close(writer)
    readers = {reader: rank for rank, (reader, _) in enumerate(pipes)}
    counts = [0] * n
    while readers:
        for reader in wait(list(readers)):
            chunk = os.read(reader, READ_SIZE)
            counts[readers[reader]] += chunk.count(b"\n")
            if not chunk:
                os.close(reader)
                del readers[reader]
    reap(children)
    return counts


def tensors(function: Callable[[], torch.Tensor], n: int, size: int) -> list[torch.Tensor]:
    """Return each rank's tensor of `size` float32 values: copied once, into memory we map."""
    files = [os.memfd_create(f"rank{rank}") for rank in range(n)]
    for file in files:
        os.ftruncate(file, size * 4)

    def mapped(rank: int) -> torch.Tensor:
        return torch.frombuffer(mmap.mmap(files[rank], size * 4), dtype=torch.float32)

    reap(fork_each(n, lambda rank: mapped(rank).copy_(function())))
    values = [mapped(rank) for rank in range(n)]
    for file in files:
        os.close(file)
    return values
