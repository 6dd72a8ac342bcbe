"""What `prepare` makes of models, optimizers, schedulers and dataloaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from nbstate.operations import send_to_device
from nbstate.state import DistributedType
from nbstate.train.compiling import compile_model
from nbstate.train.core import Core
from nbstate.train.data import PreparedLoader, prepare_data_loader
from nbstate.train.data.prepare import Skipping
from nbstate.train.engines import EngineDriven, initialize_deepspeed, initialize_megatron
from nbstate.train.optimizer import AcceleratedOptimizer
from nbstate.train.scheduler import AcceleratedScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbstate.plugins import DataLoaderConfiguration
    from nbstate.train.parallel import Layout

_WRAPPERS = (AcceleratedOptimizer, AcceleratedScheduler, PreparedLoader)


class Preparation(Core):
    """The part of an Accelerator that makes things ready for this rank.

    Attributes
    ----------
    device_placement : bool
        Whether models and batches are moved to `device`.
    dataloader_config : DataLoaderConfiguration
        How data is dealt out to the ranks.
    rng_types : tuple of str
        Which random numbers ranks share from the start of each epoch.
    step_scheduler_with_optimizer : bool
        Whether schedulers keep a single process's pace.
    """

    device_placement: bool
    dataloader_config: DataLoaderConfiguration
    rng_types: tuple[str, ...]
    step_scheduler_with_optimizer: bool
    _layout: Layout

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Models, optimizers, schedulers and dataloaders, ready for this rank.

        All ranks must prepare the same things in the same order. Anything else comes back as it is,
        moved to the device where it can be.

        Parameters
        ----------
        *args
            Any number of things in any order; a model comes with its optimizers in one call or in
            an earlier one.
        device_placement : sequence of bool, optional
            For each argument, whether it is moved to the device; None takes the default.

        Returns
        -------
        the prepared thing, or a tuple of them in the order given

        Examples
        --------
        >>> model = accelerator.prepare(torch.nn.Linear(1, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        >>> optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
        """
        moves = device_placement or [None] * len(args)
        if len(moves) != len(args):
            raise ValueError(
                f"device_placement has {len(moves)} values for {len(args)} things to prepare"
            )
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            self._hand_to_deepspeed(args)
        prepared = list(args)
        # Optimizers need their model's final parameters, schedulers their optimizer's wrapper.
        for kind in (nn.Module, torch.optim.Optimizer, object):
            for position, thing in enumerate(args):
                if isinstance(thing, kind):
                    prepared[position] = self._prepare_one(thing, moves[position])
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def prepare_model(
        self,
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        """One model, ready for this rank; `prepare` does the same for any number of things.

        Parameters
        ----------
        model : Module
            The model.
        device_placement : bool, optional
            Whether it is moved to the device; None takes the default.
        evaluation_mode : bool
            It is not trained: it gets its precision and is compiled, and ranks share nothing.

        Examples
        --------
        >>> judge = accelerator.prepare_model(torch.nn.Linear(1, 1), evaluation_mode=True)
        >>> type(judge).__name__
        'Linear'
        """
        if evaluation_mode:
            move = self._moves(device_placement)
            prepared = self._once(model, lambda: self._model(model, move, lay_out=False))
        else:
            prepared = self.prepare(model, device_placement=[device_placement])
        return cast("nn.Module", prepared)

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """One optimizer, ready for this rank, after its model.

        Parameters
        ----------
        optimizer : Optimizer
            The optimizer.
        device_placement : bool, optional
            Has no effect: an optimizer's state is where its parameters are.

        Examples
        --------
        >>> second = torch.optim.Adam(model.parameters())
        >>> second = accelerator.prepare_optimizer(second)
        """
        prepared: AcceleratedOptimizer = self.prepare(optimizer)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """One scheduler, ready for this rank, after its optimizer.

        Parameters
        ----------
        scheduler : LRScheduler
            Or another object with the methods ``step``, ``state_dict`` and ``load_state_dict``.

        Examples
        --------
        >>> second = torch.optim.lr_scheduler.ConstantLR(optimizer)
        >>> second = accelerator.prepare_scheduler(second)
        """
        prepared: AcceleratedScheduler = self._once(scheduler, lambda: self._scheduler(scheduler))
        return prepared

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], device_placement: bool | None = None
    ) -> PreparedLoader:
        """One dataloader, ready for this rank.

        Parameters
        ----------
        data_loader : DataLoader
            As a single process would use it.
        device_placement : bool, optional
            Whether batches are moved to the device; None takes the default.

        Examples
        --------
        >>> valid = torch.utils.data.DataLoader(range(6), batch_size=3)
        >>> [batch.tolist() for batch in accelerator.prepare_data_loader(valid)]
        [[0, 1, 2], [3, 4, 5]]
        """
        prepared: PreparedLoader = self.prepare(data_loader, device_placement=[device_placement])
        return prepared

    def _moves(self, given: bool | None) -> bool:
        return self.device_placement if given is None else given

    def _prepare_one(self, thing: Any, device_placement: bool | None) -> Any:
        return self._once(thing, lambda: self._made_of(thing, self._moves(device_placement)))

    def _once(self, thing: Any, make: Callable[[], Any]) -> Any:
        """What becomes of one thing; the same for a thing prepared before, and for its wrapper."""
        if id(thing) in self._prepared:
            return self._prepared[id(thing)][1]
        prepared = make()
        if isinstance(prepared, (nn.Module, *_WRAPPERS)):
            self._remember(thing, prepared)
        return prepared

    def _made_of(self, thing: Any, move: bool) -> Any:
        if isinstance(thing, nn.Module):
            return self._model(thing, move)
        if isinstance(thing, torch.optim.Optimizer):
            self._layout.renew(thing)
            return AcceleratedOptimizer(thing, self._accumulation, self.scaler)
        if isinstance(thing, LRScheduler):
            return self._scheduler(thing)
        if isinstance(thing, Skipping):
            raise TypeError(
                "the batches of this dataloader are read one by one to skip some, so it cannot be "
                "dealt out to ranks any more: prepare the dataloader first, and skip then, as in "
                "skip_first_batches(accelerator.prepare(loader), 10)"
            )
        if isinstance(thing, DataLoader):
            device = self.device if move else None
            return prepare_data_loader(
                thing, self._layout.data, self.dataloader_config, device, self.rng_types
            )
        return send_to_device(thing, self.device) if move and hasattr(thing, "to") else thing

    def _model(self, model: nn.Module, move: bool, *, lay_out: bool = True) -> nn.Module:
        if move:
            model.to(self.device)
        if not any(True for _ in model.parameters()):
            return model  # a loss function, say
        self._precision.wrap(model)
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            placed: nn.Module = initialize_megatron(self.state, model)
            return placed
        laid_out = self._layout.place(model) if lay_out else model
        return compile_model(laid_out, self.state.dynamo_plugin)

    def _scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        optimizers = self._optimizers or self._all(EngineDriven)
        own = getattr(scheduler, "optimizer", None)
        followed = [each for each in optimizers if own in (each, each.optimizer)]
        return AcceleratedScheduler(
            scheduler,
            followed or optimizers,
            self._accumulation,
            step_with_optimizer=self.step_scheduler_with_optimizer,
        )

    def _hand_to_deepspeed(self, args: Sequence[Any]) -> None:
        plugin = self.state.deepspeed_plugin
        assert plugin is not None
        models = [each for each in args if isinstance(each, nn.Module)]
        optimizers = [each for each in args if isinstance(each, torch.optim.Optimizer)]
        loaders = [each for each in args if isinstance(each, DataLoader)]
        if not models and not optimizers:
            return  # further data, say
        if len(models) != 1 or len(optimizers) > 1:
            raise ValueError(
                f"DeepSpeed trains one model with one optimizer, and was given {len(models)} and "
                f"{len(optimizers)}"
            )
        engine, driven = initialize_deepspeed(
            plugin,
            self._precision.wrap(models[0]),
            next(iter(optimizers), None),
            next((each.batch_size for each in loaders), None),
            self.num_processes,
            self.gradient_state.num_steps,
        )
        self._remember(models[0], engine)
        for optimizer in optimizers:
            self._remember(optimizer, EngineDriven(optimizer, driven))
