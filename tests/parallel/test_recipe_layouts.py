"""Every bundled recipe with a layout trains on it, shrunk to tiny widths, as one process does."""

import json

import pytest
from ranks import PARALLEL, TORCHRUN, python

from hornbook.config import ParallelConfig, bundled_recipes, load_recipe

WITH_LAYOUT = sorted(
    name for name in bundled_recipes() if load_recipe(name, require_data=False).recipe.parallel != ParallelConfig()
)
RANKS = {
    "bert-base-phase1-7-stages": 7,
    "bert-large-phase2-13-stages": 13,
    "gpt2-medium-8-stages": 16,
    "gpt2-large-16-stages": 16,
}
"""8 for the others, which makes one, two or four replicas."""


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [7, 8, 13, 16])
def test_a_recipe_learns_on_its_layout_what_one_process_learns(tmp_path, num_ranks):
    """Gradients of the first step and the losses of three; a pipeline without replicas is equal bit for bit."""
    names = [name for name in WITH_LAYOUT if RANKS.get(name, 8) == num_ranks]
    done = python(*TORCHRUN, num_ranks, PARALLEL / "recipe_ranks.py", tmp_path, *names)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / f"{num_ranks}.json").read_text())
    assert sorted(found) == names
    for name, (gradients, losses) in found.items():
        sizes = load_recipe(name, require_data=False).recipe.parallel.sizes(num_ranks)
        tolerance = 0.0 if sizes.pipeline == num_ranks else 1e-6
        assert gradients <= tolerance and losses <= tolerance, name


def test_no_layout_is_forgotten():
    assert len(WITH_LAYOUT) == 20 and RANKS.keys() < set(WITH_LAYOUT)
