"""Tensors assembled on their owners and handed back, alone and on real ranks."""

import pytest
import torch
import whole_ranks
from hypothesis import given
from hypothesis import strategies as st
from ranks import fork_ranks

from hornbook.parallel.ranks import Ranks
from hornbook.parallel.whole_tensors import Assembly, Box, _balanced


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_parts_in_rows_columns_and_copies_are_assembled_and_handed_back(num_ranks) -> None:
    fork_ranks(num_ranks, whole_ranks.main)


def test_a_single_rank_owns_everything_and_sends_nothing() -> None:
    whole = torch.arange(6.0).view(2, 3)
    assembly = Assembly(Ranks(), [[Box((0, 0), (2, 3))]])
    (found,) = assembly.assemble([whole])
    assert torch.equal(found, whole)
    (result,) = assembly.hand_back([found + 1], whole)
    assert torch.equal(result, whole + 1)


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 5))
def test_ranks_differ_by_at_most_the_largest_tensor(sizes, num_ranks) -> None:
    owners = _balanced(sizes, num_ranks)
    sums = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(num_ranks)]
    assert max(sums) - min(sums) <= max(sizes, default=0)
