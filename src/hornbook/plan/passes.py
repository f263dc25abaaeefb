"""The order of a pipeline rank's forward and backward passes, as in PyTorch's schedules.

::

    1f1b, first of 2 ranks      F0 F1 B0 F2 B1 F3 B2 B3
    zero-bubble, the second     F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3       I: gradients of inputs, W: of weights

Each pass has a stage, omitted in the example, and a micro-batch. ``tests/plan/test_passes.py`` compares the orders with
``torch.distributed.pipelining``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hornbook.config.parallel import SPLITS_NO_BACKWARD, PipelineSchedule

Kind = Literal["F", "B", "I", "W"]


class Pass(NamedTuple):
    """A forward pass (F), a backward pass (B), or its halves: the gradients of inputs (I) and those of weights (W)."""

    kind: Kind
    stage: int
    number: int
    """Number of the micro-batch in its round."""


def passes_of(schedule: PipelineSchedule, stages: Sequence[int], num_ranks: int, num_micro_batches: int) -> list[Pass]:
    """Return the passes of a rank in one round.

    Args:
        schedule: of the pipeline.
        stages: of the rank, ascending.
        num_ranks: of the pipeline.
        num_micro_batches: of the round; a multiple of ``num_ranks`` for schedules that process groups.
    """
    order = _there_and_back if schedule == "v-shaped" else _in_turn
    seen: Counter[tuple[Kind, int]] = Counter()
    passes = []
    for kind, stage in order(schedule, stages, num_ranks, num_micro_batches):
        passes.append(Pass(kind, stage, seen[kind, stage]))
        seen[kind, stage] += 1
    return [each for each in passes if each.number < num_micro_batches]


def _in_turn(
    schedule: PipelineSchedule, stages: Sequence[int], num_ranks: int, num_micro_batches: int
) -> list[tuple[Kind, int]]:
    """Return kinds and stages: only forward passes at first, then alternating forward and backward passes."""
    place, total = stages[0], num_micro_batches * len(stages)
    splits = schedule not in SPLITS_NO_BACKWARD
    later = num_ranks - 1 - place  # ranks after this one
    ahead = (len(stages) - 1) * num_ranks + (2 * later if schedule == "interleaved" else later)
    num_alone = total if schedule == "gpipe" else min(total, ahead)
    turns = [number // num_ranks % len(stages) for number in range(total)]
    forward = [stages[turn] for turn in turns]
    backward = [stages[len(stages) - 1 - turn] for turn in turns]
    found: list[tuple[Kind, int]] = [("F", stage) for stage in forward[:num_alone]]
    for number, stage in enumerate(backward):
        if num_alone + number < total:
            found.append(("F", forward[num_alone + number]))
        found.append(("I" if splits else "B", stage))
        if splits and number >= place:
            found.append(("W", backward[number - place]))
    return found + [("W", stage) for stage in backward[-place:] if splits and place]


def _there_and_back(
    schedule: PipelineSchedule, stages: Sequence[int], num_ranks: int, num_micro_batches: int
) -> list[tuple[Kind, int]]:
    """Return kinds and stages of a rank of the v-shaped schedule, with one stage on the way forth and one back."""
    place = stages[0]
    behind = num_ranks - place
    num = max(2 * num_ranks - 1, num_micro_batches)
    there: dict[Kind, tuple[Kind, int]] = {kind: (kind, stages[0]) for kind in ("F", "I", "W")}
    back: dict[Kind, tuple[Kind, int]] = {kind: (kind, stages[1]) for kind in ("F", "I", "W")}
    halves = [back["F"], back["I"], back["W"]]
    return [
        *[there["F"]] * (2 * behind - 1),
        *[back["F"], there["F"]] * place,
        *halves * behind,
        *[there["F"], there["I"], there["W"], *halves] * (num - num_ranks),
        *[there["I"], back["I"]] * place,
        *[there["I"], there["W"]] * behind,
        *[back["W"]] * place,
        *[there["W"]] * place,
    ]
