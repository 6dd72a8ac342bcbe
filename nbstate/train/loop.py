"""What a training loop calls at every batch."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable

from nbstate.plugins import GradientAccumulationPlugin
from nbstate.state import DistributedType
from nbstate.train import parallel, precision
from nbstate.train.clipping import clip_norm
from nbstate.train.compiling import forget_compiled
from nbstate.train.control import release_memory
from nbstate.train.core import Core
from nbstate.train.data import skip_first_batches
from nbstate.train.engines import EngineDriven, clipped_norm, drive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from nbstate.plugins import AutocastKwargs


class Loop(Core):
    """The part of an Accelerator that moves GradientState."""

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch in hand ends a window: gradients are exchanged and used."""
        return self.gradient_state.sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches in a window; settable."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        GradientAccumulationPlugin(num_steps=value)  # checks it
        settings = self.gradient_state.plugin_kwargs
        self.gradient_state.plugin_kwargs = {**settings, "num_steps": value}

    @property
    def window_position(self) -> int:
        """Which gradient of its window the batch in hand is: 1 to `gradient_accumulation_steps`."""
        return self._accumulation.position

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of any optimizer was left out: its gradients overflowed."""
        optimizers = self._optimizers or self._all(EngineDriven)
        return any(optimizer.step_was_skipped for optimizer in optimizers)

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """A block for one batch (or micro-batch) of an accumulation window.

        At the end of a window `sync_gradients` is true: ranks exchange gradients in the backward
        pass, optimizer and scheduler step. Before it gradients add up on each rank and nothing is
        exchanged. The last batch of a dataloader ends its window too, whose gradients then weigh as
        much as a full window's: ``GradientAccumulationPlugin(last_window=...)`` has other policies,
        and `nbstate.train.accumulation` a picture of them.

        Parameters
        ----------
        *models
            The prepared models whose backward passes are in the block; without any, all of them.

        Examples
        --------
        >>> for batch in loader:
        ...     with accelerator.accumulate(model):
        ...         accelerator.backward(model(batch).mean())
        ...         optimizer.step()  # of four batches, at the second and the fourth
        ...         optimizer.zero_grad()
        ...         print(accelerator.sync_gradients)
        False
        True
        False
        True
        """
        with self._accumulation.block():
            if self.gradient_state.sync_gradients or self.gradient_state.sync_each_batch:
                yield
            else:
                with ExitStack() as stack:
                    for model in models or self._models:
                        stack.enter_context(parallel.no_sync(model))
                    yield
        if self._accumulation.dropped:
            for optimizer in self._optimizers:
                optimizer.optimizer.zero_grad()

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block whose backward passes exchange no gradients of this model.

        Examples
        --------
        >>> with accelerator.no_sync(model):
        ...     accelerator.backward(model(batch).mean())
        """
        return parallel.no_sync(model)

    @staticmethod
    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
        """A block whose backward pass exchanges gradients after forward passes in `no_sync`.

        Parameters
        ----------
        model : Module
            The prepared model whose gradients, those added up before too, are exchanged.

        Examples
        --------
        >>> with accelerator.no_sync(model):
        ...     first, second = model(batch).mean(), model(2 * batch).mean()
        >>> accelerator.backward(first)
        >>> with accelerator.trigger_sync_in_backward(model):
        ...     accelerator.backward(second)
        """
        return parallel.sync_in_backward(model)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The backward pass of a loss: divided by the window's batches, scaled for fp16.

        Parameters
        ----------
        loss : Tensor
            The mean over this rank's batch.
        **kwargs
            For `torch.Tensor.backward`.

        Examples
        --------
        >>> accelerator.backward(model(batch).mean())
        """
        if self.gradient_state.num_steps > 1:
            loss = loss / self.gradient_state.num_steps
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            drive(self._models[0], loss, ends_window=self.gradient_state.sync_gradients, **kwargs)
            return
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
    ) -> torch.Tensor | None:
        """Scale gradients down to a norm over all parameters and ranks, at the end of a window.

        Parameters
        ----------
        parameters : iterable of Tensor
            As for `torch.nn.utils.clip_grad_norm_`; copied, sharded or cut.
        max_norm, norm_type : float
            The norm allowed, and which norm. DeepSpeed's engine clips by itself, to what its
            configuration says: another norm is a ValueError.

        Returns
        -------
        Tensor or None
            The norm before; None within a window, where there is nothing to clip yet.

        Examples
        --------
        >>> accelerator.backward(model(batch).mean())
        >>> norm = accelerator.clip_grad_norm_(model.parameters(), max_norm=1.0)
        """
        if not self.gradient_state.sync_gradients:
            return None
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            return clipped_norm(self._models[0], max_norm, norm_type)
        given = _listed(parameters)
        self._finish_gradients(given)
        return clip_norm(given, max_norm, norm_type)

    def clip_grad_value_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float
    ) -> None:
        """Cut each gradient to ``[-clip_value, clip_value]``, at the end of a window.

        DeepSpeed's engine has used the gradients by then: with it this is a NotImplementedError.

        Examples
        --------
        >>> accelerator.backward(model(batch).mean())
        >>> accelerator.clip_grad_value_(model.parameters(), clip_value=0.25)
        >>> model.weight.grad
        tensor([[0.2500, 0.2500]])
        """
        if not self.gradient_state.sync_gradients:
            return
        if self.state.distributed_type is DistributedType.DEEPSPEED:
            raise NotImplementedError(
                "DeepSpeed's engine cuts no single gradients, and has used them in the backward "
                "pass: use DeepSpeedPlugin(gradient_clipping=...), which bounds their norm"
            )
        given = _listed(parameters)
        self._finish_gradients(given)
        with torch.no_grad():
            for parameter in given:
                if parameter.grad is not None:
                    parameter.grad.clamp_(-clip_value, clip_value)

    def _finish_gradients(self, parameters: list[torch.Tensor]) -> None:
        """Finish those of the optimizers concerned; another's backward pass may be yet to come."""
        if self.state.distributed_type is DistributedType.MEGATRON_LM:
            raise NotImplementedError(
                "Megatron-LM's gradients are clipped by its optimizer: OptimizerConfig(clip_grad=1)"
            )
        wanted = set(map(id, parameters))
        for optimizer in self._optimizers:
            held = (each for group in optimizer.param_groups for each in group["params"])
            if any(id(each) in wanted for each in held):
                optimizer.finish_gradients()

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Take the fp16 scale off gradients, at the end of a window; once, whoever asks for it.

        `clip_grad_norm_` and `clip_grad_value_` do it themselves; this is for other uses of them.

        Parameters
        ----------
        optimizer : optimizer or list of them, optional
            Prepared ones whose gradients are meant; None: all.

        Examples
        --------
        >>> accelerator.backward(model(batch).mean())
        >>> accelerator.unscale_gradients(optimizer)
        >>> largest = model.weight.grad.abs().max()
        """
        if not self.gradient_state.sync_gradients:
            return
        listed = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        for each in self._optimizers if optimizer is None else listed:
            _, prepared = self._prepared.get(id(each), (each, each))
            prepared.finish_gradients()

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None
    ) -> AbstractContextManager[Any]:
        """A block that computes in this run's precision, for what is outside of a model.

        Examples
        --------
        >>> with accelerator.autocast():
        ...     similarity = batch @ batch.T
        """
        return self._precision.autocast(autocast_handler)

    @contextmanager
    def join_uneven_inputs(
        self, joinables: Sequence[Any], even_batches: bool | None = None
    ) -> Iterator[None]:
        """A block in which ranks may have different numbers of batches.

        A rank that is through takes part in the others' exchanges of gradients until they are too.
        An accumulation window ends on all ranks with the last batch of the first that is through.

        Parameters
        ----------
        joinables : sequence
            The prepared models (DDP only), and other things that torch's `Join` takes.
        even_batches : bool, optional
            Overrides the setting of prepared dataloaders inside the block; False gives every sample
            out once.

        Examples
        --------
        >>> with accelerator.join_uneven_inputs([model], even_batches=False):
        ...     for batch in loader:
        ...         accelerator.backward(model(batch).mean())
        """
        joined = [each for each in joinables if isinstance(each, Joinable)]
        if self.state.use_distributed and not joined:
            warnings.warn(
                "join_uneven_inputs does something for DDP models only: sharded and cut ones need "
                "as many batches on every rank",
                stacklevel=3,
            )
        with ExitStack() as stack:
            for loader in self._dataloaders if even_batches is not None else ():
                stack.callback(setattr, loader, "even_batches", loader.even_batches)
                loader.even_batches = bool(even_batches)
            if joined:
                stack.callback(setattr, self._accumulation, "joined", False)
                self._accumulation.joined = True
                stack.enter_context(Join(joined))
            yield

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The model that was prepared, without what `prepare` put around it.

        Parameters
        ----------
        model : Module
            As it came from `prepare`. Sharded parameters stay sharded.
        keep_fp32_wrapper : bool
            False also takes mixed precision off its forward pass.
        keep_torch_compile : bool
            False gives it as it was before `torch.compile`.

        Examples
        --------
        >>> type(accelerator.unwrap_model(model)).__name__
        'Linear'
        """
        given, _ = self._prepared.get(id(model), (model, model))
        inner = parallel.unwrap(given, keep_compiled=keep_torch_compile)
        if not keep_torch_compile:
            forget_compiled(inner)
        return inner if keep_fp32_wrapper else precision.unwrap(inner)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A dataloader without its first batches; see `nbstate.train.skip_first_batches`.

        Examples
        --------
        >>> len(list(loader)), len(list(accelerator.skip_first_batches(loader, 3)))
        (4, 1)
        """
        return skip_first_batches(dataloader, num_batches)

    def free_memory(self, *objects: Any) -> tuple[None, ...]:
        """Forget everything prepared, and hand memory back to the device.

        Parameters
        ----------
        *objects
            What the caller is to forget as well.

        Returns
        -------
        tuple of None
            One for each object.

        Examples
        --------
        >>> model, optimizer = accelerator.free_memory(model, optimizer)
        """
        self._prepared.clear()
        if self.scaler is not None:
            self.scaler.optimizers.clear()
        count = len(objects)
        del objects
        release_memory()
        return (None,) * count

    clear = free_memory


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
