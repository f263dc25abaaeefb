"""Eight ranks on GPUs without values: every layout's step mixes no devices, exchanges what it should, and waits twice.

Of a GPT with two layers, of eight with eight stages, in two micro-batches a rank, 16 with one replica. Four groups of
parameters are sharded: embedding, two layers, head.
"""

import pytest
from cases import mostly_slow
from ranks import PARALLEL, steps_without_gpu

GROUPS = 4
EXCHANGES = {
    "pipeline 2 x shard 2 x tensor 2": {"send": 8 + 1, "recv_": 8},
    "replicas 8": {"allreduce_": 1, "allreduce_coalesced_": 1},
    "shard 8": {"_allgather_base_": 2 * 2 * GROUPS, "_reduce_scatter_base_": 2 * GROUPS},
    "hybrid 2 x 4": {"_allgather_base_": 2 * 2 * GROUPS, "_reduce_scatter_base_": 2 * GROUPS},
    "tensor 8": {"_allgather_base_": 16},
    "sequence 8": {"allreduce_coalesced_": 1},
    "pipeline 8": {"send": 16 + 1, "recv_": 16},
}
"""By layout, collectives that follow from it."""


@pytest.mark.parametrize("layout", mostly_slow([*EXCHANGES]))
def test_a_step_of_eight_ranks(layout):
    found = steps_without_gpu(PARALLEL / "fake_eight.py", layout)[layout]
    exchanges = found["collectives"]
    assert {name: exchanges.get(name) for name in EXCHANGES[layout]} == EXCHANGES[layout]
    assert found["waits"] == 2  # for the sums of the losses, and the norm of the gradients
    is_split = "tensor" in layout or "sequence" in layout
    assert ("send" in exchanges) == ("pipeline" in layout)
    assert ("_reduce_scatter_base_" in exchanges) == ("shard" in layout or layout in ("hybrid 2 x 4", "sequence 8"))
    assert (exchanges["allreduce_"] > 6) == is_split  # attention and feed-forward of each micro-batch, both ways
