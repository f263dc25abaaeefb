"""The layout of a run's ranks.

::

    world of 8, data_parallel = "hybrid", shard_size = 2, tensor_parallel = 2

      replicate 2 x shard 2 x tensor 2        rank = (replica · 2 + shard) · 2 + tensor
      `--- data 4 ---'                        4 shares of the global batch
                 `---- holders 4 ---'         4 ranks hold one copy of the weights

    world of 4, pipeline_parallel = 2

      pipeline 2 x replicate 2                rank = stage · 2 + replica

Tensor-parallel ranks exchange activations in every layer, so they have adjacent numbers; replicas exchange gradients
once a step; stages of a pipeline communicate least, so they are furthest apart. The size of the data axis follows from
the number of ranks. The module does not import torch, so that plans can use it.

Layers of a pipeline's stages, and rounds of a step's micro-batches::

    gpipe, 1f1b, zero-bubble     rank 0: embedding 0 1 2    rank 1: 3 4 head
    interleaved                  rank 0: embedding 0        rank 1: 1 2         rank 0: 3 4     rank 1: head
    v-shaped                     rank 0: embedding 0        rank 1: 1 2         rank 1: 3 4     rank 0: head
    rounds                       70 micro-batches on 2 ranks: 23, 23 and 24

A schedule has a receive buffer for each micro-batch, forward and backward. Rounds limit their number, at the cost of
filling and draining the pipeline once per round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from hornbook.config.description import description_of
from hornbook.config.models import TransformerConfig
from hornbook.config.objectives import LabelledConfig, MaskingConfig
from hornbook.config.options import Problem, option
from hornbook.errors import UserError
from hornbook.wording import counted

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped"]

SPLITS_NO_BACKWARD: Final = ("gpipe", "1f1b", "interleaved")
"""Schedules that compute the gradients of weights and of inputs together."""
KEEPS_SENT: Final = ("interleaved", "zero-bubble", "v-shaped")
"""Schedules in which PyTorch keeps what a rank has sent until the round ends: it waits for all sends there."""
_ROUND_SIZE: Final = 16
"""Maximum micro-batches of a round per rank of the pipeline."""
_IN_GROUPS: Final = ("interleaved", "zero-bubble")
"""Schedules that process micro-batches in groups of the number of ranks."""


def rank_of(stage: int, num_ranks: int, schedule: PipelineSchedule) -> int:
    """Return the pipeline rank of a stage: stages are assigned in turn or, with v-shaped, forth and back."""
    turn, place = divmod(stage, num_ranks)
    return num_ranks - 1 - place if schedule == "v-shaped" and turn % 2 else place


def split_layers(num_layers: int, num_stages: int, head_cost: float) -> tuple[int, ...]:
    """Return the number of layers of each stage that minimizes the time of the slowest; the head is in the last.

    Only the first and the last stage may have no layers.

    Args:
        num_layers: at least ``num_stages - 2``.
        num_stages: at least 2.
        head_cost: computation of the head, in layers.
    """
    others = num_stages - 1

    def slowest(last: int) -> float:
        return max(-((last - num_layers) // others), last + head_cost)

    last = min(range(num_layers - others + 2), key=slowest)
    each, more = divmod(num_layers - last, others)
    return (*(each + (stage >= others - more) for stage in range(others)), last)


def head_cost(model: object, objective: object) -> float:
    """Return the computation of a model's head relative to a layer, by the weights that multiply a token.

    Args:
        model: of the recipe; 0 is returned for custom models that do not count their parameters.
        objective: of the recipe; determines the share of tokens for which the head computes logits.
    """
    share = {MaskingConfig: getattr(objective, "mask_probability", 1.0), LabelledConfig: 0.0}
    scored = next((part for kind, part in share.items() if isinstance(objective, kind)), 1.0)
    count = getattr(model, "num_parameters", None)
    width = getattr(model, "embedding_size", getattr(model, "hidden_size", 0))
    table = (getattr(model, "vocab_size", None) or 0) * width
    return scored * table * getattr(model, "num_layers", 1) / count() if count else 0.0


def rounds_of(num_micro_batches: int, num_ranks: int, schedule: PipelineSchedule) -> Sequence[int]:
    """Return the number of micro-batches of each round of a step; they differ by at most one, or one group.

    Args:
        num_micro_batches: of each pipeline and step.
        num_ranks: of the pipeline.
        schedule: the order of forward and backward passes.

    Raises:
        UserError: there are fewer micro-batches than ranks, or the schedule needs a multiple of the number of ranks.
    """
    in_groups = schedule in _IN_GROUPS
    if num_micro_batches < num_ranks or (in_groups and num_micro_batches % num_ranks):
        needed = f"a multiple of {num_ranks}" if in_groups else f"at least {num_ranks}"
        raise UserError(
            f'parallel.pipeline_schedule = "{schedule}" needs {needed} micro-batches a step on {num_ranks} ranks, but '
            f"the run has {num_micro_batches:,}: change training.micro_batch_size or training.global_batch_size"
        )
    unit = num_ranks if in_groups else 1
    num_units = num_micro_batches // unit
    num_rounds = -(-num_micro_batches // (_ROUND_SIZE * num_ranks))
    each, more = divmod(num_units, num_rounds)
    return [unit * (each + (number >= num_rounds - more)) for number in range(num_rounds)]


class Sizes(NamedTuple):
    """Number of ranks along each axis; their product is the size of the world."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """The distribution of a run over its ranks, which does not affect the numbers of the run."""

    data_parallel: Literal["replicate", "shard", "hybrid"] = option(
        "replicate",
        help=(
            "distribution of weights, gradients and optimizer state over data-parallel ranks; "
            "replicate: a full copy on each; shard: sharded over all; hybrid: sharded within groups of "
            "shard_size ranks"
        ),
    )
    shard_size: int | None = option(None, help="ranks per group over which hybrid shards the state", minimum=2)
    sum_gradients: Literal["micro_batch", "step"] = option(
        "micro_batch",
        help=(
            "when sharded ranks sum gradients: after each micro-batch, or once per step, which "
            "communicates less but needs 4 more bytes per parameter"
        ),
    )
    tensor_parallel: int = option(
        1, help="ranks that split each layer: vocabulary, attention heads, feed-forward", minimum=1
    )
    sequence_parallel: bool = option(
        False,
        help="split the tokens over the tensor-parallel ranks in norms, residual connections and dropouts",
    )
    async_tensor_parallel: bool = option(
        False,
        help="overlap the exchanges of sequence parallelism with products of linear layers, in compiled blocks on GPUs",
    )
    pipeline_parallel: int = option(1, help="number of pipeline ranks, each with some of the layers", minimum=1)
    layers_per_stage: tuple[int, ...] = option(
        (), help="number of layers of each pipeline stage; []: balanced by computation, including the head", minimum=0
    )
    pipeline_schedule: PipelineSchedule = option(
        "1f1b",
        help=(
            "order of forward and backward passes; gpipe: all forward passes first; 1f1b: alternating; "
            "interleaved: 1f1b with several stages per rank; zero-bubble: weight gradients computed "
            "last; v-shaped: zero-bubble with two stages per rank, embedding and head on the first rank"
        ),
    )

    @property
    def num_stages(self) -> int:
        """Number of stages of the pipeline: one or two per rank, or more if an interleaved schedule lists them."""
        has_two = self.pipeline_schedule in ("interleaved", "v-shaped")
        return len(self.layers_per_stage) or self.pipeline_parallel * (1 + has_two)

    def problems(self) -> list[Problem]:
        problems = []
        if (self.data_parallel == "hybrid") != (self.shard_size is not None):
            message = 'shard_size and data_parallel = "hybrid" go together; set both, or remove shard_size'
            problems.append(Problem(("shard_size", "data_parallel"), message))
        if self.sum_gradients == "step" and (self.data_parallel == "replicate" or self.pipeline_parallel > 1):
            message = 'sum_gradients = "step" applies only to shard and hybrid without a pipeline; remove it'
            problems.append(Problem(("sum_gradients", "data_parallel"), message))
        if self.sequence_parallel and self.tensor_parallel == 1:
            message = "sequence_parallel applies only to tensor parallelism; set tensor_parallel, or remove it"
            problems.append(Problem(("sequence_parallel", "tensor_parallel"), message))
        if self.async_tensor_parallel and not self.sequence_parallel:
            message = "async_tensor_parallel applies only to sequence parallelism; set sequence_parallel, or remove it"
            problems.append(Problem(("async_tensor_parallel", "sequence_parallel"), message))
        if self.pipeline_parallel > 1:
            problems += self._pipeline_problems()
        elif self.layers_per_stage:
            message = "layers_per_stage applies only to a pipeline; set pipeline_parallel, or remove it"
            problems.append(Problem(("layers_per_stage", "pipeline_parallel"), message))
        return problems

    def _pipeline_problems(self) -> Iterator[Problem]:
        ranks, listed = self.pipeline_parallel, len(self.layers_per_stage)
        fits, wanted = listed == ranks, f"{ranks}"
        if self.pipeline_schedule == "interleaved":
            fits = listed % ranks == 0 and listed > ranks
            wanted = f"2 x {ranks} = {2 * ranks} or another multiple of {ranks}"
        elif self.pipeline_schedule == "v-shaped":
            fits, wanted = listed == 2 * ranks, f"2 x {ranks} = {2 * ranks}"
        if listed and not fits:
            message = f"layers_per_stage has {listed} values, expected {wanted}, one per stage"
            yield Problem(("layers_per_stage", "pipeline_parallel"), message)
        elif 0 in self.layers_per_stage[1:-1]:
            yield Problem(("layers_per_stage",), "only the first and the last stage may have no layers; give each one")

    def sizes(self, num_ranks: int) -> Sizes:
        """Return the ranks along each axis of a world of ``num_ranks``.

        Raises:
            UserError: the number of ranks is not a multiple of the other sizes.
        """
        unit = self.pipeline_parallel * self.tensor_parallel * (self.shard_size or 1)
        if num_ranks % unit:
            factors = ("pipeline_parallel", "tensor_parallel", "shard_size")
            parts = [f"{name} {size}" for name in factors if (size := getattr(self, name) or 1) > 1]
            raise UserError(
                f"[parallel] needs a multiple of {counted(unit, 'rank')} ({' x '.join(parts)}), but the run "
                f"has {num_ranks:,}: start {unit} with `torchrun --nproc-per-node {unit} -m hornbook train "
                "...`, or change the sizes"
            )
        data = num_ranks // (self.pipeline_parallel * self.tensor_parallel)
        shard = {"replicate": 1, "shard": data, "hybrid": self.shard_size or 1}[self.data_parallel]
        replicas = data // shard
        return Sizes(pipeline=self.pipeline_parallel, replicate=replicas, shard=shard, tensor=self.tensor_parallel)

    def stages(self, model: TransformerConfig, objective: object) -> list[range]:
        """Return the layers of each stage of a pipeline; the embedding is before the first, the head after the last."""
        listed = self.layers_per_stage
        counts = listed or split_layers(model.num_layers, self.num_stages, head_cost(model, objective))
        return [range(sum(counts[:stage]), sum(counts[: stage + 1])) for stage in range(len(counts))]

    def conflicts(self, model: TransformerConfig) -> Iterator[Problem]:
        """Yield conflicts with ``model``: sizes that the stages or tensor parallelism do not divide."""
        num_layers = getattr(model, "num_layers", None)
        if num_layers is None:  # custom models may not have num_layers
            if self.pipeline_parallel > 1 or self.layers_per_stage:
                message = "a pipeline needs a model with num_layers; set pipeline_parallel to 1"
                yield Problem(("parallel.pipeline_parallel", "model.family"), message)
        elif self.layers_per_stage and sum(self.layers_per_stage) != num_layers:
            message = f"layers_per_stage adds up to {sum(self.layers_per_stage)}, and the model has {num_layers} layers"
            yield Problem(("parallel.layers_per_stage", "model.num_layers"), f"{message}; change one of them")
        elif self.pipeline_parallel > 1 and num_layers < self.num_stages - 2:
            message = f"a pipeline of {self.num_stages} stages needs at least {self.num_stages - 2} layers; add some"
            yield Problem(("parallel.pipeline_parallel", "model.num_layers"), message)
        described = description_of(model)
        if self.pipeline_parallel > 1 and described is not None and described.reads_embedding:
            message = "residual_scales reads the embedding's result in every layer, which a pipeline does not pass on"
            yield Problem(("parallel.pipeline_parallel", "model.residual_scales"), f"{message}; remove one of them")
        if self.tensor_parallel > 1 and (described is None or not described.splits):  # such as a custom model
            message = "this model does not support tensor parallelism; set tensor_parallel to 1"
            yield Problem(("parallel.tensor_parallel", "model.family"), message)
        elif self.tensor_parallel > 1 and described is not None:
            for key, size in described.divided().items():
                if size % self.tensor_parallel:
                    message = f"tensor_parallel must divide {key}, which is {size:,}; change one of them"
                    yield Problem(("parallel.tensor_parallel", f"model.{key}"), message)
