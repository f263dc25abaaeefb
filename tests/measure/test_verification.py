"""Which layouts ``hornbook verify topology`` compares."""

import pytest

from hornbook.config import ParallelConfig, load_recipe
from hornbook.measure.verification import layouts_of

SIZES = (
    "--data.synthetic",
    "--model.vocab-size=70",
    "--training.micro-batch-size=1",
    "--training.global-batch-size=32",
)


def layouts(num_ranks, *words, name="demo"):
    return layouts_of(load_recipe(name, [*SIZES, *words]).recipe, num_ranks)


@pytest.mark.parametrize(("num_ranks", "count"), [(1, 1), (2, 8), (3, 8), (4, 14), (6, 20), (8, 24), (16, 33)])
def test_every_axis_alone_and_products_with_twos(num_ranks, count):
    fitting, misfits = layouts(num_ranks, "--model.num-layers=32", "--model.num-heads=16")
    if num_ranks % 3:
        assert not misfits
    assert len(fitting) + len(misfits) == count
    for name, parallel in fitting.items():
        sizes = parallel.sizes(num_ranks)
        assert sorted(sizes)[-2] <= 2, name


def test_three_axes_at_once():
    fitting, _ = layouts(8, "--model.num-layers=16")
    assert fitting["pipeline 2 x shard 2 x tensor 2, 1f1b"] == ParallelConfig(
        data_parallel="shard", pipeline_parallel=2, tensor_parallel=2
    )
    assert fitting["replicate 2 x shard 2 x tensor 2"].shard_size == 2


def test_the_recipes_own_layout_comes_first_and_is_kept_as_it_is():
    own = ("--parallel.pipeline-parallel=2", "--parallel.layers-per-stage=1,3")
    fitting, _ = layouts(4, *own)
    name, parallel = next(iter(fitting.items()))
    assert (name, parallel.layers_per_stage) == ("pipeline 2 x replicate 2, 1f1b", (1, 3))


def test_what_the_recipe_cannot_divide_is_named_with_its_reason():
    fitting, misfits = layouts(8, "--model.num-heads=4", "--training.global-batch-size=4")
    assert "tensor 8" not in fitting and "num_heads, which is 4" in misfits["tensor 8"]
    assert misfits["replicate 8"].startswith("global_batch_size 4 does not divide into micro-batches of 1 on 8 ranks")
    assert not fitting.keys() & misfits.keys()
