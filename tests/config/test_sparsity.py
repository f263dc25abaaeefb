"""The section [sparsity]: counts, and mistakes in one line each."""

import pytest

from hornbook.config import GPTConfig, SparsityConfig, load_recipe
from hornbook.config.rank_part import RankPart
from hornbook.config.sparsity import linears_of
from hornbook.errors import RecipeError

MODEL = GPTConfig(num_layers=2, hidden_size=64, num_heads=4, vocab_size=100)
WORDS = ("--data.synthetic", "--model.vocab-size=100", "--sparsity.linears=blocks.*")


def test_a_uniform_density_is_rounded_up_to_whole_blocks() -> None:
    grids = SparsityConfig(linears=("blocks.0.*",), density=0.1).grids(linears_of(MODEL))
    assert {name.removeprefix("blocks.0."): tuple(grid) for name, grid in grids.items()} == {
        "attention.qkv": (4, 4, 2),  # 1.6 blocks of each part
        "attention.out": (4, 4, 2),
        "feed_forward.up": (16, 4, 7),
        "feed_forward.down": (4, 16, 7),
    }


def test_small_matrices_fill_up_first_in_an_erdos_renyi_distribution() -> None:
    config = SparsityConfig(linears=("*",), density=0.9, block_size=1, distribution="erdos_renyi")
    grids = config.grids(linears_of(MODEL))
    assert grids["blocks.0.attention.out"].density == 1.0
    weights = {name: shape.num_out * shape.num_in for name, shape in linears_of(MODEL).items()}
    kept = sum(weights[name] * grid.density for name, grid in grids.items())
    assert kept / sum(weights.values()) == pytest.approx(0.9, abs=1e-3)


def test_the_learning_rate_of_blocks_rises_with_sparsity() -> None:
    config = SparsityConfig()
    assert [round(config.rate_scale(density), 1) for density in (1.0, 0.5, 0.25, 0.1)] == [1.0, 1.9, 3.8, 6.4]
    assert SparsityConfig(learning_rate_scale=2.0).rate_scale(0.1) == 2.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--model.num-layers=9000000000000",),
            "model.num_layers = 9000000000000 (command line): must be at least 1 and at",
        ),
        (("--sparsity.block-size=12",), "sparsity.block_size = 12 (command line): must be 1, 4, 8, 16, 32, 64 or 128"),
        (("--model.hidden-size=72",), "does not divide blocks.0.attention.qkv, 72 x 72"),
        (("--sparsity.density=1e-4",), "leaves no block of blocks.0.attention.qkv, which has 48 x 48 blocks; raise it"),
        (
            ("--sparsity.linears=block.*",),
            "'block.*' matches no linear layer; layers have names such as blocks.0.attention.qkv",
        ),
        (
            ("--parallel.tensor-parallel=2",),
            "sparse layers do not support tensor parallelism; set tensor_parallel to 1",
        ),
        (("--parallel.data-parallel=shard",), 'sparse layers cannot be sharded; set data_parallel to "replicate"'),
        (
            ("--parallel.data-parallel=hybrid", "--parallel.shard-size=2"),
            'sparse layers cannot be sharded; set data_parallel to "replicate"',
        ),
        (("--sparsity.density=0",), "must be above 0 and at most 1"),
        (("--sparsity.update=grow",), 'expected one of "static", "random", "rigl", "rigl_norm", "rigl_sample"'),
        (
            ("--sparsity.linears=none", "--sparsity.density=0.2"),
            "density applies only to sparse linear layers; set linears, or remove it",
        ),
        (("--sparsity.embedding-block-size=5",), "must be 1, 4, 8, 16, 32, 64 or 128"),
        (
            ("--sparsity.embedding-block-size=16", "--model.hidden-size=72", "--sparsity.block-size=4"),
            "does not divide the 72 columns of the token table; choose another",
        ),
        (
            ("--sparsity.embedding-block-size=4", "--parallel.pipeline-parallel=2"),
            "a sparse token table cannot be distributed over ranks; set pipeline_parallel to 1",
        ),
        (
            ("--sparsity.linears=none", "--sparsity.embedding-block-size=4", "--sparsity.block-size=4"),
            "block_size applies only to sparse linear layers; set linears, or remove it",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("gpt2-small", [*WORDS, *words])
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_sparse_token_table_has_the_state_of_its_blocks(optimizer: str) -> None:
    words = ["--sparsity.embedding_block_size=16", "--model.vocab_size=2048", f"--optimizer.name={optimizer}"]
    recipe = load_recipe("sparse-demo", words, require_data=False).recipe
    of_rank = RankPart.of(recipe, 1, 0).bytes_of_states(recipe.sparsity.num_absent(recipe.model))
    dense = load_recipe("sparse-demo", words[1:], require_data=False).recipe
    missing = recipe.sparsity.num_absent(recipe.model)["embedding.tokens"]
    assert of_rank == recipe.bytes_of_states() == dense.bytes_of_states() - 8 * missing
