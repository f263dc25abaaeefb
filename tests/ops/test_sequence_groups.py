"""Index maps there and back: every token has one place, and the gradient of a gather is the other gather."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.ops.sequence_groups import group_sequences, inverse, space_sequences, take

CPU = torch.device("cpu")


def laid_out(rows: list[list[int]], num_columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Size]:
    """Firsts and lengths of sequences of these lengths, row by row."""
    firsts, lengths = [], []
    for number, row in enumerate(rows):
        at = number * num_columns
        for length in row:
            firsts.append(at)
            lengths.append(length)
            at += length
    return (
        torch.tensor(firsts, dtype=torch.int64),
        torch.tensor(lengths, dtype=torch.int64),
        torch.Size((len(rows), num_columns)),
    )


def test_the_picture_of_the_module():
    firsts, lengths, shape = laid_out([[50, 30], [40, 20]], 82)
    maps = group_sequences(firsts, lengths, shape, CPU)
    assert maps["group_sizes"] == [(2, 50, True), (2, 30, True)]
    assert maps["gather_index"][:50].tolist() == list(range(50))
    assert maps["gather_index"][50:100].tolist() == [*range(82, 122), *[-1] * 10]
    assert maps["scatter_index"][80:82].tolist() == [-1, -1]


@pytest.mark.parametrize("rows", [[[24], [24]], [[24]]])
def test_whole_rows_need_no_maps(rows):
    maps = group_sequences(*laid_out(rows, 24), CPU)
    assert maps.keys() == {"group_sizes"}
    assert maps["group_sizes"] == [(len(rows), 24, False)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=5))
def test_every_token_has_one_place_and_finds_back(rows):
    firsts, lengths, shape = laid_out(rows, 120)
    maps = group_sequences(firsts, lengths, shape, CPU)
    slots, places = maps["gather_index"], maps["scatter_index"]
    groups = maps["group_sizes"]
    assert len(slots) == sum(number * length for number, length, _ in groups)
    assert sum(number for number, _, _ in groups) == int((lengths > 0).sum())
    assert torch.equal(inverse(slots, shape.numel()), places)
    assert torch.equal(maps["is_token"], slots >= 0)
    assert torch.equal(inverse(places, len(slots)), slots)
    spans = zip(firsts.tolist(), lengths.tolist(), strict=True)
    tokens = [token for first, length in spans for token in range(first, first + length)]
    assert slots[slots >= 0].sort().values.tolist() == tokens
    at = 0
    for number, length, is_padded in groups:
        grid = slots[at : at + number * length].view(number, length)
        assert bool((grid < 0).any()) == bool(is_padded)
        there = (grid >= 0).sum(1)
        assert int(there.max()) == length
        assert int(there.max() - there.min()) <= max(16, length // 8)
        at += number * length


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 3))
def test_a_column_has_empty_rows_around_each_sequence(lengths, gap):
    firsts, lengths, shape = laid_out([lengths], 60)
    maps = space_sequences(firsts, lengths, shape.numel(), gap, CPU)
    rows, row_of = maps["column_gather_index"], maps["column_scatter_index"]
    assert len(rows) == int(lengths.sum()) + gap * (len(lengths) + 1)
    assert torch.equal(inverse(rows, 60), row_of)
    for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
        if length:
            at = int(row_of[first])
            assert rows[at : at + length].tolist() == list(range(first, first + length))
            assert (rows[at - gap : at] == -1).all()
            assert (rows[at + length : at + length + gap] == -1).all()


def test_take_and_its_gradient():
    index = torch.tensor([3, -1, 0, 2])
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    y = take(x, index, inverse(index, 5))
    assert torch.equal(y[1], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(y[[0, 2, 3]], x[[3, 0, 2]])
    assert torch.autograd.gradcheck(lambda x: take(x, index, inverse(index, 5)), x)


def test_nothing_can_be_taken_from_nothing():
    assert torch.equal(
        take(torch.empty(0, 3), torch.tensor([-1, -1]), torch.empty(0, dtype=torch.int64)), torch.zeros(2, 3)
    )
