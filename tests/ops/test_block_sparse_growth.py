"""Updates of a pattern: what is pruned, what grows, and what stays as it was."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.ops.block_sparse_growth import GROWTH, num_replaced, rewire


@st.composite
def matrices(draw: st.DrawFn) -> tuple[int, int, list[int], int, int]:
    num_rows, num_columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    total = num_rows * num_columns
    positions = sorted(draw(st.sets(st.integers(0, total - 1), min_size=1)))
    count = draw(st.integers(0, min(len(positions), total - len(positions))))
    return num_rows, num_columns, positions, count, draw(st.integers(0, 1 << 30))


@given(case=matrices())
@settings(max_examples=150, deadline=None)
def test_the_smallest_blocks_give_way_to_the_largest_growth(case: tuple[int, int, list[int], int, int]) -> None:
    num_rows, num_columns, positions, count, seed = case
    random = np.random.default_rng(seed)
    values = random.integers(-3, 4, (len(positions), 2, 2)).astype(np.float32)  # with ties
    growth = random.integers(0, 5, (num_rows, num_columns)).astype(np.float64)
    present = torch.tensor(positions)
    rows, columns, source = rewire(
        torch.from_numpy(values), present // num_columns, present % num_columns, torch.from_numpy(growth), count
    )
    found = (rows * num_columns + columns).tolist()

    order = sorted(range(len(positions)), key=lambda number: (np.abs(values[number]).sum(), number))
    kept = {positions[number]: number for number in order[count:]}
    absent = sorted(set(range(num_rows * num_columns)) - set(positions), key=lambda at: (-growth.flat[at], at))
    assert found == sorted([*kept, *absent[:count]])  # as many as before, sorted, none twice
    assert source.tolist() == [kept.get(position, -1) for position in found]


def test_kept_blocks_move_bit_for_bit_and_grown_ones_are_zero() -> None:
    values = torch.tensor([3.0, 0.5, 2.0]).view(3, 1, 1)
    growth = torch.tensor([[0.0, 0.0, 1.0], [0.0, 9.0, 0.0]])
    rewiring = rewire(values, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), growth, 1)
    assert rewiring.rows.tolist() == [0, 1, 1] and rewiring.columns.tolist() == [0, 1, 2]
    assert rewiring.carry(values).flatten().tolist() == [3.0, 0.0, 2.0]
    assert rewiring.carry(torch.tensor([7, 8, 9], dtype=torch.int32)).tolist() == [7, 0, 9]


def test_updates_replace_fewer_blocks_on_a_cosine() -> None:
    assert [num_replaced(10, 90, 0.3, progress) for progress in (0.0, 0.5, 1.0)] == [3, 2, 0]
    assert num_replaced(11, 90, 0.3, 0.0) == 4  # rounded up
    assert num_replaced(10, 2, 1.0, 0.0) == 2  # no more than can grow


def test_rules_of_growth() -> None:
    scores = torch.tensor([[8.0, 4.0], [2.0, 2.0]])
    assert torch.equal(GROWTH["rigl"](scores, torch.Generator()), scores)
    normalized = GROWTH["rigl_norm"](scores, torch.Generator())
    torch.testing.assert_close(normalized[0, 0], torch.tensor(8.0 / (6.0 * 5.0)))
    for rule in ("random", "rigl_sample"):
        same = [GROWTH[rule](scores, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
        assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])


def test_samples_are_drawn_in_proportion_to_the_scores() -> None:
    scores, random = torch.tensor([[6.0, 3.0, 1.0, 0.0]]), torch.Generator().manual_seed(0)
    firsts = torch.stack([GROWTH["rigl_sample"](scores, random).argmax() for _ in range(2000)])
    shares = torch.bincount(firsts, minlength=4) / 2000
    assert shares.tolist() == pytest.approx([0.6, 0.3, 0.1, 0.0], abs=0.04)
