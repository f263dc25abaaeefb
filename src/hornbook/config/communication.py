"""Formulas for the bytes that a rank sends in a training step, without torch.

::

    all_reduce       2 (n - 1)/n · bytes of the tensor            ring: each rank sends every part but one, twice
    all_gather         (n - 1)   · bytes of the rank's part
    reduce_scatter     (n - 1)   · bytes of the rank's part
    send                           bytes of the tensor

    replicate n      gradients once a step                        all_reduce
    shard n          weights twice a micro-batch                  all_gather
                     gradients once a micro-batch, or a step      reduce_scatter
    hybrid           as shard; gradients between groups once a step  all_reduce
    tensor n         twice a pair of layers and micro-batch: [tokens, D]; embedding and head  all_reduce
    sequence n       three times a pair of layers and micro-batch: [tokens / n, D]   all_gather
                     twice                                                           reduce_scatter
                     gradients of what sees a slice of the tokens once a step        all_reduce
    pipeline         [tokens, D] to the next stage, its gradient to the one before            send

Counts, losses and norms, a few numbers each, are neglected. Weights and gradients are fp32.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Final

from hornbook.config.description import description_of
from hornbook.config.parallel import rounds_of
from hornbook.config.parts import Attention, Convolution, FeedForward
from hornbook.config.rank_part import RankPart, shard_size
from hornbook.config.recipe import Recipe

_FP32: Final = 4
_NUMBERS_OF_A_LOSS: Final = 3 * _FP32
"""Bytes of the sums over ranks for each scored token if the vocabulary is split (`hornbook.ops.cross_entropy`).

