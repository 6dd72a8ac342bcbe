"""What a rank can ask of itself: common to PartialState and AcceleratorState."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbstate.state.facts import offered_kind

if TYPE_CHECKING:
    from nbstate.state.facts import ProcessFacts
    from nbstate.state.kinds import DistributedType


class ProcessAttributes:
    """The facts of this process as attributes of a state."""

    @property
    def _process(self) -> ProcessFacts:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """The device of this rank. Asking opens nothing, but for an XLA device."""
        return self._process.device

    @property
    def default_device(self) -> torch.device:
        """The kind of device that this machine offers first, without an index."""
        return torch.device(offered_kind())

    @property
    def distributed_type(self) -> DistributedType:
        """How the run is spread; a plugin given to AcceleratorState decides it."""
        return self._process.distributed_type

    @property
    def backend(self) -> str | None:
        """What carries collectives: 'nccl', 'gloo', 'mpi', 'xla', ...; None for one process."""
        return self._process.backend

    @property
    def num_processes(self) -> int:
        """How many processes take part, on all machines."""
        return self._process.place.world_size

    @property
    def process_index(self) -> int:
        """The global rank, from 0."""
        return self._process.place.rank

    @property
    def local_process_index(self) -> int:
        """The rank on this machine, from 0."""
        return self._process.place.local_rank

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that speaks for all: rank 0, with Megatron-LM the last."""
        return self._process.speaker("main") == self.process_index

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the process that speaks for its machine."""
        return self._process.speaker("local_main") == self.process_index

    @property
    def is_last_process(self) -> bool:
        """Whether this is the process of the highest rank."""
        return self.process_index == self.num_processes - 1

    @property
    def fork_launched(self) -> bool:
        """Whether nbstate's launcher (or Accelerate's) made this process."""
        return self._process.fork_launched

    @property
    def debug(self) -> bool:
        """Whether collectives are checked before they run; can be set."""
        return self._process.debug

    @debug.setter
    def debug(self, value: bool) -> None:
        self._process.debug = bool(value)
