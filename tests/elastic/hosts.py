"""Hosts that are network namespaces of this machine, joined by a switch of their own.

    host 0 -- e0 10.77.0.1 --+
    host 1 -- e0 10.77.0.2 --+-- switch (a namespace with a bridge)
    host 2 -- e0 10.77.0.3 --+

Each host also has e1, 10.78.0.x, to a second bridge: an interface on which nothing should listen.
What they send stays among them: there is no way out of the switch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HOSTS = 3
LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def missing() -> str:
    """Say what there is not to make hosts of, or ``""``."""
    if shutil.which("ip") is None:
        return "needs iproute2"
    if os.geteuid() != 0:
        return "needs root, who may make network namespaces"
    tried = ["ip", "netns", "add", f"nbs{os.getpid()}-try"]
    made = subprocess.run(tried, check=False, capture_output=True)
    if made.returncode:
        return f"cannot make network namespaces: {made.stderr.decode().strip()}"
    _ip("netns", "del", f"nbs{os.getpid()}-try")
    return ""


class Host:
    """One host; `command` runs programs in it."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number + 1}"
        self.other_address = f"10.78.0.{number + 1}"

    @property
    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def listening(self) -> set[tuple[str, int]]:
        """Return the addresses and ports at which anything listens."""
        found = set()
        for table in ("tcp", "tcp6"):
            text = subprocess.check_output([*self.command, "cat", f"/proc/net/{table}"], text=True)
            for line in text.splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == LISTEN:
                    address, _, port = local.partition(":")
                    found.add((_address(address), int(port, 16)))
        return found

    def unplug(self) -> None:
        """Pull its cable: nothing gets in or out, and nobody is told."""
        _ip("-n", self.name, "link", "set", "e0", "down")

    def plug_in(self) -> None:
        _ip("-n", self.name, "link", "set", "e0", "up")


class Network:
    """Three hosts and their switch, gone again after a `with`."""

    def __init__(self) -> None:
        base = f"nbs{os.getpid()}"
        self._switch = f"{base}-switch"
        self.hosts = [Host(f"{base}-{number}", number) for number in range(HOSTS)]

    def __enter__(self) -> list[Host]:
        _ip("netns", "add", self._switch)
        for bridge in ("br0", "br1"):
            _ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
            _ip("-n", self._switch, "link", "set", bridge, "up")
        for number, host in enumerate(self.hosts):
            _ip("netns", "add", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
            self._connect(host, "e0", host.address, f"p{number}", "br0")
            self._connect(host, "e1", host.other_address, f"q{number}", "br1")
        return self.hosts

    def _connect(self, host: Host, end: str, address: str, port: str, bridge: str) -> None:
        far = ["type", "veth", "peer", "name", port, "netns", self._switch]
        _ip("-n", host.name, "link", "add", end, *far)
        _ip("-n", host.name, "addr", "add", f"{address}/24", "dev", end)
        _ip("-n", host.name, "link", "set", end, "up")
        _ip("-n", self._switch, "link", "set", port, "master", bridge, "up")

    def __exit__(self, *exc: object) -> None:
        made = {path.name for path in Path("/run/netns").iterdir()}
        for name in [*(host.name for host in self.hosts), self._switch]:
            if name in made:
                _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _address(told: str) -> str:
    """Return an address of /proc/net/tcp as text; of IPv6 only whether it is one."""
    if len(told) != 8:
        return "::"
    return ".".join(str(int(told[at : at + 2], 16)) for at in (6, 4, 2, 0))
