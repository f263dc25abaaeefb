"""A home in memory with weights, gradients or moments in 16 bits, or with moments in host memory.

::

    stored bf16, fp16            --slots(part)-->   fp32, part by part   --written back-->   rounded stochastically

16-bit weights have no fp32 master copy. A part is a layer, so at most one layer is converted to fp32 at a time.
Autograd accumulates gradients in their dtype. Stochastic rounding of weights and moments uses a hash of (seed, update,
name, index).

In fp16, the mean of squared gradients is stored as its root, ``exp_avg_rms``, since the squares of small fp16 numbers
underflow.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hornbook.config import Recipe
from hornbook.engine.home import Held, InMemory, zeros
from hornbook.engine.spaces import pinned_zeros_like
from hornbook.model import LanguageModel
from hornbook.ops.rounding import random_words, round_stochastically
from hornbook.optim.slots import Slot
from hornbook.optim.updates import Update
from hornbook.parallel.device import DTYPES
from hornbook.parallel.ranks import box_of
from hornbook.parallel.world import World


def store_weights(model: LanguageModel, dtype: torch.dtype) -> None:
    """Change the dtype of the parameters of ``model``, which is on the meta device, in place."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.tie()


def part_of(name: str) -> str:
    """Return the part of the parameter ``name``: ``embedding``, ``blocks.3`` or ``head``."""
    words = name.split(".")
    return ".".join(words[:2]) if words[0] == "blocks" else words[0]


class NarrowHome(InMemory):
    """A home with 16-bit tensors or offloaded moments; its parts are layers.

    Args:
        model: in memory, its parameters in their storage dtype.
        update: names the optimizer's states, which are initialized to zero.
        recipe: has the dtypes, the seed, and whether moments are in host memory.
        world: see ``InMemory``.
    """

    def __init__(self, model: LanguageModel, update: Update, recipe: Recipe, world: World) -> None:
        self._precision, self._seed, self._divisor = recipe.precision, recipe.training.seed, 1.0
        is_offloaded = recipe.memory.offload_optimizer and not next(model.parameters()).is_meta
        moments = self._zeros(model, update, {"device": "meta"} if is_offloaded else {})
        super().__init__(model, pinned_zeros_like(moments) if is_offloaded else moments, world)
        self._gradient_dtype = DTYPES[recipe.precision.gradients]
        for parameter in model.parameters():
            if parameter.dtype != self._gradient_dtype:
                parameter.grad_dtype = self._gradient_dtype
        self._parts = {}
        for name, _ in model.own_parameters():
            names = self._parts.setdefault(part_of(name), {})
            names[name] = len(names)
        self.parts = tuple(self._parts)

    def _zeros(self, model: LanguageModel, update: Update, options: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        return {
            name: zeros(name, parameter, update, lambda key: DTYPES[self._precision.dtype_of_state(key)], **options)
            for name, parameter in model.own_parameters()
        }

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        states = sorted({key for states in self.moments.values() for key in states})
        stored = {key: DTYPES[self._precision.dtype_of_state(key)] for key in states}
        return {"weight": DTYPES[self._precision.weights], "gradient": self._gradient_dtype, **stored}

    def keep_gradients(self, part: str) -> None:
        """Sum all gradients when called for the first part; see ``InMemory``."""
        if part == next(iter(self._parts)):
            super().keep_gradients(part)

    @contextmanager
    def slots(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``Home``; leaving the ``with`` block rounds and stores the fp32 tensors."""
        self.copies.clear()  # those of the stored weights would be rounded otherwise
        with self._stored(part, count) as stored:
            slots = [self._opened_slot(slot) for slot in stored]
            yield slots
            for target, slot in zip(stored, slots, strict=True):
                self._store(target.parameter, slot.parameter, slot.name, f"{count}/weight")
                for key, tensor in target.state.items():
                    values = slot.state[key].sqrt_() if self._is_root(key) else slot.state[key]
                    self._store(tensor, values, slot.name, f"{count}/{key}")
            slots.clear()  # the caller's list, to free its fp32 tensors before those of the next part are made

    def _stored(self, part: str, count: int) -> AbstractContextManager[list[Slot]]:
        """Yield slots with weights and states in their storage dtypes and gradients in fp32."""
        return super().slots(part, count)

    def _opened_slot(self, stored: Slot) -> Slot:
        device = stored.parameter.device
        state = {key: self._opened(tensor, device) for key, tensor in stored.state.items()}
        for key in filter(self._is_root, state):
            state[key].square_()
        return replace(stored, parameter=self._opened(stored.parameter, device), state=state, copy=None)

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients; 16-bit ones only after conversion to fp32, since they might underflow."""
        if self._gradient_dtype == torch.float32:
            super().divide_gradients(divisor)
        else:
            self._divisor *= divisor

    def drop_gradients(self) -> None:
        self._divisor = 1.0
        super().drop_gradients()

    def _state_name(self, key: str) -> str:
        return self._precision.stored_name(key)

    def _is_root(self, key: str) -> bool:
        return self._state_name(key) != key

    def _gradients(self, part: str) -> list[tuple[Held, Tensor]]:
        """Return the parameters of a part that have a gradient, and their gradients in fp32."""
        of_part = [(held, gradient) for held, gradient in super()._gradients(part) if held.name in self._parts[part]]
        opened = [(held, self._opened(gradient, held.parameter.device)) for held, gradient in of_part]
        if self._divisor == 1.0:
            return opened
        return [(held, gradient.div_(self._divisor)) for held, gradient in opened]

    @staticmethod
    def _opened(tensor: Tensor, device: torch.device) -> Tensor:
        """Return ``tensor`` in fp32 on ``device``; itself if it is already."""
        return tensor.to(device, torch.float32, non_blocking=True)

    def _store(self, target: Tensor, values: Tensor, name: str, purpose: str) -> None:
        """Write fp32 ``values`` of a parameter or its state back to ``target``, rounded stochastically."""
        if target.data_ptr() == values.data_ptr():
            return
        if target.dtype != torch.float32:
            parameter = self.model.get_parameter(name)
            begin, shape = box_of(parameter)
            words = random_words(f"{self._seed}/{name}/{purpose}", begin, shape, parameter.shape, values.device)
            values = round_stochastically(values, target.dtype, words.view(values.shape))
        target.copy_(values)
