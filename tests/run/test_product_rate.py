"""Products are timed in several dtypes, and the random state of the process stays as it is."""

import torch

from hornbook.run.product_rate import product_rates


def test_each_dtype_has_a_rate_and_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    rates = product_rates(16, 64, 32, (torch.float32, torch.bfloat16), torch.device("cpu"))
    assert list(rates) == [torch.float32, torch.bfloat16]
    assert all(1e5 < rate < 1e15 for rate in rates.values())
    assert torch.equal(before, torch.get_rng_state())


def test_larger_products_take_longer() -> None:
    small, large = (
        2 * size**3 / product_rates(size, size, size, (torch.float32,), torch.device("cpu"))[torch.float32]
        for size in (16, 512)
    )
    assert large > small
