"""What a launch here would do, and why: `nbstate.doctor`."""

from __future__ import annotations

from nbstate.checkup.report import Check, Checkup, doctor

__all__ = ["Check", "Checkup", "doctor"]
