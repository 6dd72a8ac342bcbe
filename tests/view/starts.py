"""The two ways in which ranks come to life: what a page shows of them must not differ.

    @pytest.fixture(scope="module", params=STARTS)
    def watched(request, tmp_path_factory):
        with Kernel(tmp_path_factory.mktemp("kernel"), allow_stdin=True) as kernel:
            kernel.run(launching(request.param))
            yield kernel

A test about forked ranks alone takes one of them: `@FORKED`, where the fixture is `watched`.
"""

from __future__ import annotations

import pytest

STARTS = ("fork", "forkserver")

FORKED = pytest.mark.parametrize("watched", ["fork"], indirect=True)


def launching(start_method: str) -> str:
    """Return code after which a launch that does not say so starts its ranks in this way."""
    return f"""
import functools, nbstate
launch = functools.partial(nbstate.launch, start_method={start_method!r})
notebook_launcher = functools.partial(nbstate.notebook_launcher, start_method={start_method!r})
"""
