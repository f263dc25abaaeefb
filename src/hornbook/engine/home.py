"""Where weights, gradients and optimizer state lie between uses, part by part.

::

    executor --keep_gradients(part)--> home --gradient_norms(part)--> one global norm
                                            --slots(part)-----------> clip, update, written back on leaving

A part is what is updated at once: the whole model where it lies in memory (``InMemory``), a block where parts come from
elsewhere. The step loops over ``parts`` and knows nothing else of where tensors are. Weights that are cut over ranks
are updated in their local parts (`hornbook.parallel.ranks`); only norms need the other ranks. Those on the meta device
are those that other ranks of a pipeline hold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hornbook.checkpoint.contents import Shard
from hornbook.config.parallel import sees_slice
from hornbook.model import LanguageModel
from hornbook.optim.slots import Holders, Role, Slot, norms_of, num_parts_of, role_of
from hornbook.optim.updates import Update
from hornbook.parallel.gradient_sums import GradientSums
from hornbook.parallel.ranks import box_of, cut_axes, local
from hornbook.parallel.world import World

Shards = dict[str, dict[str, Shard]]
"""What this rank holds of the tensors of a checkpoint, by group (``model``, ``optimizer``), then by name."""


class Home(Protocol):
    """The weights, gradients and optimizer state of a model; gradients here are those of the global loss."""

    parts: Sequence[str]
    """Names of the parts in the order of their updates, the same on every data-parallel rank."""
    traffic: Mapping[str, int]
    """What the last step moved between home and device, for the log: bytes by name; empty where nothing moves."""

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Storage dtypes: of ``weight``, of ``gradient``, and of each optimizer state by its name."""

    def weights(self, part: str) -> dict[str, Tensor]:
        """Return a part's parameters, or what this rank holds of them, by name, without their autograd history."""

    def expect_gradients(self, *, is_last: bool, whole: bool) -> None:
        """Prepare for the backward pass of a micro-batch; the sums over ranks may begin during the last of a step.

        With ``whole``, ranks that hold parts of a gradient keep all of it until then.
        """

    def keep_gradients(self, part: str) -> None:
        """Store the sum over data-parallel ranks of the gradients that a backward pass left in a part's parameters."""

    def gradient_norms(self, part: str) -> Tensor:
        """Return the L2 norm of each of a part's gradients on all ranks, fp32 ``[number of gradients]``."""

    def slots(self, part: str, count: int) -> AbstractContextManager[list[Slot]]:
        """Give parameter, gradient and state, fp32, of everything in a part that has a gradient; changes are kept.

        Args:
            part: of the model.
            count: the number of the update, from 1, on which rounding depends where storage is narrower.
        """

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients in place."""

    def drop_gradients(self) -> None:
        """Forget all gradients."""

    def tensors(self) -> Shards:
        """Return what a checkpoint keeps, in logical shapes without padding; writing into it changes the state."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors of a checkpoint, all ranks' together."""


class Held(NamedTuple):
    """A parameter that this rank holds, or a part of it."""

    name: str
    parameter: nn.Parameter
    role: Role
    num_parts: int
    holders: Holders | None


