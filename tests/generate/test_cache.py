"""The columns of a cache of keys and values."""

import torch

from hornbook.generate.incremental_model import Cache


def test_a_full_cache_drops_all_columns_that_no_row_uses_at_once() -> None:
    cache = Cache([2, 4], capacity=6, dtype=torch.float32, device=torch.device("cpu"))
    for _ in range(2):
        cache.append({0: 1, 1: 3})
    assert cache.end == 6 and cache.starts == [5, 3]
    cache.append({})
    assert (cache.end, cache.starts) == (4, [2, 0])
