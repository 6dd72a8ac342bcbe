"""The public names are listed in order, and each loads."""

from __future__ import annotations

import nbstate


def test_every_public_name_loads_and_they_are_sorted() -> None:
    assert nbstate.__all__ == sorted(nbstate.__all__)
    assert [name for name in nbstate.__all__ if getattr(nbstate, name, None) is None] == []
