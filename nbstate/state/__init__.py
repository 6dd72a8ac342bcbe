"""The three states: PartialState, AcceleratorState and GradientState, in any process."""

from nbstate.state.accelerator import AcceleratorState
from nbstate.state.gradient import GradientState
from nbstate.state.kinds import DistributedType
from nbstate.state.life import fresh_states, reset_all
from nbstate.state.logger import get_logger
from nbstate.state.partial import PartialState, is_main_process
from nbstate.state.scopes import enter_replica
from nbstate.state.waiting import begin_epoch

__all__ = [
    "AcceleratorState",
    "DistributedType",
    "GradientState",
    "PartialState",
    "begin_epoch",
    "enter_replica",
    "fresh_states",
    "get_logger",
    "is_main_process",
    "reset_all",
]
