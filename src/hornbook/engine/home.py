"""Homes store weights, gradients and optimizer state, and give the step access to one part at a time.

::

    executor --keep_gradients(part)--> home --gradient_norms(part)--> one global norm
                                            --slots(part)-----------> clip, update; written back on leaving

A part is updated at once: the whole model if it is in memory (``InMemory``), otherwise a layer or a tensor. The step
loops over ``parts`` and does not depend on where tensors are stored. Each rank updates its local parts of split weights
(`hornbook.parallel.ranks`); only norms need the other ranks. Weights of other pipeline ranks are on the meta device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hornbook.checkpoint.tensors import Shard
from hornbook.config.optimizers import Role, role_of
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.ops.native.kernels import Copies, Copy
from hornbook.optim.slots import Holders, Slot, norms_of, num_parts_of
from hornbook.optim.updates import Update
from hornbook.parallel.gradient_sums import GradientSums
from hornbook.parallel.ranks import box_of, cut_axes, local, own_part
from hornbook.parallel.whole_tensors import Box, Parts
from hornbook.parallel.world import World

Shards = dict[str, dict[str, Shard]]
"""This rank's parts of a checkpoint's tensors, by group (``model``, ``optimizer``), then by name."""


class Home(Protocol):
    """The store of a model's weights, optimizer state and gradients of the global loss."""

    parts: Sequence[str]
    """Names of the parts in the order of their updates, the same on every data-parallel rank."""
    copies: Copies
    """Copies of weights in 16 bits, until an update that does not write them."""
    traffic: Mapping[str, int]
    """Bytes that the last step moved between home and device, by name, for the log; empty if both are the same."""

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Storage dtypes of ``weight``, ``gradient`` and each optimizer state, by name."""

    def weights(self, part: str) -> dict[str, Tensor]:
        """Return a part's parameters by name, or this rank's parts of them, detached."""

    def expect_gradients(self, *, is_last: bool, whole: bool) -> None:
        """Prepare for the backward pass of a micro-batch; sums over ranks may start during the last one of a step.

        With ``whole``, sharded ranks accumulate unsharded gradients until then.
        """

    def keep_gradients(self, part: str) -> None:
        """Store the sums over data-parallel ranks of the gradients that backward passes left in a part's parameters."""

    def gradient_norms(self, part: str) -> Tensor:
        """Return the L2 norm of each of a part's gradients over all ranks, fp32 ``[number of gradients]``."""

    def slots(self, part: str, count: int) -> AbstractContextManager[list[Slot]]:
        """Return a context manager with the fp32 slots of a part's parameters that have a gradient.

        Changes are stored when the ``with`` block ends.

        Args:
            part: of the model.
            count: the number of the update, from 1, which seeds the rounding of 16-bit storage.
        """

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients in place."""

    def drop_gradients(self) -> None:
        """Discard all gradients."""

    def tensors(self) -> Shards:
        """Return the tensors of a checkpoint, in logical shapes without padding; writing to them changes the state."""


class Held(NamedTuple):
    """A parameter that this rank holds, entirely or in part."""

    name: str
    parameter: nn.Parameter
    role: Role
    num_parts: int
    holders: Holders | None
    parts: Parts | None

    def slot(self, weight: Tensor, gradient: Tensor, states: Mapping[str, Tensor], copy: Copy | None = None) -> Slot:
        """Return the slot of this rank's part of the parameter; a bias and its states are vectors, as ``gradient``."""
        return Slot(
            name=self.name,
            parameter=weight.view(gradient.shape),
            gradient=gradient,
            state={
                key: state.view(gradient.shape) if state.numel() == gradient.numel() else state
                for key, state in states.items()
            },
            role=self.role,
            num_parts=self.num_parts,
            holders=self.holders,
            copy=copy,
            parts=self.parts,
        )