class InMemory:
    """A model that lies in the memory of its device, or of several ranks', with optimizer state beside it.

    It is one part, ``"model"``.

    Args:
        model: its parameters are the weights; their ``.grad`` are the gradients.
        moments: by parameter name, then by the optimizer's state name; tensors of the shape of the parameter's local
            part.
        world: the data-parallel ranks add up gradients; where they are sharded, ``fully_shard`` does.
    """

    parts: Sequence[str] = ("model",)
    """See ``Home``."""
    traffic: Mapping[str, int] = MappingProxyType({})
    """See ``Home``."""

    def __init__(self, model: LanguageModel, moments: dict[str, dict[str, Tensor]], world: World) -> None:
        self.model, self.moments, self._world = model, moments, world
        self._order = {name: number for number, (name, _) in enumerate(model.own_parameters())}
        self._held = [
            Held(
                name,
                parameter,
                role_of(name, parameter),
                num_parts_of(name),
                None if world.mesh is None else Holders(world.holders, world.num_copies(cut_axes(parameter))),
            )
            for name, parameter in model.own_parameters()
            if not parameter.is_meta
        ]
        summed = [held.parameter for held in reversed(self._held)]
        summed.sort(key=lambda parameter: parameter is model.embedding.tokens)  # a tied table's gradient changes last
        has_sums = world.data.size > 1 and not world.is_sharded
        self._sums = GradientSums(summed, world.data) if has_sums else None
        sliced = [held.parameter for held in self._held if sees_slice(held.name)]
        self._sums_over_slices = GradientSums(sliced, world.sequence) if sliced and world.sequence.size > 1 else None
        self._sharded: list[Any] = [module for module in model.modules() if hasattr(module, "set_requires_all_reduce")]

    @classmethod
    def fresh(cls, model: LanguageModel, update: Update, world: World) -> "InMemory":
        """Return the home before the first step: moments are zero."""
        moments = {
            name: {
                key: torch.zeros_like(local(parameter.detach()))
                for key in (*update.state_names, *update.further_names(name, parameter))
            }
            for name, parameter in model.own_parameters()
        }
        return cls(model, moments, world)

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """fp32 throughout."""
        states = {key for states in self.moments.values() for key in states}
        return dict.fromkeys(("weight", "gradient", *sorted(states)), torch.float32)

    def weights(self, part: str) -> dict[str, Tensor]:
        """See ``Home``."""
        return {held.name: local(held.parameter.detach()) for held in self._held}

    def expect_gradients(self, *, is_last: bool, whole: bool) -> None:
        """See ``Home``; groups of shards are summed once a step."""
        if self._sums is not None and is_last:
            self._sums.expect()
        for module in self._sharded:
            if whole:
                module.set_requires_gradient_sync(is_last, recurse=False)
            else:
                module.set_requires_all_reduce(is_last, recurse=False)

    def keep_gradients(self, part: str) -> None:
        """Fold the tied table's two gradients and give each parameter the sum over ranks, in place.

        An objective or a model may skip a module for which a micro-batch has nothing. The gradient of its parameters is
        zero then, so a parameter has a gradient if it has one on any rank, as it would in one process. Sharded
        gradients are sums already. With sequence parallelism, what sees the tokens of its rank alone is summed over
        those ranks, too.
        """
        self.model.fold_tied_gradients()
        for sums in (self._sums, self._sums_over_slices):
            if sums is not None:
                sums.finish()

    def gradient_norms(self, part: str) -> Tensor:
        """See ``Home``."""
        found = self._gradients(part)
        norms = norms_of([gradient for _, gradient in found], [held.holders for held, _ in found])
        if self._world.pipeline.size == 1:
            return norms
        everywhere = norms.new_zeros(len(self._order))  # in one process's order, so that they add up to the same bits
        everywhere[[self._order[held.name] for held, _ in found]] = norms
        return self._world.pipeline.sum_tensor(everywhere)

    @contextmanager
    def slots(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``Home``; nothing has to be written back."""
        yield [
            Slot(
                name=held.name,
                parameter=local(held.parameter.detach()).view(gradient.shape),
                gradient=gradient,
                state={key: tensor.view(gradient.shape) for key, tensor in self.moments[held.name].items()},
                role=held.role,
                num_parts=held.num_parts,
                holders=held.holders,
            )
            for held, gradient in self._gradients(part)
        ]

    def divide_gradients(self, divisor: float) -> None:
        """See ``Home``."""
        torch._foreach_div_([gradient for part in self.parts for _, gradient in self._gradients(part)], divisor)

    def drop_gradients(self) -> None:
        """See ``Home``."""
        self.model.zero_grad(set_to_none=True)

    def tensors(self) -> Shards:
        """See ``Home``."""
        saved = dict(self.model.saved())
        weights = {name: self._shard(name, tensor, local(tensor)) for name, tensor in saved.items()}
        moments = {
            f"{name}.{self._state_name(key)}": self._shard(name, saved[name], tensor)
            for name, states in self.moments.items()
            for key, tensor in states.items()
        }
        return {"model": weights, "optimizer": moments}

    @property
    def num_bytes(self) -> int:
        """See ``Home``."""
        shards = [shard for tensors in self.tensors().values() for shard in tensors.values()]
        return sum(math.prod(shard.shape) * shard.values.element_size() for shard in shards)

    def _state_name(self, key: str) -> str:
        """Return what a checkpoint calls an optimizer state."""
        return key

    def _gradients(self, part: str) -> list[tuple[Held, Tensor]]:
        """Return what has a gradient, and the gradient of what this rank holds of it, in the shape of its slot."""
        found = []
        for held in self._held:
            if held.parameter.grad is not None:
                gradient = local(held.parameter.grad)
                # stacked biases [3, H·K] are one vector
                found.append((held, gradient.view(-1) if held.role == "bias" else gradient))
        return found

    def _shard(self, name: str, whole: Tensor, values: Tensor) -> Shard:
        """Return the local ``values`` of a parameter, or of its moment, as a box of the tensor without padding."""
        shape = self.model.logical_shape(name, whole)
        begin = tuple(map(min, box_of(whole)[0], shape))
        if values.is_meta:  # another rank holds it
            return Shard(values=values.new_empty((0, *values.shape[1:])), begin=begin, shape=shape, is_copy=True)
        held = values[: shape[0] - begin[0]] if shape else values
        return Shard(values=held, begin=begin, shape=shape, is_copy=not self._world.holds_first(cut_axes(whole)))
