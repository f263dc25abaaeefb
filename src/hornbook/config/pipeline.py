"""Pipelines, without torch: which stage computes which layers, and how a step's micro-batches go through in rounds.

::

    gpipe, 1f1b, zero-bubble     rank 0: embedding 0 1 2    rank 1: 3 4 head
    interleaved                  rank 0: embedding 0        rank 1: 1 2         rank 0: 3 4     rank 1: head
    v-shaped                     rank 0: embedding 0        rank 1: 1 2         rank 1: 3 4     rank 0: head
    rounds                       70 micro-batches on 2 ranks: 23, 23 and 24, each of a round with buffers of its own

A schedule keeps one receive buffer a micro-batch, forward and backward. Rounds bound them, at the price of filling and
draining the pipeline once a round.
"""

from collections.abc import Sequence
from typing import Final, Literal

from hornbook.config.models import LabelledConfig, MaskingConfig
from hornbook.errors import UserError

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped"]

SPLITS_NO_BACKWARD: Final = ("gpipe", "1f1b", "interleaved")
"""Schedules that compute the gradients of weights and of inputs together."""
KEEPS_SENT: Final = ("interleaved", "zero-bubble", "v-shaped")
"""Schedules in which PyTorch keeps what a rank has sent until the round ends: it waits for all sends there."""
_ROUND_SIZE: Final = 16
"""Most micro-batches of a round, for each rank of the pipeline."""
_IN_GROUPS: Final = ("interleaved", "zero-bubble")
"""Schedules that take one micro-batch for each rank of the pipeline at a time."""


def rank_of(stage: int, num_ranks: int, schedule: PipelineSchedule) -> int:
    """Return the rank of a pipeline that computes a stage: in turn, or there and back where that is the schedule."""
    turn, place = divmod(stage, num_ranks)
    return num_ranks - 1 - place if schedule == "v-shaped" and turn % 2 else place


def split_layers(num_layers: int, num_stages: int, head_cost: float) -> tuple[int, ...]:
    """Return the number of layers of each stage for which the slowest stage is quickest; the head is on the last.

    Only the first and the last stage may have none.

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
    """Return the computation of the head of a model, in layers, by the weights that a token is multiplied with.

    Args:
        model: of the recipe; a section of one's own may not count its parameters, and its head costs nothing then.
        objective: of the recipe; it says for how many tokens the head computes logits.
    """
    share = {MaskingConfig: getattr(objective, "mask_probability", 1.0), LabelledConfig: 0.0}
    scored = next((part for kind, part in share.items() if isinstance(objective, kind)), 1.0)
    count = getattr(model, "num_parameters", None)
    width = getattr(model, "embedding_size", getattr(model, "hidden_size", 0))
    table = (getattr(model, "vocab_size", None) or 0) * width
    return scored * table * getattr(model, "num_layers", 1) / count() if count else 0.0


def rounds_of(num_micro_batches: int, num_ranks: int, schedule: PipelineSchedule) -> Sequence[int]:
    """Return how many micro-batches each round of a step has; they differ by one, or by one group, at most.

    Args:
        num_micro_batches: of each pipeline and step.
        num_ranks: of the pipeline.
        schedule: the order of forward and backward.

    Raises:
        UserError: there are fewer micro-batches than ranks, or not whole groups of them where the schedule needs that.
    """
    in_groups = schedule in _IN_GROUPS
    if num_micro_batches < num_ranks or (in_groups and num_micro_batches % num_ranks):
        needed = f"a multiple of {num_ranks}" if in_groups else f"at least {num_ranks}"
        raise UserError(
            f'parallel.pipeline_schedule = "{schedule}" needs {needed} micro-batches a step on {num_ranks} ranks, and '
            f"the run has {num_micro_batches:,}: change training.micro_batch_size or training.global_batch_size"
        )
    unit = num_ranks if in_groups else 1
    num_units = num_micro_batches // unit
    num_rounds = -(-num_micro_batches // (_ROUND_SIZE * num_ranks))
    each, more = divmod(num_units, num_rounds)
    return [unit * (each + (number >= num_rounds - more)) for number in range(num_rounds)]
