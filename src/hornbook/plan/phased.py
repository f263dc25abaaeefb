"""Memory and transfers of a step of phased execution: `hornbook.engine.phased` and its home.

::

    head, blocks, embedding     weights of a part and of the next, gradients of the part and of the last one
    update                      a tensor, the next one being loaded, the last one being saved

Forward passes without gradients need less memory, and all blocks need the same. Transfers are assumed to take no time
or as much as possible, whichever needs more memory: tensors are present when their read begins, and are freed when the
next write begins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hornbook.config.description import description_of
from hornbook.config.objectives import LabelledConfig
from hornbook.config.optimizers import LambConfig
from hornbook.config.rank_part import RankPart, shard_size
from hornbook.config.recipe import Recipe
from hornbook.config.sections import DTYPE_BYTES
from hornbook.plan.attention import Tokens
from hornbook.plan.blocks import block_of
from hornbook.plan.embedding import embed, embed_backward
from hornbook.plan.head import Head
from hornbook.plan.layers import FP32, Compute, Layers
from hornbook.plan.tape import Tape

_ALIGNMENT: Final = 64
"""Alignment of tensors in files, in bytes."""
_TABLE: Final = "embedding.tokens"
_ROUNDING: Final = 3 * 4
"""Temporary bytes per element for stochastic rounding: random words and intermediate results."""
_MOST_MICRO_BATCHES: Final = 3
"""The first one finds no gradients, the last one has no successor."""


class Moved(NamedTuple):
    """Bytes that a rank reads and writes."""

    read: float
    written: float


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A rank's storage outside of its device, and the transfers of a step."""

    size: float
    """Bytes of the files or of host memory."""
    passes: Moved
    """Transfers of the forward and backward passes."""
    update: Moved
    """Transfers of the update."""


def transfer_of(recipe: Recipe, part: RankPart, num_tokens: float, itemsize: int) -> Transfer:
    """Return the transfers of a step.

    Args:
        recipe: of the run.
        part: of the rank.
        num_tokens: of the rank and step, with padding.
        itemsize: bytes per element of activations.
    """
    sizes = {name: shard_size(shape, part.sizes.shard) for name, shape in part.shapes.items()}
    weight, gradient = _stored_bytes(recipe)
    moments = {name: _states(recipe, part, name) for name in sizes}
    of_states = sum(size * count for states in moments.values() for size, count in states)
    numbers, table, is_tied = sum(sizes.values()), sizes[_TABLE], _is_tied(recipe)
    whole_table = is_tied * math.prod(part.table) * gradient
    head = sum(size for name, size in sizes.items() if name.startswith("head."))
    layers, row = recipe.model.num_layers, num_tokens * recipe.model.hidden_size * itemsize
    state = sum(_aligned(size * each) for size in sizes.values() for each in (weight, gradient))
    state += sum(_aligned(size * count) for states in moments.values() for size, count in states)
    return Transfer(
        size=state + whole_table + (layers + 2) * row,
        passes=Moved(
            read=(2 * numbers - head + is_tied * table) * weight + whole_table + (3 * layers + 2) * row,
            written=numbers * gradient + whole_table + (2 * layers + 2) * row,
        ),
        update=Moved(read=numbers * (weight + gradient) + of_states, written=numbers * weight + of_states),
    )


def _stored_bytes(recipe: Recipe) -> list[int]:
    """Return the stored bytes per element of weights and gradients."""
    return [DTYPE_BYTES[dtype] for dtype in (recipe.precision.weights, recipe.precision.gradients)]


def _states(recipe: Recipe, part: RankPart, name: str) -> list[tuple[int, int]]:
    """Return the number of elements of each of a parameter's states, and the bytes of each element."""
    return [(shard_size(own, part.sizes.shard), size) for own, size in recipe.states(name, part.shapes[name])]


def _is_tied(recipe: Recipe) -> bool:
    """Return whether the head multiplies by the embedding's token table."""
    described = description_of(recipe.model)
    return not isinstance(recipe.objective, LabelledConfig) and described is not None and described.is_tied


