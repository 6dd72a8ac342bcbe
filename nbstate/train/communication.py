"""What ranks tell each other while they train: the operations, and metrics without copies."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any, Literal

import torch

from nbstate import operations
from nbstate.operations import send_to_device
from nbstate.operations.nested import leaves, map_tensors
from nbstate.train import some_ranks
from nbstate.train.core import Core
from nbstate.train.data import PreparedLoader, rows

if TYPE_CHECKING:
    from nbstate.train.data import DataPlace, RoundFacts


class Communication(Core):
    """The collectives of an Accelerator."""

    _warned_of_scalar = False

    def gather(self, tensor: Any, *, as_list: bool = False) -> Any:
        """Every rank's tensors, joined in rank order; see `nbstate.operations.gather`.

        Examples
        --------
        >>> accelerator.gather(torch.tensor([1.0, 2.0]))  # on one rank
        tensor([1., 2.])
        """
        return operations.gather(tensor, as_list=as_list)

    def gather_object(self, object: Any, *, flatten: bool = True) -> list[Any]:  # noqa: A002
        """Every rank's object; see `nbstate.operations.gather_object`.

        Examples
        --------
        >>> accelerator.gather_object({"rank": accelerator.process_index})  # on one rank
        [{'rank': 0}]
        """
        return operations.gather_object(object, flatten=flatten)

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """One rank's tensors, on every rank; see `nbstate.operations.broadcast`.

        Examples
        --------
        >>> accelerator.broadcast(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
        """
        return operations.broadcast(tensor, from_process)

    def reduce(
        self, tensor: Any, reduction: Literal["mean", "sum", "none"] = "sum", scale: float = 1.0
    ) -> Any:
        """The sum of every rank's tensors, or their mean; see `nbstate.operations.reduce`.

        Examples
        --------
        >>> def on_two_ranks():
        ...     return Accelerator().reduce(torch.tensor(1)).item()
        >>> debug_launcher(on_two_ranks)
        RankResults([2, 2])
        """
        return operations.reduce(tensor, reduction, scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """The tensors, as long as the longest; see `nbstate.operations.pad_across_processes`.

        Examples
        --------
        >>> def on_two_ranks():
        ...     accelerator = Accelerator()
        ...     uneven = torch.ones(1 + accelerator.process_index)
        ...     return accelerator.pad_across_processes(uneven, pad_index=-1).tolist()
        >>> debug_launcher(on_two_ranks)
        RankResults([[1.0, -1.0], [1.0, 1.0]])
        """
        return operations.pad_across_processes(tensor, dim, pad_index, pad_first)

    def weighted_mean(self, total: Any, count: float | torch.Tensor) -> Any:
        """The sum over all ranks divided by the count over all ranks.

        The mean of every rank's mean would give samples of smaller batches more weight.

        Parameters
        ----------
        total : Tensor, float or nested structure
            This rank's sums.
        count : float or Tensor
            How many samples went into them on this rank.

        Examples
        --------
        >>> accelerator.weighted_mean(torch.tensor(6.0), count=4)
        tensor(1.5000)
        """
        if isinstance(total, (int, float)):
            total = torch.tensor(float(total), device=self.device)
        counted = torch.as_tensor(count, dtype=torch.float32, device=self.device)
        sums, everywhere = operations.reduce((total, counted), "sum")
        return map_tensors(lambda each: each / everywhere, sums)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Every rank's results for the batch in hand, each sample once and in order.

        Copies that even the ranks out are left out; so are the repetitions of ranks that share
        their data. To be called within the loop over a prepared dataloader; outside it is a plain
        gather.

        Parameters
        ----------
        input_data : Tensor, nested structure of tensors, or list of objects
            One result for each sample of this rank's batch, in order.
        use_gather_object : bool
            Take a list as one object for each sample even where it is a list of tensors, whose
            shapes may differ.

        Returns
        -------
        the same kind
            The results of all ranks. In a round that some ranks get no batch of (uneven batches)
            the others have them all.

        Examples
        --------
        >>> seen = [accelerator.gather_for_metrics(batch) for batch in loader]
        >>> sum(len(each) for each in seen) == len(loader.dataset)
        True
        """
        tensors = all(isinstance(leaf, torch.Tensor) for _, leaf in leaves(input_data))
        as_objects = use_gather_object or not tensors
        loader = self.gradient_state.active_dataloader
        if not isinstance(loader, PreparedLoader) or loader.round is None:
            if as_objects:
                return operations.gather_object(input_data)
            return operations.gather(input_data)
        place, facts = loader.setup.place, loader.round
        # The others cannot know how long this rank's result for a whole batch is.
        if facts.even and not facts.opaque and not as_objects:
            self._warn_of_scalars(input_data)
            gathered = operations.gather(input_data)
            return _without_copies(gathered, place, facts)
        present = [rank for rank, part in enumerate(place.parts) if facts.sizes[part]]
        mine = (
            send_to_device(input_data, "cpu") if as_objects else map_tensors(_rows_of, input_data)
        )
        if len(present) == len(place.parts):
            sent = operations.gather_object(mine, flatten=False)
        else:
            sent = some_ranks.exchange(present, self.process_index, mine)
        kept = [
            _real_rows(sent[present.index(rank)], facts.sizes[part], facts.real[part], as_objects)
            for rank, part in _one_of_each(place)
            if rank in present and (facts.real[part] or not facts.opaque)
        ]
        whole = list(itertools.chain(*kept)) if _is_list(kept[0], as_objects) else rows.join(kept)
        return send_to_device(whole, self.device)

    def _warn_of_scalars(self, data: Any) -> None:
        if self._warned_of_scalar:
            return
        if any(leaf.dim() == 0 for _, leaf in leaves(data)):
            self._warned_of_scalar = True
            warnings.warn(
                "gather_for_metrics was given a tensor without dimensions: copies in the last "
                "batch cannot be left out of it. Give one value for each sample, or use "
                "weighted_mean(total, count)",
                stacklevel=3,
            )


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """What is sent of a tensor; as for `gather`, one without dimensions has length 1."""
    return (tensor if tensor.dim() else tensor[None]).detach().cpu()


def _one_of_each(place: DataPlace) -> list[tuple[int, int]]:
    """The first rank of each part, with the part."""
    first: dict[int, int] = {}
    for rank, part in enumerate(place.parts):
        first.setdefault(part, rank)
    return [(rank, part) for part, rank in sorted(first.items())]


def _without_copies(gathered: Any, place: DataPlace, facts: RoundFacts) -> Any:
    """The rows of joined tensors that are no copies; tensors of other lengths stay."""
    size = facts.sizes[0]
    if not facts.padding and place.count == len(place.parts):
        return gathered
    keep = [
        rank * size + row for rank, part in _one_of_each(place) for row in range(facts.real[part])
    ]
    total = size * len(place.parts)

    def keep_real(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[keep] if len(tensor) == total else tensor

    return map_tensors(keep_real, gathered)


def _real_rows(data: Any, size: int, real: int, as_objects: bool) -> Any:
    """The results that are for no copies, where there is one for each sample."""
    if _is_list(data, as_objects):
        return data[:real] if len(data) == size else data
    if real == size or rows.count(data) != size:
        return data
    return rows.take(data, range(real))


def _is_list(data: Any, as_objects: bool) -> bool:
    return as_objects and isinstance(data, list)
