"""Two and four processes train as one does."""

import json
import math

import pytest
import torch
import torch.distributed as dist
import train_ranks
from ranks import PARALLEL, TORCHRUN, fork_ranks, python
from safetensors.torch import load_file
from tiny import distance
from tiny_encoder_runs import assert_same_rows, build_sentences

from hornbook.errors import HornbookError
from hornbook.parallel.world import World, _connecting
from hornbook.track.metrics import read


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_sentences(tmp_path_factory.mktemp("sentences") / "corpus")


@pytest.fixture(scope="module")
def alone():
    """Weights and numbers of one process."""
    return train_ranks.train(World())


@pytest.fixture(scope="module")
def encoders_alone(corpus, tmp_path_factory):
    """What one process wrote."""
    folder = tmp_path_factory.mktemp("alone")
    train_ranks.make_runs(World(), corpus, folder)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks_folder(request, corpus, tmp_path_factory):
    """What 2 and 4 processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    fork_ranks(request.param, train_ranks.main, folder, corpus)
    return folder


@pytest.fixture
def ranks(ranks_folder):
    """Weights and numbers of each process."""
    files = sorted(ranks_folder.glob("*.json"))
    return [(load_file(file.with_suffix(".safetensors")), json.loads(file.read_text())) for file in files]


def test_losses_and_weights_equal_those_of_one_process(alone, ranks):
    """Though ranks score different numbers of tokens, and dropout is on."""
    weights, numbers = alone
    for rank_weights, rank_numbers in ranks:
        assert rank_numbers["size"] == len(ranks)
        assert rank_numbers["progress"] == numbers["progress"]
        assert distance(weights, rank_weights) < 1e-6
        for (loss, norm, *rest), (rank_loss, rank_norm, *rank_rest) in zip(
            numbers["steps"], rank_numbers["steps"], strict=True
        ):
            assert rank_loss == pytest.approx(loss, rel=1e-6, nan_ok=True)
            assert rank_norm == pytest.approx(norm, rel=1e-5, nan_ok=True)
            assert rank_rest == rest


def test_all_ranks_hold_the_same_bits(ranks):
    (first, _), *others = ranks
    for other, _ in others:
        for name, tensor in first.items():
            assert torch.equal(tensor, other[name]), name


def test_what_is_not_finite_on_one_rank_is_skipped_on_all(alone, ranks):
    for _, numbers in [alone, *ranks]:
        assert [skipped for *_, skipped in numbers["steps"]] == [step == train_ranks.BAD_STEP for step in range(6)]
        assert math.isnan(numbers["steps"][train_ranks.BAD_STEP][0])
        progress = numbers["progress"]
        assert (progress["num_updates"], progress["skipped_steps"], progress["samples"]) == (5, 1, 48)


def test_encoders_learn_the_same_on_ranks(ranks_folder, encoders_alone):
    """Losses, accuracies, the share of padding, and what is held out; ranks have other numbers of masked tokens."""
    for family in train_ranks.ENCODERS:
        rows, others = (read(folder / family / "metrics.jsonl") for folder in (encoders_alone, ranks_folder))
        assert {row["kind"] for row in rows} == {"train", "validation"}
        assert_same_rows(rows, others, 1e-6, but=["seconds", "tokens_per_second", "tflops", "mfu"])


def test_sums_over_ranks(ranks):
    size, total = len(ranks), sum(range(len(ranks)))
    for rank, (_, numbers) in enumerate(ranks):
        sums = numbers["sums"]
        assert sums["integers"] == [size, total, size * (2**53 + 1)]
        assert sums["floats"] == [size, total + size * 2.0**-40]
        assert sums["votes"] == [True, list(range(1, size)), 7]
        assert sums["tensor"] == [[1.5 * size, total]]
        assert sums["is_first"] is (rank == 0)


def test_one_process_sends_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    world = World.join(torch.device("cpu"))
    assert (world.rank, world.size, world.is_first) == (0, 1, True)
    sums = train_ranks.sums(world)
    assert sums["integers"] == [1, 0, 2**53 + 1]
    world.leave()


def test_gradients_are_summed_in_buckets_during_the_backward_pass(ranks):
    """A rank without a gradient sends zeros after it; what no rank has stays without one."""
    size = len(ranks)
    total = sum(range(1, size + 1))
    for rank, (_, numbers) in enumerate(ranks):
        found = numbers["gradients"]
        assert found["early"] == [0, 3 if rank else 1]
        assert found["sums"] == [[2.0 * total] * 3, [2.0 * (total - 1)] * 3, [2.0 * total] * 3, None]


@pytest.mark.gpu
def test_groups_beside_a_gpu():
    """Barriers, and sums of what the host knows while the GPU may not be waited for."""
    done = python(*TORCHRUN, 1, PARALLEL / "gpu_rank.py")
    assert done.returncode == 0, done.stderr


def test_a_rank_that_failed_leaves_without_waiting_for_nccl(monkeypatch, tmp_path):
    monkeypatch.setattr(dist, "destroy_process_group", lambda: pytest.fail("it would wait for the other ranks"))
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    world = World(device=torch.device("cuda", 0))
    with pytest.raises(ValueError, match="it failed"), world.session():
        raise ValueError("it failed")
    assert not dist.is_initialized()


def test_hosts_that_do_not_connect_hear_of_their_interfaces():
    explained = r"^rank 1 of 4 .*: no route to host; .* GLOO_SOCKET_IFNAME .* eth0$"
    with pytest.raises(HornbookError, match=explained), _connecting(1, 4):
        raise RuntimeError("no route to host\nException raised from connect")
