"""Every layout of ranks trains as one process does, and takes over the checkpoints of every other."""

import functools
import json
from dataclasses import asdict

import layout_ranks
import pytest
import tiny_layouts
import torch
from ranks import fork_ranks
from tiny_encoder_runs import assert_same_rows
from tiny_layouts import recipe_of, run_labelled, run_on, write_labelled
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.parallel.world import World
from hornbook.track.metrics import read

TWO = {
    "cases": [
        ("groupbert", "lamb", "tensor 2, recomputed"),
        ("bert unpadded", "adamw", "sequence 2"),
        ("gpt", "muon", "shard 2"),
        ("value embeddings", "muon", "shard 2, phased"),
        ("sparse", "muon", "data 2"),
        ("shifted keys", "adamw", "sequence 2"),
    ],
    "chain": ["data 2", "tensor 2", "shard 2, phased"],
    "labelled": [("span", "shard 2")],
    "kept": ["tensor 2", "sequence 2"],
}
MORE_OF_TWO = {
    "cases": [
        ("gpt", "adamw", "shard 2"),
        ("bert padded", "lamb", "shard 2"),
        ("gpt", "lamb", "shard 2, phased"),
        ("gpt with fp32 gradients", "adamw", "tensor 2"),
        ("gpt", "adamw", "data 2"),
        ("bert packed", "adamw", "tensor 2"),
        ("gpt in bf16", "adamw", "shard 2"),
        ("gpt by 1", "lamb", "data 2"),
        ("gpt", "muon", "tensor 2"),
        ("decoder", "lamb", "sequence 2"),
        ("modernbert padded", "adamw", "tensor 2"),
        ("gpt", "adamw", "shard 2, once"),
        ("gpt", "lamb", "tensor 2"),
        ("groupbert", "lamb", "tensor 2"),
        ("gpt", "adamw", "shard 2, recomputed"),
        ("gpt", "adamw", "data 2, phased"),
        ("bert packed", "lamb", "data 2, phased"),
        ("gpt in bf16", "adamw", "shard 2, phased"),
        ("bert of 300 tokens", "adamw", "tensor 2, chunked"),
        ("groupbert", "lamb", "sequence 2, recomputed"),
        ("gpt in bf16", "adamw", "data 2"),
        ("gpt with fp32 gradients", "adamw", "data 2"),
        ("gpt odd", "lamb", "sequence 2"),
        ("groupbert", "lamb", "sequence 2"),
        ("gpt by 4", "adamw", "shard 2"),
        ("bert packed by 4", "adamw", "tensor 2"),
        ("bert padded by 1", "lamb", "data 2"),
        ("gpt", "muon", "data 2"),
        ("groupbert", "muon", "shard 2, phased"),
        ("decoder", "adamw", "tensor 2"),
        ("decoder", "muon", "shard 2, phased"),
        ("decoder", "adamw", "shard 2, recomputed"),
        ("shortcuts", "muon", "shard 2, recomputed"),
        ("shifted keys", "muon", "shard 2, phased"),
        ("modernbert", "lamb", "sequence 2"),
    ],
    "chain": ["shard 2, phased", "tensor 2", "shard 2", "data 2, phased", "sequence 2"],
    "labelled": [("classification", "sequence 2")],
    "kept": [],
}
NARROW = ("gpt in bf16", "gpt with fp32 gradients")
FOUR = {
    "cases": [
        ("gpt", "lamb", "hybrid 2x2"),
        ("bert packed", "adamw", "hybrid 2x2, once"),
        ("gpt", "adamw", "tensor 2 x data 2"),
        ("gpt", "adamw", "tensor 4"),
        ("bert packed", "lamb", "tensor 2 x shard 2"),
        ("groupbert", "adamw", "tensor 2 x shard 2"),
        ("bert padded", "adamw", "shard 4"),
        ("bert odd", "adamw", "sequence 4"),
        ("bert packed", "lamb", "sequence 2 x shard 2"),
        ("gpt", "adamw", "sequence 2 x data 2"),
        ("gpt by 1", "lamb", "hybrid 2x2"),
        ("gpt", "adamw", "hybrid 2x2, phased"),
        ("groupbert", "lamb", "hybrid 2x2, phased"),
        ("gpt by 8", "adamw", "tensor 4"),
        ("gpt", "muon", "tensor 2 x shard 2"),
        ("bert packed", "muon", "hybrid 2x2"),
    ],
    "chain": ["shard 4", "tensor 2 x shard 2", "hybrid 2x2", "hybrid 2x2, phased", "sequence 4"],
    "labelled": [("span", "sequence 2 x shard 2"), ("classification", "hybrid 2x2")],
    "kept": [],
}
WORLDS = pytest.mark.parametrize(
    "ranks",
    [(2, TWO), *(pytest.param(case, marks=pytest.mark.slow) for case in ((2, MORE_OF_TWO), (4, FOUR)))],
    ids=["2", "more of 2", "4"],
    indirect=True,
)


