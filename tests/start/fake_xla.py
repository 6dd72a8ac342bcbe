"""A stand-in for torch_xla that writes down, with the process, whatever opens the runtime.

A package of its own on the path, not a patch: real TPUs are not at hand.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "__init__.py": """
import os

def note(what):
    with open(os.environ["FAKE_XLA_CALLS"], "a") as calls:
        calls.write(f"{os.getpid()} {what}\\n")

_open = []

class _XLAC:
    @staticmethod
    def _xla_runtime_is_initialized():
        return bool(_open)

def open_runtime(what):
    if "TPU_VISIBLE_CHIPS" not in os.environ:
        raise RuntimeError("this process was not set up as one of torch_xla's")
    _open.append(what)
    note(what)

def device():
    import torch
    open_runtime("device")
    return torch.device("xla", 0)

def sync():
    note("sync")
""",
    "runtime.py": """
import os, torch_xla

def global_ordinal():
    return int(os.environ["PJRT_LOCAL_PROCESS_RANK"])

local_ordinal = global_ordinal

def world_size():
    return int(os.environ["PJRT_LOCAL_PROCESS_COUNT"])

def addressable_device_count():
    return 1

def _init_world_size_ordinal():
    torch_xla.note(f"ordinal {global_ordinal()} of {world_size()}")
""",
    "core/__init__.py": "",
    "core/xla_model.py": "",
    "_internal/__init__.py": "",
    "_internal/pjrt.py": """
import os, torch_xla

def initialize_singleprocess():
    torch_xla.note("initialize_singleprocess")
    _be(0, 1)

def initialize_multiprocess(local_rank, local_world_size):
    torch_xla.note(f"initialize_multiprocess {local_rank} {local_world_size}")
    _be(local_rank, local_world_size)

def _be(rank, size):
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(rank)
    os.environ["PJRT_LOCAL_PROCESS_COUNT"] = str(size)
    os.environ["TPU_VISIBLE_CHIPS"] = str(rank)
    torch_xla.open_runtime("runtime")
""",
}


class FakeXLA:
    """The package in a folder, and the calls that processes made to it.

    Parameters
    ----------
    folder
        Where the package goes; it belongs on the path of the kernel.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"
        for name, text in FILES.items():
            path = folder / "torch_xla" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a kernel that finds the package."""
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        return {"PYTHONPATH": path, "FAKE_XLA_CALLS": str(self._calls)}

    def calls(self) -> list[tuple[int, str]]:
        """Who did what, in order: pairs of a process and words."""
        if not self._calls.exists():
            return []
        lines = (line.partition(" ") for line in self._calls.read_text().splitlines())
        return [(int(pid), what) for pid, _, what in lines]

    def lay_out_tpu(self, chips: int) -> str:
        """Make the device files of a TPU; the code that has a kernel look for devices there."""
        root = self.folder / "machine"
        for number in range(chips):
            (root / "dev").mkdir(parents=True, exist_ok=True)
            (root / f"dev/accel{number}").touch()
        return f"""
            import functools, pathlib
            from nbstate import devices
            machine = dict(root=pathlib.Path({str(root)!r}), builds=frozenset({{"torch_xla"}}))
            devices.Machine = functools.partial(devices.Machine, **machine)
        """
