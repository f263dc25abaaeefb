"""What several ranks launch on GPUs beside one process, without values: sums, and no copies for them."""

from collections import Counter

import pytest
from cases import mostly_slow
from ranks import PARALLEL, steps_without_gpu

COPIES = ("clone", "copy_", "_to_copy", "cat")


@pytest.fixture(scope="module", params=mostly_slow([(("replicas", "tensor"),), (("replicas, muon", "sequence"),)]))
def steps(request):
    """By layout, the operators of steps of models with one layer and with two; those of one process, too."""
    found = steps_without_gpu(PARALLEL / "fake_layouts.py", "one process", *request.param)
    return {layout: [Counter(step["kernels"]) for step in both] for layout, both in found.items()}


def test_replicas_launch_sums_only(steps):
    """Of the losses, and of all gradients, where they are; products add to gradients of earlier micro-batches."""
    if "replicas" not in steps:
        pytest.skip("not among these layouts")
    for one, replica in zip(steps["one process"], steps["replicas"], strict=True):
        assert replica - one == {"allreduce_": 1, "allreduce_coalesced_": 1}
        assert one - replica == {}


def test_a_split_layer_casts_and_copies_nothing(steps):
    """One layer more, in two micro-batches; with sequence parallelism, attention's tokens are put in order."""
    for layout in {"tensor", "sequence"} & steps.keys():
        one, two = steps[layout]
        layer, alone = two - one, steps["one process"][1] - steps["one process"][0]
        found = {name: layer[name] - alone[name] for name in COPIES if layer[name] != alone[name]}
        assert found == ({} if layout == "tensor" else {"cat": 2 * 5}), layout
        assert layer["triton_activated_gradient"] == alone["triton_activated_gradient"] == 2 * 2


def test_a_split_head_gathers_once_and_reads_its_logits_twice(steps):
    """Of a micro-batch: see `hornbook.ops.triton.cross_entropy`; nothing of a head is PyTorch's but its products."""
    for layout in {"tensor", "sequence"} & steps.keys():
        for step, alone in zip(steps[layout], steps["one process"], strict=True):
            assert step["triton_summary"] == step["triton_cross_entropy"] == alone["triton_cross_entropy"] == 2
            assert not {"exp", "exp_", "amax", "gather", "scatter_add_", "index_put_"} & step.keys()
            assert step["_allgather_base_"] == 2 or layout == "sequence"


def test_replicas_exchange_matrices_by_one_copy_each_way(steps):
    """Muon's, of which each orthogonalizes some for both."""
    if "replicas, muon" not in steps:
        pytest.skip("not among these layouts")
    for step in steps["replicas, muon"]:
        assert step["alltoall_base_"] == 1
        assert step["_foreach_copy_"] == 1
