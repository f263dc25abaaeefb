"""The order of passes that a plan assumes, beside that of PyTorch's schedules."""

import pytest
from torch.distributed import pipelining

from hornbook.config.parallel import rank_of
from hornbook.plan.passes import passes_of

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    "v-shaped": pipelining.ScheduleZBVZeroBubble,
}


def order_of(schedule, rank, num_ranks, num_stages, num_micro_batches):
    """Return the passes that PyTorch's schedule has for a rank, without its processes."""
    made = object.__new__(SCHEDULES[schedule])
    made._n_microbatches, made._num_stages, made.num_stages = num_micro_batches, num_stages, num_stages
    made.pp_group_size, made.n_local_stages = num_ranks, num_stages // num_ranks
    made.microbatches_per_round = num_micro_batches // max(1, num_micro_batches // num_ranks)
    if schedule in ("gpipe", "1f1b"):
        actions = made._get_pipeline_order()[rank]
    else:
        actions = made._calculate_single_rank_operations(rank)
    computed = [action for action in actions if action is not None and action.is_compute_op]
    return [(kind.value, stage, number) for stage, kind, number, *_ in computed]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_order_is_pytorchs(schedule, num_ranks):
    for turns in (1, 2, 3) if schedule == "interleaved" else (2,) if schedule == "v-shaped" else (1,):
        for num_micro_batches in (num_ranks, 2 * num_ranks, 5 * num_ranks):
            places = [rank_of(stage, num_ranks, schedule) for stage in range(turns * num_ranks)]
            for rank in range(num_ranks):
                own = [stage for stage, place in enumerate(places) if place == rank]
                found = passes_of(schedule, own, num_ranks, num_micro_batches)
                expected = order_of(schedule, rank, num_ranks, len(places), num_micro_batches)
                if schedule == "1f1b" and rank == num_ranks - 1:  # PyTorch's table, not its step, begins with number 1
                    expected = [(kind, stage, number - (kind == "F")) for kind, stage, number in expected]
                assert found == expected