Triton's kernel gathers 16 bytes of each rank instead: neglected, too.
"""
_NUMBERS_OF_A_HIT: Final = _FP32 + 8
"""The same, for the accuracy of a masked language model."""


def factor(operation: str, num_ranks: int) -> float:
    """Return the bytes that a rank sends per byte of an operation of ``num_ranks`` ranks.

    The bytes of ``all_gather`` are those of the rank's input, those of ``reduce_scatter`` of its output. Other
    operations have a factor of 1.
    """
    if operation == "all_reduce":
        return 2.0 * (num_ranks - 1) / num_ranks
    return num_ranks - 1.0 if operation in ("all_gather", "reduce_scatter") else 1.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """The computation of a rank in a step."""

    num_micro_batches: int
    tokens: float
    """Tokens of a micro-batch with padding; for a pipeline, of the largest one."""
    scored: float
    """Tokens of a micro-batch for which logits are computed."""
    itemsize: int
    """Bytes per element of activations."""
    gathered: int = 4
    """Bytes per element of the weights of blocks and head when they are gathered."""


def bytes_sent(recipe: Recipe, num_ranks: int, rank: int, load: Load) -> dict[str, float]:
    """Return the bytes that ``rank`` of ``num_ranks`` sends in a step, by operation; {} for custom models.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        num_ranks: a multiple of the sizes in ``[parallel]``.
        rank: from 0.
        load: the computation of the rank.
    """
    if description_of(recipe.model) is None:
        return {}
    part = _Part.of(recipe, num_ranks, rank)
    sent: Counter[str] = Counter()
    for count in (part.gradients(load), part.layers(load), part.slices(load), part.stages(load)):
        sent.update(count)
    return {operation: number for operation, number in sorted(sent.items()) if number}


class _Part(RankPart):
    """The part of a rank, with the bytes that it sends."""

    def gradients(self, load: Load) -> dict[str, float]:
        """Return the bytes of data parallelism: gradients, and weights that are gathered."""
        sizes, recipe = self.sizes, self.recipe
        if sizes.shard == 1:
            own = _FP32 * sum(math.prod(shape) for shape in self.shapes.values())
            return {"all_reduce": factor("all_reduce", sizes.replicate) * own}
        parts = list(self.shapes.values())
        if self.has_head and self.description.is_tied:
            parts.append(self.table)  # the head has a copy
        own = _FP32 * sum(shard_size(shape, sizes.shard) for shape in parts)
        kept = sum(
            shard_size(shape, sizes.shard) for name, shape in self.shapes.items() if name.startswith("embedding.")
        )
        received = load.gathered * (own / _FP32 - kept) + _FP32 * kept
        gathers, cuts, sums = 2 * load.num_micro_batches, load.num_micro_batches, 1
        if recipe.parallel.sum_gradients == "step":
            cuts = 1
        elif sizes.pipeline > 1:
            schedule = recipe.parallel.pipeline_schedule
            gathers = cuts = sums = len(rounds_of(load.num_micro_batches, sizes.pipeline, schedule))
        return {
            "all_gather": factor("all_gather", sizes.shard) * received * gathers,
            "reduce_scatter": factor("reduce_scatter", sizes.shard) * own * cuts,
            "all_reduce": factor("all_reduce", sizes.replicate) * own * sums,
        }

    def layers(self, load: Load) -> dict[str, float]:
        """Return the bytes of tensor parallelism: activations and their gradients."""
        hidden, itemsize = self.recipe.model.hidden_size, load.itemsize
        numbers = 0.0
        if not self.recipe.parallel.sequence_parallel:
            numbers += (self.num_pairs + self.num_inputs) * load.tokens * hidden * itemsize
            numbers += load.tokens * hidden * _FP32 * (0 in self.own_stages)
        if self.num_stages - 1 in self.own_stages:
            is_counted = self.recipe.objective.name != "causal_lm"
            numbers += load.scored * (hidden * itemsize + _NUMBERS_OF_A_LOSS + is_counted * _NUMBERS_OF_A_HIT)
            numbers += _FP32 * math.prod(self.shapes.get("head.bias", (0,)))
        numbers *= load.num_micro_batches
        if not self.recipe.parallel.sequence_parallel:
            shared = [shape for name, shape in self.shapes.items() if self.description.sees_share(name)]
            numbers += _FP32 * sum(shard_size(shape, self.sizes.shard) for shape in shared)
        return {"all_reduce": factor("all_reduce", self.sizes.tensor) * numbers}

    def slices(self, load: Load) -> dict[str, float]:
        """Return the bytes of sequence parallelism: slices of tokens, and gradients of parameters that see a slice."""
        num_ranks = self.sizes.tensor
        if not self.recipe.parallel.sequence_parallel:
            return {}
        slice_size = load.tokens / num_ranks * self.recipe.model.hidden_size
        numbers = slice_size * load.itemsize * load.num_micro_batches
        embedding = slice_size * _FP32 * load.num_micro_batches * (0 in self.own_stages)
        parts = self.description.block.parts
        convolutions = len(self.blocks) * sum(isinstance(part, Convolution) for part in parts)  # need all tokens
        gathers = self.num_pairs + 2 * self.num_inputs + convolutions + (self.num_stages - 1 in self.own_stages)
        sliced = [shape for name, shape in self.shapes.items() if self.description.sees_slice(name)]
        seen = sum(shard_size(shape, self.sizes.shard) for shape in sliced)
        return {
            "all_gather": factor("all_gather", num_ranks) * (gathers * numbers + embedding),
            "reduce_scatter": factor("reduce_scatter", num_ranks)
            * ((self.num_pairs + self.num_inputs + convolutions) * numbers + embedding),
            "all_reduce": factor("all_reduce", num_ranks) * _FP32 * seen,
        }

    @property
    def num_pairs(self) -> int:
        """The number of pairs of layers that tensor parallelism splits."""
        parts = self.description.block.parts
        return len(self.blocks) * sum(isinstance(part, Attention | FeedForward) for part in parts)

    @property
    def num_inputs(self) -> int:
        """The number of first layers of these pairs."""
        parts = self.description.block.parts
        return len(self.blocks) * sum(len(part.inputs) for part in parts if isinstance(part, Attention | FeedForward))

    def stages(self, load: Load) -> dict[str, float]:
        """Return the bytes of pipelines: hidden states and their gradients, and the tied table with its gradient."""
        if self.sizes.pipeline == 1:
            return {}
        neighbors = [stage + way for stage in self.own_stages for way in (-1, 1)]
        wires = sum(0 <= stage < self.num_stages and stage not in self.own_stages for stage in neighbors)
        hidden = wires * load.num_micro_batches * load.tokens * self.recipe.model.hidden_size * load.itemsize
        if self.recipe.parallel.sequence_parallel:
            hidden /= self.sizes.tensor
        has_one_end = self.description.is_tied and (0 in self.own_stages) != (self.num_stages - 1 in self.own_stages)
        return {"send": hidden + has_one_end * _FP32 * shard_size(self.table, self.sizes.shard)}
