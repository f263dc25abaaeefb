"""The stages of a pipeline, and the rounds of a step's micro-batches, without torch.

::

    gpipe, 1f1b, zero-bubble     rank 0: embedding 0 1 2    rank 1: 3 4 head
    interleaved                  rank 0: embedding 0        rank 1: 1 2         rank 0: 3 4     rank 1: head
    v-shaped                     rank 0: embedding 0        rank 1: 1 2         rank 1: 3 4     rank 0: head
    rounds                       70 micro-batches on 2 ranks: 23, 23 and 24

A schedule has a receive buffer for each micro-batch, forward and backward. Rounds limit their number, at the cost of
filling and draining the pipeline once per round.
"""

from collections.abc import Sequence
from typing import Final, Literal

from hornbook.config.objectives import LabelledConfig, MaskingConfig
from hornbook.errors import UserError

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