def _aligned(size: float) -> float:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class PhasedStep:
    """The recorder of a phased step on a tape; arguments as for `hornbook.plan.step.Step`."""

    offloaded = 0.0

    def __init__(
        self, recipe: Recipe, compute: Compute, tokens: Tokens, part: RankPart, num_micro_batches: int, tape: Tape
    ) -> None:
        self.recipe, self.part, self.tokens, self.tape = recipe, part, tokens, tape
        self.layers = Layers(tape, compute)
        self._num_micro_batches = min(num_micro_batches, _MOST_MICRO_BATCHES)
        layers = sorted({*part.blocks[:1], *part.blocks[-2:]})
        self._blocks = {
            f"blocks.{layer}": block_of(part.description.block_at(layer), layer, tokens) for layer in layers
        }
        self._weight, self._gradient = _stored_bytes(recipe)

    def write(self) -> None:
        """Write the step."""
        parts = ["head", *reversed(self._blocks), "embedding"]
        self._load("head")
        for name, following in zip(parts, [*parts[1:], None], strict=True):
            if following is not None:
                self._load(following)
            for number in range(self._num_micro_batches):
                self._compute(name, number)
            self._keep(name)
        self.tape.free("row on its way", "gradients on their way")
        self._update()

    def _load(self, name: str) -> None:
        """Hold the weights of a part, gathered from all ranks if they are sharded."""
        numbers = sum(math.prod(shape) for key, shape in self.part.shapes.items() if key.startswith(f"{name}."))
        numbers += math.prod(self.part.table) * (name == "head" and _is_tied(self.recipe))
        self.tape.hold("weights", f"{name}/weights", numbers * self._weight)

    def _compute(self, name: str, number: int) -> None:
        """Run a micro-batch through a part, forward and backward."""
        tape, layers, has_gradient = self.tape, self.layers, name != "head"
        row = self.tokens.num * self.recipe.model.hidden_size
        num_read = (1 if name == "embedding" else 1 + has_gradient) * (1 + (number + 1 < self._num_micro_batches))
        layers.activation("rows", num_read * row)
        layers.activation("x", 0)  # in a row, like the gradient
        layers.scratch("gradient", 0) if has_gradient else None
        if name == "head":
            self._head.forward(layers, "x")
            self._head.backward(layers, "x")
        elif name == "embedding":
            embed(layers, self.part.description, self.tokens, self.part.table[0], "y")
            embed_backward(layers, self.part.description, self.tokens, self.part.table[0])
        else:
            self._blocks[name].forward(layers, "x", "y")
            self._blocks[name].backward(layers, "x")
        tape.free("y", "x")
        if tape.holds("gradient"):
            layers.activation("row on its way", row)
            tape.free("gradient")
        tape.free("rows")

    def _keep(self, name: str) -> None:
        """Sum a part's gradients, and write them while the next part is computed."""
        tape = self.tape
        kept = [key for key in tape.names() if key.endswith("/gradient")]
        numbers = sum(map(tape.size, kept)) / self._gradient
        tape.free(*(key for key in tape.names() if key.startswith(f"{name}") and "/panels" in key), f"{name}/weights")
        if name == "embedding" and _is_tied(self.recipe):
            tape.free("gradients on their way")
            tape.use(math.prod(self.part.table) * self._gradient)
        if self._gradient < FP32:
            tape.use(numbers * FP32, "norms")
        tape.hold("gradients", "gradients on their way", 0)
        tape.free(*kept)
        tape.hold("gradients", "gradients on their way", numbers * self._gradient / self.part.sizes.shard)

    def _update(self) -> None:
        """Update one tensor after the other."""
        tape, part = self.tape, self.part
        has_directions = FP32 * isinstance(self.recipe.optimizer, LambConfig)
        tensors = [
            (shard_size(shape, part.sizes.shard), _states(self.recipe, part, name))
            for name, shape in part.shapes.items()
        ]
        self._arrive(*tensors[0], "this")
        for (size, states), following in zip(tensors, [*tensors[1:], (0, [])], strict=True):
            opened = FP32 * size * ((self._weight < FP32) + (self._gradient < FP32))
            opened += FP32 * sum(count for count, itemsize in states if itemsize < FP32)
            is_rounded = self._weight < FP32 or any(itemsize < FP32 for _, itemsize in states)
            rounding = _ROUNDING * is_rounded
            self._arrive(*following, "next")
            tape.hold("workspace", "opened", opened)
            tape.free(*["this gradient"] * (self._gradient < FP32))  # not needed after its conversion
            tape.use(max(has_directions, rounding) * size, "directions, random words")
            tape.free("opened")
            for kind, name, count in self._state(size, states):
                tape.free(f"last {name}", f"this {name}")
                tape.hold(kind, f"last {name}", count * (name != "gradient"))
            tape.free(*(f"next {name}" for _, name, _ in self._state(size, states)))
            self._arrive(*following, "this")

    def _state(self, size: int, states: list[tuple[int, int]]) -> Iterator[tuple[Any, str, int]]:
        yield "weights", "weight", size * self._weight
        yield "gradients", "gradient", size * self._gradient
        yield "moments", "moments", sum(count * itemsize for count, itemsize in states)

    def _arrive(self, size: int, states: list[tuple[int, int]], which: str) -> None:
        for kind, name, count in self._state(size, states):
            self.tape.hold(kind, f"{which} {name}", count)

    @property
    def _head(self) -> Head:
        return Head.of(self.recipe, self.tokens, self.part.table[0])
