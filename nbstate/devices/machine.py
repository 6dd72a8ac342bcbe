"""What a machine shows of its accelerators unasked: files, variables, installed packages."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache
def _torch_builds() -> frozenset[str]:
    """What torch was built for, and the packages that teach it more."""
    import torch

    flags = {
        "cuda": torch.version.cuda is not None,
        "hip": torch.version.hip is not None,
        "xpu": getattr(torch.version, "xpu", None) is not None,
        "mps": torch.backends.mps.is_built(),
    }
    packages = ("torch_xla", "torch_npu", "habana_frameworks")
    installed = {name for name in packages if importlib.util.find_spec(name) is not None}
    return frozenset(name for name, built in flags.items() if built) | installed


@dataclass(frozen=True)
class Machine:
    """The evidence that discovery goes by; the tests lay out machines of their own.

    Parameters
    ----------
    root : Path
        Where ``/dev`` and ``/sys`` are.
    environ : mapping
        Environment variables.
    builds : frozenset of str
        What torch was built for ('cuda', 'hip', 'xpu', 'mps') and installed packages.
    platform : str
        As `sys.platform`.
    nvml : bool
        Whether NVIDIA's management library may be asked.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    builds: frozenset[str] = field(default_factory=_torch_builds)
    platform: str = sys.platform
    nvml: bool = True

    def files(self, pattern: str) -> list[Path]:
        """The files that match, such as ``dev/nvidia[0-9]*``."""
        return sorted(self.root.glob(pattern))

    def texts(self, pattern: str) -> list[str]:
        """What stands in the files that match, those that cannot be read left out."""
        found = []
        for path in self.files(pattern):
            try:
                found.append(path.read_text().strip())
            except OSError:  # sysfs offers files that only root may read
                continue
        return found

    def variable(self, *names: str) -> str | None:
        """The first of these environment variables that is set, '' included."""
        return next((self.environ[name] for name in names if name in self.environ), None)