class InMemory:
    """A home in the memory of the device; all of the model is one part, ``"model"``.

    Args:
        model: its parameters are the weights; their ``.grad`` are the gradients.
        moments: by parameter name, then by the optimizer's state name; tensors of the shape of the parameter's local
            part.
        world: its data-parallel ranks sum gradients; if weights are sharded, ``fully_shard`` does that.
    """

    parts: Sequence[str] = ("model",)
    traffic: Mapping[str, int] = MappingProxyType({})

    def __init__(self, model: LanguageModel, moments: dict[str, dict[str, Tensor]], world: World) -> None:
        self.model, self.moments, self._world = model, moments, world
        self.copies: Copies = {}
        own = [(name, parameter) for name, parameter in model.own_parameters() if not parameter.is_meta]
        boxes = {name: Box(*map(tuple, box_of(parameter))) for name, parameter in own}
        parts = Parts(world.updaters, boxes) if world.updaters.size > 1 else None
        self._parts = {"model": {name: number for number, (name, _) in enumerate(model.own_parameters())}}
        """The numbers of a part's parameters in the order of one process, by name."""
        self._held = [
            Held(
                name,
                parameter,
                role_of(name, parameter.shape),
                num_parts_of(name),
                None if world.mesh is None else Holders(world.holders, world.num_copies(cut_axes(parameter))),
                parts,
            )
            for name, parameter in own
        ]
        summed = [held.parameter for held in reversed(self._held)]
        summed.sort(key=lambda parameter: parameter is model.embedding.tokens)  # a tied table's gradient changes last
        has_sums = world.data.size > 1 and not world.is_sharded
        self._sums = GradientSums(summed, world.data) if has_sums else None
        described = model.description
        is_partial = described and (described.sees_slice if world.sequence.size > 1 else described.sees_share)
        partial = [held.parameter for held in self._held if is_partial and is_partial(held.name)]
        self._partial_sums = GradientSums(partial, world.tensor) if partial and world.tensor.size > 1 else None
        self._sharded: list[Any] = [module for module in model.modules() if hasattr(module, "set_requires_all_reduce")]

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """fp32 throughout."""
        states = {key for states in self.moments.values() for key in states}
        return dict.fromkeys(("weight", "gradient", *sorted(states)), torch.float32)

    def weights(self, part: str) -> dict[str, Tensor]:
        return {held.name: local(held.parameter.detach()) for held in self._held if held.name in self._parts[part]}

    def expect_gradients(self, *, is_last: bool, whole: bool) -> None:
        """See ``Home``; hybrid sharding sums over groups of shards once a step."""
        if self._sums is not None and is_last:
            self._sums.expect()
        for module in self._sharded:
            if whole:
                module.set_requires_gradient_sync(is_last, recurse=False)
            else:
                module.set_requires_all_reduce(is_last, recurse=False)

    def keep_gradients(self, part: str) -> None:
        """Add the tied table's two gradients and sum all gradients over ranks, in place.

        A model may skip a module for a micro-batch. Its parameters then have no gradient on that rank, but get the sum
        of the others, as in one process. Sharded gradients are sums already. With sequence parallelism, gradients from
        a slice of the tokens are also summed over the ranks that share them.
        """
        self.model.fold_tied_gradients()
        for sums in (self._sums, self._partial_sums):
            if sums is not None:
                sums.finish()

    def gradient_norms(self, part: str) -> Tensor:
        found = self._gradients(part)
        norms = torch.zeros(0, device=self._world.device)
        if found:
            norms = norms_of([gradient for _, gradient in found], [held.holders for held, _ in found])
        if self._world.pipeline.size == 1:
            return norms
        numbers = self._parts[part]
        everywhere = norms.new_zeros(len(numbers))  # in the order of one process, so that sums have the same bits
        everywhere[[numbers[held.name] for held, _ in found]] = norms
        return self._world.pipeline.sum_tensor(everywhere)

    @contextmanager
    def slots(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``Home``; the slots are the stored tensors."""
        copies = {own_part(copy.weight).untyped_storage()._cdata: copy for copy in self.copies.values()}
        slots = []
        for own, gradient in self._gradients(part):
            weight = own_part(own.parameter)
            copy = copies.get(weight.untyped_storage()._cdata) if copies else None  # a tied head's, too
            slots.append(own.slot(weight, gradient, self.moments[own.name], copy))
        yield slots
        self.copies = {key: copy for key, copy in self.copies.items() if copy.updated is not None}

    def divide_gradients(self, divisor: float) -> None:
        torch._foreach_div_([gradient for part in self.parts for _, gradient in self._gradients(part)], divisor)

    def drop_gradients(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def tensors(self) -> Shards:
        saved = dict(self.model.saved())
        weights = {name: self._shard(name, tensor, local(tensor)) for name, tensor in saved.items()}
        moments = {
            f"{name}.{self._state_name(key)}": self._shard(name, saved[name], tensor)
            for name, states in self.moments.items()
            for key, tensor in states.items()
        }
        return {"model": weights, "optimizer": moments}

    def _state_name(self, key: str) -> str:
        """Return the name of an optimizer state in checkpoints."""
        return key

    def _gradients(self, part: str) -> list[tuple[Held, Tensor]]:
        """Return the parameters that have a gradient, and this rank's part of it in the shape of its slot."""
        found = []
        for held in self._held:
            if held.parameter.grad is not None:
                gradient = local(held.parameter.grad)
                # optimizers treat stacked biases [3, H·K] as one vector
                found.append((held, gradient.view(-1) if held.role == "bias" else gradient))
        return found

    def _shard(self, name: str, whole: Tensor, values: Tensor) -> Shard:
        """Return the local ``values`` of a parameter, or of its moment, as a part of the tensor without padding."""
        begin, extent = box_of(whole)
        kept = [dim for dim, size in enumerate(extent) if values.shape[dim] == size]  # a state may have dimensions of 1
        logical = self.model.logical_shape(name, whole)
        shape = tuple(size if dim in kept else values.shape[dim] for dim, size in enumerate(logical))
        begin = tuple(min(first, shape[dim]) if dim in kept else 0 for dim, first in enumerate(begin))
        if values.is_meta:  # another pipeline rank holds it
            return Shard(values=values.new_empty((0, *values.shape[1:])), begin=begin, shape=shape, is_copy=True)
        held = values[: shape[0] - begin[0]] if shape else values
        return Shard(values=held, begin=begin, shape=shape, is_copy=not self._world.holds_first(cut_axes(whole, kept)))


def zeros(
    name: str,
    parameter: Tensor,
    update: Update,
    dtype_of: Callable[[str], torch.dtype] = lambda key: torch.float32,
    **options: Any,
) -> dict[str, Tensor]:
    """Return the state tensors of this rank's part of a parameter before the first update, by name.

    Args:
        name: of the parameter.
        parameter: with or without data.
        update: has the shapes.
        dtype_of: returns the dtype of a state by its name.
        options: of `torch.empty_like`.

    Raises:
        UserError: ranks hold parts of a dimension that a state does not have, and the update does not assemble them.
    """
    part, whole = local(parameter.detach()), update.states(name, tuple(parameter.shape))
    states = {}
    for key, shape in update.states(name, tuple(part.shape)).items():
        sizes = zip(part.shape, parameter.shape, whole[key], strict=True)
        if not update.assembles and any(own < every and size < every for own, every, size in sizes):
            raise UserError(f"the optimizer's {key} of {name} cannot be computed from a part: change [parallel]")
        like = part if shape == tuple(part.shape) else part.new_empty(shape)
        states[key] = torch.zeros_like(like, dtype=dtype_of(key), **options)
    return states
