"""The worth of sparse weights, from made-up losses that follow the law."""

import json
import math
from pathlib import Path

import pytest

import sparse_fit
from hornbook.plan.dial import LAW, SIZE_EXPONENT, SIZE_UNIT, num_weights
from sparse_fit import scale_of, worths


def made(width: int, tokens: int, density: float = 1.0, **changes: object) -> dict[str, object]:
    """A run of a corpus of floor 0.4 and scale 1.3, whose sparse weights are worth density^0.8 of the dense ones."""
    weights = num_weights(width) / SIZE_UNIT
    of_size = LAW.size * ((weights * density**0.8) ** -SIZE_EXPONENT - weights**-SIZE_EXPONENT)
    loss = 0.4 + 1.3 * (LAW.loss(width, tokens, 1e9) + of_size)
    also = "" if density == 1.0 else f"sparsity.linears=blocks.* sparsity.density={density}"
    run = {"corpus": "made", "width": width, "tokens": tokens, "seed": 0, "also": also, "unique_tokens": 1e9}
    return {**run, "bits_per_byte": loss, **changes}


def test_a_law_of_sparse_weights_is_found() -> None:
    dense = [made(2, 2**18), made(2, 2**20), made(4, 2**19)]
    assert scale_of(dense) == pytest.approx(1.3)
    sparse = [made(2, 2**20, 0.25), made(4, 2**19, 0.1), made(2, 2**18, 0.5, seed=1), made(2, 2**17, 0.5)]
    found = [*worths([*dense, *sparse])]
    assert [worth.run for worth in found] == sparse[:2]  # the others have no dense twin
    assert [worth.exponent for worth in found] == pytest.approx([0.8, 0.8])
    assert found[0].more == pytest.approx(sparse[0]["bits_per_byte"] / dense[1]["bits_per_byte"] - 1)


def test_a_sparse_run_may_be_better_than_any_size() -> None:
    dense = [made(2, 2**18), made(2, 2**20)]
    better = made(2, 2**18, 0.25, bits_per_byte=dense[0]["bits_per_byte"] - 1)
    assert [worth.share for worth in worths([*dense, better])] == [math.inf]


def test_recorded_sparse_runs_have_dense_twins() -> None:
    rows = json.loads(Path(str(sparse_fit.__file__)).with_name("sparse_runs.json").read_text())
    found = [*worths(rows)]
    assert len(found) == sum("sparsity.density" in row["also"] for row in rows) >= 15
    assert all(0 < worth.share < 1 for worth in found)
