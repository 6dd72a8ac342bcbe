"""Imported once, by the template process of a notebook: what `template` has, and a shell."""

from __future__ import annotations

import gc

import nbstate.start.template
from nbstate.rank import front

__all__ = ["nbstate"]

front.prepare_template()
gc.collect()
gc.freeze()