@functools.cache
def trained(model, optimizer):
    """What one process does."""
    return tiny_layouts.train(recipe_of(model, optimizer), World())


def alone(model, optimizer):
    """What one process does, with four micro-batches a step; trained once for all sizes of micro-batches."""
    return trained(model.partition(" by ")[0], optimizer)


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    """The folder of what so many processes did, and their cases."""
    (num_ranks, plan), folder = request.param, tmp_path_factory.mktemp("layouts")
    build_tiny(folder / "corpus")
    write_labelled(folder)
    fork_ranks(num_ranks, functools.partial(layout_ranks.main, folder, **plan))
    return folder, plan


@WORLDS
def test_a_layout_begins_and_learns_as_one_process(ranks):
    """Initial weights are equal bit for bit, gradients of the first step to 1e-6 of their norm, losses to 1e-6.

    In bf16 gradients are rounded where ranks add them up, and a weight may round to its other neighbor. All of this is
    so for one, two or four micro-batches a step and rank.
    """
    folder, plan = ranks
    for number, (model, optimizer, _) in enumerate(plan["cases"]):
        found, tolerances = torch.load(folder / f"{number}.pt", weights_only=True), (5e-3, 1e-3)
        assert_learned(found, alone(model, optimizer), *(tolerances if model in NARROW else ()))


@pytest.mark.parametrize("model", ["gpt by 4", "gpt by 8", "bert packed by 4"])
def test_one_process_learns_the_same_from_fewer_micro_batches(model):
    assert_learned(asdict(trained(model, "adamw")), alone(model, "adamw"))


def assert_learned(found, expected, in_gradients=1e-6, in_losses=1e-6):
    """Compare what a training did with what it was to do."""
    assert all(torch.equal(found["initial"][name], tensor) for name, tensor in expected.initial.items())
    assert found["gradients"].keys() == expected.gradients.keys()
    norm = torch.cat([tensor.double().flatten() for tensor in expected.gradients.values()]).norm()
    for name, gradient in expected.gradients.items():
        assert (gradient.double() - found["gradients"][name].double()).norm() < in_gradients * norm, name
    assert found["losses"] == pytest.approx(expected.losses, rel=in_losses)
    assert found["norms"] == pytest.approx(expected.norms, rel=in_losses)
    assert found["terms"] == [pytest.approx(terms, rel=in_losses) for terms in expected.terms]


@WORLDS
def test_a_run_goes_from_layout_to_layout(ranks, tmp_path):
    """Its losses, validation and samples are those of one process; one process goes on from its end."""
    folder, plan = ranks
    steps = 4 * len(plan["chain"])
    (tmp_path / "corpus").symlink_to(folder / "corpus")
    run_on(tmp_path, "one process", World(), steps + 2)
    run_on(folder, "one process", World(), steps + 2, previous=plan["chain"][-1])
    expected, found = (read(where / "one process" / "metrics.jsonl") for where in (tmp_path, folder))
    assert [(row["kind"], row["step"]) for row in found] == [(row["kind"], row["step"]) for row in expected]
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], rel=1e-6)
    expected, found = (read(where / "one process" / "samples.jsonl") for where in (tmp_path, folder))
    assert [row["text"] for row in found] == [row["text"] for row in expected]


@WORLDS
def test_heads_of_labeled_data_learn_and_are_validated_as_in_one_process(ranks, tmp_path):
    folder, plan = ranks
    write_labelled(tmp_path)
    for head, layout in plan["labelled"]:
        run_labelled(tmp_path, head, "one process", World())
        where = folder / f"{head} {layout}", tmp_path / f"{head} one process"
        found, expected = (read(path / "metrics.jsonl") for path in where)
        assert {row["kind"] for row in found} == {"train", "validation"}
        assert_same_rows(found, expected, 1e-6, but=["seconds", "tokens_per_second", "tflops", "mfu"])


@pytest.mark.parametrize("ranks", [(2, TWO)], ids=["2"], indirect=True)
def test_a_rank_keeps_a_slice_of_the_hidden_states(ranks):
    """For the backward pass, of two layers of a GPT: the inputs of both norms, of attention and of the feed-forward."""
    folder, _ = ranks
    for rank in range(2):
        whole, slices = json.loads((folder / f"kept-{rank}.json").read_text())
        assert (whole, slices) == ([8, 0], [0, 8])


@WORLDS
def test_each_rank_writes_what_it_holds(ranks):
    folder, plan = ranks
    for number, layout in enumerate(plan["chain"]):
        path = checkpoint.folder_of(folder / layout / "checkpoints", 4 * (number + 1))
        assert checkpoint.verify(path) == []
        num_files = len(list(path.glob("model-*.safetensors")))
        cut = layout.removesuffix(", phased")
        assert num_files == {"data 2": 1, "hybrid 2x2": 2, "tensor 2": 2, "shard 2": 2, "sequence 2": 2}.get(cut, 4)
        assert not list(path.glob("share-*"))
