"""The sizes of the axes, and what tensor parallelism splits."""

import pytest

from hornbook.config import BertConfig, GroupBertConfig, ParallelConfig, load_recipe
from hornbook.errors import RecipeError, UserError


@pytest.mark.parametrize(
    ("options", "num_ranks", "sizes"),
    [
        ({}, 1, (1, 1, 1, 1)),
        ({}, 4, (1, 4, 1, 1)),
        ({"data_parallel": "shard"}, 4, (1, 1, 4, 1)),
        ({"data_parallel": "hybrid", "shard_size": 2}, 8, (1, 4, 2, 1)),
        ({"tensor_parallel": 2}, 8, (1, 4, 1, 2)),
        ({"data_parallel": "shard", "tensor_parallel": 4}, 8, (1, 1, 2, 4)),
        ({"data_parallel": "hybrid", "shard_size": 2, "tensor_parallel": 2}, 8, (1, 2, 2, 2)),
        ({"pipeline_parallel": 2, "tensor_parallel": 2}, 8, (2, 2, 1, 2)),
        ({"pipeline_parallel": 2, "data_parallel": "shard"}, 8, (2, 1, 4, 1)),
    ],
)
def test_the_size_of_the_data_axis_is_what_is_left(options, num_ranks, sizes):
    assert ParallelConfig(**options).sizes(num_ranks) == sizes


def test_a_world_that_the_sizes_do_not_divide_is_refused():
    config = ParallelConfig(data_parallel="hybrid", shard_size=2, tensor_parallel=2)
    with pytest.raises(UserError, match=r"multiple of 4 ranks \(tensor_parallel 2 x shard_size 2\), but the run has 6"):
        config.sizes(6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parallel.data-parallel=hybrid"], "shard_size and data_parallel"),
        (["--parallel.shard-size=2"], "shard_size and data_parallel"),
        (["--parallel.sum-gradients=step"], "applies only to shard and hybrid"),
        (["--training.compile=blocks", "--parallel.pipeline-schedule=zero-bubble"], "choose gpipe, 1f1b, interleaved"),
        (
            ["--training.compile=blocks", "--memory.recompute=attention"],
            'compiled blocks cannot recompute only attention; set recompute = "all"',
        ),
        (["--parallel.sequence-parallel"], "sequence_parallel applies only to tensor parallelism; set tensor_parallel"),
        (
            ["--training.compile=blocks", "--parallel.tensor-parallel=2", "--parallel.async-tensor-parallel"],
            "async_tensor_parallel applies only to sequence parallelism; set sequence_parallel, or remove it",
        ),
        (
            ["--parallel.tensor-parallel=2", "--parallel.sequence-parallel", "--parallel.async-tensor-parallel"],
            'async_tensor_parallel needs compiled blocks; set training.compile = "blocks", or remove it',
        ),
        (["--parallel.tensor-parallel=5"], "tensor_parallel must divide num_heads, which is 12"),
        (
            ["--parallel.tensor-parallel=2", "--model.feed-forward-size=33"],
            "must divide feed_forward_size, which is 33",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(words, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("gpt2-small", words, require_data=False)


def test_groups_of_the_feed_forward_are_not_split():
    with pytest.raises(RecipeError, match="must divide feed_forward_groups, which is 4"):
        load_recipe("groupbert-base-phase1", ["--parallel.tensor-parallel=6"], require_data=False)


def test_parameters_that_are_split():
    groups, bert = GroupBertConfig().description(), BertConfig().description()
    cuts = {
        "embedding.tokens": 0,
        "head.table": 0,
        "blocks.3.attention.qkv.bias": 1,
        "blocks.11.first_feed_forward.grouped.weight": 0,
        "blocks.11.first_feed_forward.grouped.bias": 0,
        "blocks.0.second_feed_forward.down.weight": 1,
        "blocks.0.second_feed_forward.down.bias": None,
        "blocks.0.convolution.up.weight": None,
        "blocks.0.norms.2.weight": None,
        "head.bias": None,
    }
    assert {name: groups.cut(name) for name in cuts} == cuts
    assert bert.cut("blocks.3.feed_forward.up.bias") == 0 and bert.cut("blocks.3.attention.out.weight") == 1


def test_parameters_that_see_the_tokens_of_their_rank_alone():
    """With sequence parallelism: what is replicated, but for the head, which takes all tokens."""
    sees_slice = GroupBertConfig().description().sees_slice
    seen = [
        "embedding.positions",
        "embedding.norm.bias",
        "blocks.0.attention.out.bias",
        "blocks.1.convolution.up.weight",
    ]
    assert all(map(sees_slice, seen))
    assert not any(
        map(sees_slice, ["embedding.tokens", "blocks.0.attention.qkv.bias", "head.norm.weight", "head.table"])
    )
