"""Predict the peak memory of a training on one rank: weights, gradients, moments, activations, workspace.

::

    memory_of(recipe, num_ranks=8, rank=0, compute=Compute(device="cuda", dtype="bf16"))
        -> Memory(weights=..., gradients=..., moments=..., activations={"embedding": ..., "blocks.0": ...}, ...)

A step of two micro-batches is written on a tape (`hornbook.plan.tape`): the second one accumulates gradients, and later
ones repeat it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hornbook.config.models import EncoderConfig
from hornbook.config.objectives import LabelledConfig, MaskingConfig
from hornbook.config.rank_part import RankPart
from hornbook.config.recipe import Recipe
from hornbook.config.sections import DTYPE_BYTES
from hornbook.config.sparsity import linears_of
from hornbook.plan.attention import Group, Tokens
from hornbook.plan.layers import Compute
from hornbook.plan.phased import PhasedStep, Transfer, transfer_of
from hornbook.plan.step import Step
from hornbook.plan.tape import Tape

_BYTES_OF_ID = 8
_IDS = 4
_IDS_OF_ENCODER = 5
"""Number of id tensors with an entry per token: tokens, positions, keys, targets; for encoders, segments."""
_CUBLAS_WORKSPACE = 2 * (32 << 20)
"""Workspaces of the forward and the backward thread, as PyTorch allocates them for compute capability 9."""
_STEPS_AHEAD = 3
"""Batches of token ids in host memory: that of the step, and two prepared in advance."""
_BYTES_OF_POSITION = 3 * 4
"""Bytes of the row, column and age of a block, int32."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the device of one rank at the peak of a step, and in its host memory."""

    weights: float
    gradients: float
    moments: float
    activations: Mapping[str, float]
    """Activations by layer: ``embedding``, ``blocks.0``, ..., ``head``."""
    workspace: float
    host: float
    """Host memory: token ids prepared in advance, and offloaded tensors."""
    offloaded: float
    """Bytes that a step moves between device and host."""
    transfer: Transfer | None = None
    """Transfers of phased execution."""

    @property
    def peak(self) -> float:
        """Total on the device."""
        return self.weights + self.gradients + self.moments + sum(self.activations.values()) + self.workspace


def full_tokens(recipe: Recipe) -> Tokens:
    """Return the tokens of a micro-batch of maximum length; an encoder's sequences are usually shorter."""
    sequences, length = recipe.training.micro_batch_size, recipe.sequence_length
    num, objective = sequences * length, recipe.objective
    scored = num
    if isinstance(objective, MaskingConfig):
        scored = sequences * objective.most_masked(length)
    elif isinstance(objective, LabelledConfig):
        scored = 0
    groups = (Group(sequences, length),)
    is_masked = recipe.data.document_mask
    is_new = isinstance(recipe.model, EncoderConfig) and recipe.data.layout != "padded"
    return Tokens(num=num, num_real=num, groups=groups, num_scored=scored, is_masked=is_masked, is_new=is_new)


def memory_of(
    recipe: Recipe, num_ranks: int = 1, rank: int = 0, *, compute: Compute, tokens: Tokens | None = None
) -> Memory:
    """Return the memory of a rank.

    Args:
        recipe: complete, with a vocabulary and one of hornbook's models.
        num_ranks: of the run.
        rank: from 0.
        compute: device, dtypes and operators.
        tokens: of a micro-batch; None: full sequences.
    """
    tokens = tokens or full_tokens(recipe)
    part = RankPart.of(recipe, num_ranks, rank)
    sizes, precision = part.sizes, recipe.precision
    tape = Tape()
    ranks = sizes.replicate * sizes.shard
    num_micro_batches = max(1, recipe.training.global_batch_size // (ranks * recipe.training.micro_batch_size))
    is_phased = recipe.memory.execution == "phased"
    step = (PhasedStep if is_phased else Step)(recipe, compute, tokens, part, num_micro_batches, tape)
    step.write()
    absent = recipe.sparsity.num_absent(recipe.model) if recipe.sparsity.is_sparse else {}
    numbers = part.num_held(absent)
    weights = numbers * DTYPE_BYTES[precision.weights] + part.num_copied * DTYPE_BYTES[precision.weights]
    weights += _BYTES_OF_POSITION * _num_blocks(recipe, part)
    moments = part.bytes_of_states(absent)
    is_offloaded = recipe.memory.offload_optimizer
    transfer = transfer_of(recipe, part, tokens.num * num_micro_batches, compute.itemsize) if is_phased else None
    by_kind, by_layer = _split(tape)
    num_ids = (_IDS if part.description.is_causal else _IDS_OF_ENCODER) * tokens.num * num_micro_batches
    host = float(_STEPS_AHEAD * _BYTES_OF_ID * num_ids)
    if transfer is not None and compute.device == "cuda" and recipe.memory.scratch is None:
        host += transfer.size
    return Memory(
        weights=by_kind["weights"] if is_phased else weights,
        gradients=by_kind["gradients"],
        moments=by_kind["moments"] if is_phased else 0.0 if is_offloaded else moments,
        activations=by_layer,
        workspace=by_kind["workspace"] + (_CUBLAS_WORKSPACE if compute.device == "cuda" else 0),
        host=host + is_offloaded * moments + step.offloaded,
        offloaded=2 * (is_offloaded * moments + step.offloaded * num_micro_batches),
        transfer=transfer,
    )


def _num_blocks(recipe: Recipe, part: RankPart) -> int:
    """Return the number of blocks of a rank's block-sparse layers."""
    linears = linears_of(recipe.model) or {}
    grids = recipe.sparsity.grids(linears) if recipe.sparsity.linears else {}
    held = (name for name in grids if f"{name}.weight" in part.shapes)
    return sum(grids[name].num_kept * linears[name].num_parts for name in held)


def _split(tape: Tape) -> tuple[Counter[str], dict[str, float]]:
    """Return the bytes at the peak by kind, and those of activations by layer."""
    kinds: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    for (kind, name), size in tape.at_peak().items():
        kinds[kind] += size
        if kind == "activations":
            words = name.replace("/", ".").split(".")
            layers[".".join(words[:2]) if words[0] == "blocks" else words[0]] += size
    return kinds, dict(layers)
