"""A training step of one rank on a tape: micro-batches forward and backward, then the update.

::

    embedding, blocks, head  ->  head, blocks, embedding  ->  again, with gradients that exist  ->  update
"""

from collections.abc import Sequence
from typing import Final

from hornbook.config.optimizers import LambConfig
from hornbook.config.pipeline import rounds_of
from hornbook.config.precision import DTYPE_BYTES
from hornbook.config.rank_part import RankPart, shard_size
from hornbook.config.recipe import Recipe
from hornbook.plan.attention import Tokens
from hornbook.plan.blocks import Block, block_of, embed, embed_backward
from hornbook.plan.head import Head
from hornbook.plan.layers import FP32, Compute, Layers
from hornbook.plan.tape import Tape

_MIB: Final = 1 << 20
_STAY: Final = ("/gradient", "/panels", "/panels of the gradient")
"""How names end of what outlives a forward pass that keeps nothing else."""
_BYTES_OF_POSITION: Final = 3 * 4
"""Row, column and age of a block, int32."""


class Step:
    """Writes a step; see above.

    Args:
        recipe: of the run.
        compute: who computes.
        tokens: of a micro-batch.
        part: what the rank holds.
        num_micro_batches: of the rank and step.
        tape: to write on.
    """

    def __init__(
        self, recipe: Recipe, compute: Compute, tokens: Tokens, part: RankPart, num_micro_batches: int, tape: Tape
    ) -> None:
        self.recipe, self.part, self.tokens, self.tape = recipe, part, tokens, tape
        self.layers = Layers(tape, compute)
        self.num_micro_batches = num_micro_batches
        self.offloaded = 0.0
        """Bytes of activations of a micro-batch that lie in the host's memory."""
        self._blocks = {layer: block_of(recipe.model, layer, tokens, part.sizes.tensor) for layer in part.layers}
        self._kept_by_budget: int | None = None

    def write(self) -> None:
        """Write it."""
        if self.part.sizes.pipeline > 1:
            self._wires()
        for _ in range(min(self.num_micro_batches, 2)):
            self.forward()
            self.backward()
        self.update()

    def forward(self) -> None:
        """Compute the loss, or the hidden states that go to the next stage."""
        part, tape, x = self.part, self.tape, "x"
        if part.has_embedding:
            embed(self.layers, self.recipe.model, self.tokens, x)
        else:
            self.layers.activation(x, 0)
        for layer, block in self._blocks.items():
            y, before = f"blocks.{layer}/result", set(tape.names())
            block.forward(self.layers, x, y)
            if self._recomputes(layer, before):
                self._forget(before | {y}, layer)
            x = y
        if part.has_head:
            self._head.forward(self.layers, x)

    def backward(self) -> None:
        """Compute the gradients of all that was written by `forward`."""
        part, tape = self.part, self.tape
        results = ["x", *(f"blocks.{layer}/result" for layer in self._blocks)]
        if part.has_head:
            self._head.backward(self.layers, results[-1])
        else:
            self.layers.scratch("gradient", self.tokens.num * self.recipe.model.hidden_size)
            tape.free(results[-1])
        for (layer, block), x in zip(reversed(self._blocks.items()), reversed(results[:-1]), strict=True):
            self._remember(layer, block, x)
            block.backward(self.layers, x)
        if part.has_embedding:
            embed_backward(self.layers, self.recipe.model, self.tokens, part.table[0])
        tape.free("gradient", "x")

    def update(self) -> None:
        """Update weights and moments."""
        recipe, tape = self.recipe, self.tape
        sizes = {name: shard_size(shape, self.part.sizes.shard) for name, shape in self.part.shapes.items()}
        if isinstance(recipe.optimizer, LambConfig):
            tape.use(FP32 * sum(sizes.values()), "directions")

    def position_bytes(self) -> float:
        """Return the bytes of the positions of blocks of sparse linear maps."""
        return 0.0

    @property
    def _head(self) -> Head:
        recipe = self.recipe
        return Head(
            model=recipe.model,
            objective=recipe.objective,
            tokens=self.tokens,
            num_rows=self.part.table[0],
            chunks=recipe.memory.vocabulary_chunks,
        )

    def _recomputes(self, layer: int, before: set[str]) -> bool:
        """Tell whether a block that has just been computed forgets what it holds."""
        memory = self.recipe.memory
        if memory.recompute is None or (memory.recompute_layers and layer not in memory.recompute_layers):
            return False
        if memory.recompute_budget is None:
            return True
        kept = sum(self.tape.size(name) for name in self._forgettable(before | {f"blocks.{layer}/result"}, layer))
        number = self.part.layers.index(layer) + 1
        return number * kept > memory.recompute_budget * _MIB

    def _forget(self, staying: set[str], layer: int) -> None:
        self.tape.free(*self._forgettable(staying, layer))

    def _forgettable(self, staying: set[str], layer: int) -> Sequence[str]:
        """Return what a block drops: all but its input and result, or what attention made between its projections."""
        names = [name for name in self.tape.names() if name not in staying and not name.endswith(_STAY)]
        if self.recipe.memory.recompute == "attention":
            inner = f"blocks.{layer}.attention/"
            return [name for name in names if name.startswith(inner) and name[len(inner) :] not in ("qkv", "y")]
        return names

    def _remember(self, layer: int, block: Block, x: str) -> None:
        """Compute again what a block forgot."""

    def _wires(self) -> None:
        """Hold what a schedule keeps beside the micro-batch that is computed."""
        recipe, part = self.recipe, self.part
        ranks, schedule = part.sizes.pipeline, recipe.parallel.pipeline_schedule
        wire = self.tokens.num * recipe.model.hidden_size * self.layers.itemsize
        size = max(rounds_of(self.num_micro_batches, ranks, schedule))
        ends = sum(stage not in (0,) for stage in part.own_stages)
        ends += sum(stage != part.num_stages - 1 for stage in part.own_stages)
        self.tape.hold("workspace", "wires", ends * size * wire)

    def weights_bytes(self) -> int:
        """Return the bytes of a weight."""
        return DTYPE_BYTES[self.recipe.precision.weights]
