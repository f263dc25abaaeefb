"""Memory of a training step of one rank: micro-batches forward and backward, then the update.

::

    embedding, blocks, head  ->  head, blocks, embedding  ->  again, accumulating gradients  ->  update
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from hornbook.config.optimizers import LambConfig
from hornbook.config.parallel import KEEPS_SENT, rounds_of
from hornbook.config.rank_part import RankPart, shard_size
from hornbook.config.recipe import Recipe
from hornbook.config.sections import DTYPE_BYTES
from hornbook.config.sparsity import linears_of
from hornbook.plan.attention import Tokens
from hornbook.plan.block_layers import own_tokens
from hornbook.plan.blocks import Block, block_of
from hornbook.plan.embedding import embed, embed_backward
from hornbook.plan.head import Head
from hornbook.plan.layers import FP32, SUMMED, TABLE, Casts, Compute, Layers, Postponed
from hornbook.plan.passes import Pass, passes_of
from hornbook.plan.tape import Tape

_MIB: Final = 1 << 20
_ALL_TOKENS: Final = "head/all tokens"
_SENT: Final = " sent"
"""Suffix of the names of tensors that were sent to another stage."""
_STAY: Final = ("/gradient", "/copy", "/panels", "/panels of the gradient", "gathered weights", "wires", _SENT)
"""Suffixes of the names of tensors that remain after a forward pass without activations."""
_ROUNDING: Final = 3 * 4
"""Temporary bytes per element for stochastic rounding: random words and intermediate results."""


class Step:
    """The recorder of a step on a tape.

    Args:
        recipe: of the run.
        compute: device, dtypes and operators.
        tokens: of a micro-batch.
        part: of the rank.
        num_micro_batches: of the rank and step.
        tape: to write on.
    """

    def __init__(
        self, recipe: Recipe, compute: Compute, tokens: Tokens, part: RankPart, num_micro_batches: int, tape: Tape
    ) -> None:
        self.recipe, self.part, self.tokens, self.tape = recipe, part, tokens, tape
        keeps_whole = recipe.parallel.sum_gradients == "step"
        shards = 1 if keeps_whole else part.sizes.shard
        cut = part.description.cut if part.sizes.tensor > 1 else None
        is_mixed = compute.device == "cuda" and compute.weights == compute.gradients == "fp32" != compute.dtype
        casts: Casts = "layer"
        if is_mixed and part.sizes.shard > 1:
            casts = "never"
        elif is_mixed and recipe.precision.kernels != "torch":
            casts = "step"
        self.layers = Layers(
            tape,
            compute,
            num_shards=shards,
            blocks=_blocks_of(recipe),
            cut=cut,
            casts=casts,
        )
        self.num_slices = part.sizes.tensor if recipe.parallel.sequence_parallel else 1
        self._own = replace(tokens, num=own_tokens(tokens, self.num_slices))
        self.num_micro_batches = num_micro_batches
        self.offloaded = 0.0
        """Bytes of offloaded activations of a micro-batch in host memory."""
        memory = recipe.memory
        again: dict[str, set[int]] = {"all": set(), "attention": set()}
        if memory.recompute:
            again[memory.recompute] = self._recomputing()
        self._again = self._computed_again = again["all"]
        self._postponed: dict[tuple[int, int], list[Postponed]] = {}
        """Postponed gradients by stage and micro-batch."""
        self._blocks = {layer: self._block(layer, mixes_again=layer in again["attention"]) for layer in part.blocks}

    def write(self) -> None:
        """Write the step, or two steps if the first one packs weights after its peak."""
        passes, is_pipeline = self._passes(), self.part.sizes.pipeline > 1
        if is_pipeline:
            self._wires(1 + max(each.number for each in passes))
        packs = self.layers.compute.is_native("linear") and (is_pipeline or self.num_micro_batches == 1)
        for _ in range(1 + packs):
            self.tape.free(*(name for name in self.tape.names() if name.endswith("/gradient")))
            for each in passes:
                self._write_pass(each)
            self.tape.free(*(name for name in self.tape.names() if name.endswith((_SENT, "/copy"))))
        self.update()

    def _passes(self) -> list[Pass]:
        """Return the passes of enough micro-batches to accumulate gradients and have the maximum in flight."""
        part, schedule = self.part, self.recipe.parallel.pipeline_schedule
        ranks, stages = part.sizes.pipeline, part.own_stages
        if ranks == 1:
            return passes_of("1f1b", stages, ranks, min(self.num_micro_batches, 2))
        rounds = rounds_of(self.num_micro_batches, ranks, schedule)
        if schedule == "gpipe":
            sizes = [1] * (len(rounds) > 1) + [max(rounds)]
        else:
            sizes = [min(max(rounds), (2 + (len(stages) > 1)) * ranks)]
        return [each for size in sizes for each in passes_of(schedule, stages, ranks, size)]

    def _write_pass(self, each: Pass) -> None:
        """Write a pass; set aside the tensors for the next pass of its micro-batch."""
        kind, stage, number = each
        tape, layers, key = self.tape, self.layers, (stage, number)
        if kind == "I" and stage == 0:  # PyTorch computes all gradients of the first stage in its W pass
            return
        if kind != "F":
            tape.take_back(key)
        is_measured = self.recipe.memory.recompute_budget is not None and (number == 0 or self.tokens.is_new)
        self._computed_again = self._again - set(self.part.blocks[: int(is_measured)])
        if kind == "F":
            self.forward(stage)
        elif kind == "I":
            self._postponed[key] = layers.postponed = []
            tape.keeps_activations = True
            self.backward(stage, number)
            tape.keeps_activations = False
            layers.postponed = None
        elif kind == "W" and stage:
            for gradient in reversed(self._postponed.pop(key)):
                layers.add_postponed(gradient)
        else:
            self.backward(stage, number)
        if kind in "FI":
            tape.set_aside(key, _of_micro_batch(tape))
        else:
            tape.free(*_of_micro_batch(tape))

    def forward(self, stage: int) -> None:
        """Compute the loss, or the hidden states for the next stage."""
        part, tape, x = self.part, self.tape, _input(stage)
        if stage == 0:
            self._look_up()
            embed(self.layers, self.part.description, self._own, part.table[0], x)
        else:
            self.layers.activation(x, 0)
        for layer in part.blocks_of_stage[stage]:
            self._gather(f"blocks.{layer}.")
            y, before = f"blocks.{layer}/result", set(tape.names())
            self._blocks[layer].forward(self.layers, x, y)
            if layer in self._computed_again:
                tape.free(*_forgettable(tape, before | {y}))
            x = y
        if self._ends_with_head(stage):
            self._gather("head.")
            self._head.forward(self.layers, self._all_tokens(x))
            tape.free(*[x] * (self.num_slices > 1))
        tape.free("gathered weights")

    def backward(self, stage: int, number: int) -> None:
        """Compute the gradients of the tensors of `forward`."""
        part, tape = self.part, self.tape
        results = [_input(stage), *(f"blocks.{layer}/result" for layer in part.blocks_of_stage[stage])]
        if self._ends_with_head(stage):
            self._gather("head.")
            self._head.backward(self.layers, _ALL_TOKENS if self.num_slices > 1 else results[-1])
            self._scatter("head.")
        else:
            self.layers.scratch("gradient", self._own.num * self.recipe.model.hidden_size)
            self._send(results[-1], stage, stage + 1, number)
            tape.free(results[-1])
        for layer, x in zip(reversed(part.blocks_of_stage[stage]), reversed(results[:-1]), strict=True):
            block = self._blocks[layer]
            self._gather(f"blocks.{layer}.")
            if layer in self._computed_again:
                block.forward(self.layers, x, "again")
                tape.free("again")
            block.backward(self.layers, x)
            self._scatter(f"blocks.{layer}.")
        if stage == 0:
            self._gather("embedding.")
            self._look_up()
            is_alone = all(size == 1 for size in part.sizes)
            embed_backward(self.layers, part.description, self._own, part.table[0], is_alone=is_alone)
            self._scatter("embedding.")
        else:
            self._send("gradient", stage, stage - 1, number)
        tape.free("gradient", _input(stage), "gathered weights", "gradients that are summed")

    def _send(self, name: str, stage: int, to: int, number: int) -> None:
        """Keep a tensor that is sent to another stage, if the schedule keeps it until the round ends."""
        if self.recipe.parallel.pipeline_schedule in KEEPS_SENT and (to < stage or to not in self.part.own_stages):
            self.tape.rename(name, f"{stage}.{number}.{to}{_SENT}")

    def _look_up(self) -> None:
        """Look up all tokens in the rank's part of the table, or gather their gradients, where it keeps a slice."""
        if self.num_slices > 1:
            self.tape.use(2 * FP32 * self.tokens.num * self.recipe.model.hidden_size)

    def _all_tokens(self, x: str) -> str:
        """Return the name of the head's input: all tokens of ``x``, of which a rank may have a slice."""
        if self.num_slices == 1:
            return x
        numbers = self.tokens.num * self.recipe.model.hidden_size
        self.layers.scratch("slices", numbers)
        self.layers.activation(_ALL_TOKENS, numbers)
        self.tape.free("slices")
        return _ALL_TOKENS

    def _ends_with_head(self, stage: int) -> bool:
        return stage == self.part.num_stages - 1

    def update(self) -> None:
        """Update weights and moments."""
        recipe, tape, precision = self.recipe, self.tape, self.recipe.precision
        sizes = {name: shard_size(shape, self.part.sizes.shard) for name, shape in self.part.shapes.items()}
        has_directions = FP32 * isinstance(recipe.optimizer, LambConfig)
        if precision.is_plain and not recipe.memory.offload_optimizer:
            tape.use(has_directions * sum(sizes.values()), "directions")
            return
        narrow = FP32 * sum(dtype != "fp32" for dtype in (precision.weights, precision.gradients))
        parts: Counter[str] = Counter()
        opened: Counter[str] = Counter()
        for name, size in sizes.items():
            words = name.split(".")
            owner = ".".join(words[:2]) if words[0] == "blocks" else words[0]
            parts[owner] += size
            states = recipe.states(name, self.part.shapes[name])
            opened[owner] += narrow * size + sum(
                FP32 * shard_size(shape, self.part.sizes.shard) for shape, itemsize in states if itemsize < FP32
            )
        largest = max(parts, key=parts.__getitem__)
        tape.hold("workspace", "opened", opened[largest])
        tape.use(has_directions * parts[largest], "directions")
        tape.use(_ROUNDING * max(size for name, size in sizes.items() if name.startswith(largest)), "rounding")
        tape.free("opened")

    @property
    def _head(self) -> Head:
        return Head.of(self.recipe, self.tokens, self.part.table[0])

    def _block(self, layer: int, *, mixes_again: bool = False) -> Block:
        sizes = self.part.sizes.tensor, self.num_slices
        return block_of(self.part.description.block_at(layer), layer, self.tokens, *sizes, mixes_again=mixes_again)

    def _recomputing(self) -> set[int]:
        """Return the blocks that recompute activations according to ``memory.recompute``."""
        memory, layers = self.recipe.memory, self.part.blocks
        if memory.recompute_layers:
            return set(layers) & set(memory.recompute_layers)
        if memory.recompute_budget is None or not layers:
            return set(layers)
        kept = self.kept_by_block(of_attention=memory.recompute == "attention")
        return set(layers[int(memory.recompute_budget * _MIB // kept) :])

    def kept_by_block(self, *, of_attention: bool = False) -> float:
        """Return the bytes that a block keeps for the backward pass, besides its input and result."""
        tape = Tape()
        layers = Layers(tape, self.layers.compute, blocks=_blocks_of(self.recipe), casts=self.layers.casts)
        layers.activation("x", 0)
        self._block(self.part.blocks[0]).forward(layers, "x", "y")
        names = _forgettable(tape, {"x", "y"})
        inner = [name for name in names if ".attention/" in name and not name.endswith(("/qkv", "/y"))]
        return sum(map(tape.size, inner if of_attention else names))

    def _wires(self, num_written: int) -> None:
        """Hold the buffers of a schedule, one for each micro-batch of a round and adjacent stage, and sent tensors.

        Args:
            num_written: number of micro-batches on the tape; the round's other ones have sent their tensors.
        """
        recipe, part = self.recipe, self.part
        ranks, schedule = part.sizes.pipeline, recipe.parallel.pipeline_schedule
        wire = self._own.num * recipe.model.hidden_size * self.layers.itemsize
        size = max(rounds_of(self.num_micro_batches, ranks, schedule))
        neighbors = [stage + way for stage in part.own_stages for way in (-1, 1)]
        num_wires = sum(0 <= stage < part.num_stages for stage in neighbors)  # also between two stages of a rank
        others = max(0, size - num_written) * (schedule in KEEPS_SENT)
        self.tape.hold("workspace", "wires", num_wires * (size + others) * wire)

    def _gather(self, *names: str) -> None:
        """Hold the unsharded weights of a part of the model, as received and as used, if weights are sharded."""
        if self.part.sizes.shard > 1:
            self.tape.free("gathered weights")
            stored, compute = DTYPE_BYTES[self.recipe.precision.weights], self.layers.compute
            share = 1.0 if names == ("embedding.",) else compute.gathered / stored
            self.tape.hold("workspace", "gathered weights", 2 * share * self._whole_bytes(names))

    def _scatter(self, *names: str) -> None:
        """Hold a copy of unsharded gradients of a part of the model while they are summed, until the next part's."""
        if self.part.sizes.shard > 1:
            self.tape.free("gradients that are summed")
            self.tape.hold("workspace", "gradients that are summed", self._whole_bytes(names))
            self.tape.free(*(name for name in self.tape.names() if name.endswith(SUMMED)))

    def _whole_bytes(self, names: tuple[str, ...]) -> int:
        """Return the bytes of the unsharded weights with these name prefixes; a head has a copy of the table."""
        numbers = sum(math.prod(shape) for name, shape in self.part.shapes.items() if name.startswith(names))
        numbers += math.prod(self.part.table) * ("head." in names)
        return DTYPE_BYTES[self.recipe.precision.weights] * numbers


def _input(stage: int) -> str:
    """Return the name of the input of a stage's first block; later stages find it in a buffer."""
    return f"stages.{stage}/input" if stage else "embedding/result"


def _of_micro_batch(tape: Tape) -> list[str]:
    """Return the live tensors of the last micro-batch."""
    return [name for name in tape.names() if not name.endswith(_STAY)]


def _blocks_of(recipe: Recipe) -> dict[str, int]:
    """Return the number of weights of each block-sparse layer, and of a sparse token table."""
    absent = recipe.sparsity.num_absent(recipe.model) if recipe.sparsity.is_sparse else {}
    linears = linears_of(recipe.model) or {}
    dense = {name: size.num_out * size.num_in for name, size in linears.items()}
    if TABLE in absent:
        model: Any = recipe.model
        dense[TABLE] = math.prod(dict(model.shapes())[TABLE])
    return {name: size - absent[name] for name, size in dense.items() if name in absent}


def _forgettable(tape: Tape, staying: set[str]) -> Sequence[str]:
    """Return the tensors that a recomputing block frees: all except its input, its result, and gradients."""
    return [name for name in tape.names() if name not in staying and not name.endswith(_STAY)]
