"""Micro-batches that the global batch does not divide into on several ranks."""

import pytest

from hornbook.config import load_recipe
from hornbook.config.build import fit_ranks


@pytest.mark.parametrize(
    ("options", "num_ranks", "size"),
    [([], 1, 16), ([], 2, 8), ([], 3, 16), (["--batch-size=48"], 6, 8), (["--micro-batch-size=16"], 2, 16)],
)
def test_micro_batches_fit_the_ranks_unless_the_command_line_sets_them(options, num_ranks, size):
    resolved = load_recipe("demo", options, require_data=False)
    fitted = fit_ranks(resolved, num_ranks)
    assert fitted.recipe.training.micro_batch_size == size
    notes = [f"training.micro_batch_size is {size} on {num_ranks} ranks, instead of 16 (demo:19)"] if size == 8 else []
    assert list(fitted.notes) == notes
