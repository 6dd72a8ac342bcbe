"""What a function drags along: found by name, weighed, searched for what is tied to the kernel."""

from __future__ import annotations

from nbstate.baggage.findings import Findings, search
from nbstate.baggage.parts import parts_of_call, reads
from nbstate.baggage.report import Captured, Item, captured

__all__ = ["Captured", "Findings", "Item", "captured", "parts_of_call", "reads", "search"]
