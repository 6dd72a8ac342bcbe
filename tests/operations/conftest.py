"""Operations make a state; each test begins and ends without one."""

from tests.state.conftest import no_states

__all__ = ["no_states"]
