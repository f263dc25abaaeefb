"""What is observed of communication: waits of the host, and spans of a GPU in which nothing else runs."""

import time

import pytest
import torch
import torch.distributed as dist

from hornbook.measure.scaling import Traffic, exposed, waiting_share


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0.0),
        ([("gemm", 0.0, 5.0)], 0.0),
        ([("ncclDevKernel_AllReduce", 1.0, 4.0)], 3.0),
        ([("gemm", 0.0, 2.0), ("ncclDevKernel_AllReduce", 1.0, 4.0)], 2.0),
        ([("ncclDevKernel_AllReduce", 1.0, 4.0), ("gemm", 2.0, 3.0)], 2.0),
        ([("ncclDevKernel_A", 1.0, 4.0), ("ncclDevKernel_B", 3.0, 6.0), ("gemm", 2.0, 5.0), ("add", 4.0, 5.5)], 1.5),
    ],
)
def test_communication_is_exposed_where_nothing_else_runs(spans, expected):
    assert exposed(spans) == expected


@pytest.fixture
def group():
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_waits_are_observed_and_end_with_the_step(group):
    before = dist.Work.wait

    def step() -> None:
        assert dist.Work.wait is not before
        time.sleep(0.01)
        dist.all_reduce(torch.ones(3))

    assert 0.0 < waiting_share(step, torch.device("cpu")) < 0.9
    assert dist.Work.wait is before


def test_a_message_counts_for_what_a_ring_sends(group):
    """One rank sends nothing to itself; a message to a rank counts whole, and its reception not at all."""
    with Traffic() as traffic:
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(5), 0)
        dist.barrier()
    assert traffic.sent == {"all_reduce": 0.0, "broadcast": 20.0}
