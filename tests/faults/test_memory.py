"""A big kernel is shared with its forked ranks, not copied. Fresh ones get none of it."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_five_million_objects_and_two_gibibytes_stay_shared(kernel):
    cell = kernel.run(
        """
        import gc, psutil, torch
        from nbstate import PartialState, notebook_launcher
        objects = [[i] for i in range(5_000_000)]
        tensors = [torch.ones(1 << 28) for _ in range(2)]       # 1 GiB each
        def own():
            full = psutil.Process().memory_full_info()
            return full.uss
        def train():
            PartialState()
            before = own()
            gc.collect()
            total = sum(t[:: 1 << 20].sum().item() for t in tensors) + len(objects)
            return (own() - before) / 2**20, before / 2**20, total
        grown, first, total = zip(*notebook_launcher(train, num_processes=2, view="silent"))
        max(grown) < 100, max(first) < 300, total, gc.get_freeze_count()
        """,
        timeout=240,
    )
    assert cell.error is None
    assert cell.result == "(True, True, (5000512.0, 5000512.0), 0)"
