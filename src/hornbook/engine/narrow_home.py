"""A home in memory with weights, gradients or moments in 16 bits, or with moments in the host's memory.

::

    stored bf16, fp16            --slots(part)-->   fp32, part by part   --written back-->   rounded stochastically

What is stored is all that exists: weights below fp32 have no fp32 copy. A part is a layer, so no more than one layer is
open in fp32 at a time. Gradients add up in their dtype in autograd's accumulators. Weights and moments are rounded by
bits that are a hash of (seed, update, name, index).

In fp16 the mean of squared gradients is stored as its root, ``exp_avg_rms``, since squares of what fp16 can hold are
below its smallest number.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hornbook.config import Recipe
from hornbook.engine.home import Held, InMemory
from hornbook.model import LanguageModel
from hornbook.ops.rounding import random_words, round_stochastically
from hornbook.optim.slots import Slot, norms_of
from hornbook.optim.updates import Update
from hornbook.parallel.device import DTYPES
from hornbook.parallel.ranks import box_of, local
from hornbook.parallel.world import World


def store_weights(model: LanguageModel, dtype: torch.dtype) -> None:
    """Give the parameters of ``model``, which is on the meta device, another dtype, in place."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.tie()


def part_of(name: str) -> str:
    """Return the part that a parameter belongs to: ``embedding``, ``blocks.3`` or ``head``."""
    words = name.split(".")
    return ".".join(words[:2]) if words[0] == "blocks" else words[0]


class NarrowHome(InMemory):
    """See above.

    Args:
        model: in memory, its parameters in their dtype.
        update: names the optimizer's state, which is zero.
        recipe: gives the dtypes, the seed, and whether the optimizer state is in the host's memory.
        world: see ``InMemory``.
    """

    def __init__(self, model: LanguageModel, update: Update, recipe: Recipe, world: World) -> None:
        self._precision, self._seed, self._divisor = recipe.precision, recipe.training.seed, 1.0
        elsewhere = {"device": "cpu", "pin_memory": True} if recipe.memory.offload_optimizer else {}
        super().__init__(model, self._zeros(model, update, elsewhere), world)
        self._gradient_dtype = DTYPES[recipe.precision.gradients]
        for parameter in model.parameters():
            if parameter.dtype != self._gradient_dtype:
                parameter.grad_dtype = self._gradient_dtype
        self._parts: dict[str, dict[str, int]] = {}
        for name, _ in model.own_parameters():
            names = self._parts.setdefault(part_of(name), {})
            names[name] = len(names)
        self.parts = tuple(self._parts)

    def _zeros(self, model: LanguageModel, update: Update, where: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        def zeros(parameter: Tensor, key: str) -> Tensor:
            dtype = DTYPES[self._precision.dtype_of_state(key)]
            return torch.zeros_like(local(parameter.detach()), dtype=dtype, **where)

        return {
            name: {key: zeros(parameter, key) for key in (*update.state_names, *update.further_names(name, parameter))}
            for name, parameter in model.own_parameters()
        }

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """See ``Home``."""
        states = sorted({key for states in self.moments.values() for key in states})
        stored = {key: DTYPES[self._precision.dtype_of_state(key)] for key in states}
        return {"weight": DTYPES[self._precision.weights], "gradient": self._gradient_dtype, **stored}

    def weights(self, part: str) -> dict[str, Tensor]:
        """See ``Home``."""
        return {held.name: local(held.parameter.detach()) for held in self._held if held.name in self._parts[part]}

    def keep_gradients(self, part: str) -> None:
        """Sum all gradients with the first part; see ``InMemory``."""
        if part == next(iter(self._parts)):
            super().keep_gradients(part)

    def gradient_norms(self, part: str) -> Tensor:
        """See ``Home``."""
        order, found = self._parts[part], self._gradients(part)
        norms = norms_of([gradient for _, gradient in found], [held.holders for held, _ in found]) if found else None
        if self._world.pipeline.size == 1:
            return torch.zeros(0, device=self._world.device) if norms is None else norms
        everywhere = torch.zeros(len(order), device=self._world.device)
        if norms is not None:
            everywhere[[order[held.name] for held, _ in found]] = norms
        return self._world.pipeline.sum_tensor(everywhere)

    @contextmanager
    def slots(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``Home``; what was opened is rounded and stored on leaving."""
        with self._stored(part, count) as stored:
            slots = [self._opened_slot(slot) for slot in stored]
            yield slots
            for target, slot in zip(stored, slots, strict=True):
                self._store(target.parameter, slot.parameter, slot.name, f"{count}/weight")
                for key, tensor in target.state.items():
                    values = slot.state[key].sqrt_() if self._is_root(key) else slot.state[key]
                    self._store(tensor, values, slot.name, f"{count}/{key}")
            slots.clear()  # the caller's list, so that nothing stays open while the next part is opened

    def _stored(self, part: str, count: int) -> AbstractContextManager[list[Slot]]:
        """Give slots with weights and states as they are stored, and gradients in fp32."""
        return super().slots(part, count)

    def _opened_slot(self, stored: Slot) -> Slot:
        device = stored.parameter.device
        state = {key: self._opened(tensor, device) for key, tensor in stored.state.items()}
        for key in filter(self._is_root, state):
            state[key].square_()
        return replace(stored, parameter=self._opened(stored.parameter, device), state=state)

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients, those of 16 bits when they are opened: divided, they might vanish."""
        if self._gradient_dtype == torch.float32:
            super().divide_gradients(divisor)
        else:
            self._divisor *= divisor

    def drop_gradients(self) -> None:
        """See ``Home``."""
        self._divisor = 1.0
        super().drop_gradients()

    def _state_name(self, key: str) -> str:
        return self._precision.stored_name(key)

    def _is_root(self, key: str) -> bool:
        return self._state_name(key) != key

    def _gradients(self, part: str) -> list[tuple[Held, Tensor]]:
        """Return what has a gradient in a part, and that gradient in fp32."""
        of_part = [(held, gradient) for held, gradient in super()._gradients(part) if held.name in self._parts[part]]
        opened = [(held, self._opened(gradient, held.parameter.device)) for held, gradient in of_part]
        if self._divisor == 1.0:
            return opened
        return [(held, gradient.div_(self._divisor)) for held, gradient in opened]

    @staticmethod
    def _opened(tensor: Tensor, device: torch.device) -> Tensor:
        """Return a tensor in fp32 on ``device``: itself, if it is."""
        return tensor.to(device, torch.float32, non_blocking=True)

    def _store(self, target: Tensor, values: Tensor, name: str, what: str) -> None:
        """Write fp32 ``values`` of a parameter or its state back to where they were opened."""
        if target.data_ptr() == values.data_ptr():
            return
        if target.dtype != torch.float32:
            parameter = self.model.get_parameter(name)
            begin, shape = box_of(parameter)
            words = random_words(f"{self._seed}/{name}/{what}", begin, shape, parameter.shape, values.device)
            values = round_stochastically(values, target.dtype, words.view(values.shape))
        target.copy_(values)
