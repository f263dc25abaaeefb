"""Stochastic rounding: neighbors only, unbiased, and a function of key and index."""

import pytest
import torch

from hornbook.ops.rounding import random_words, round_stochastically

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
MILLION = 1_000_000


def neighbors(value: float, dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of ``dtype`` around ``value``."""
    nearest = torch.tensor(value, dtype=dtype)
    below, above = (torch.nextafter(nearest, torch.tensor(side, dtype=dtype)) for side in (-1e9, 1e9))
    numbers = [float(number) for number in (below, nearest, above)]
    return max(number for number in numbers if number <= value), min(number for number in numbers if number >= value)


@DTYPES
@pytest.mark.parametrize("value", [1.0005, -0.01234567, 3e-7, -2.5e-8, 7e-5, 123.45])
def test_a_million_roundings_have_the_mean_of_what_they_round(value, dtype):
    """Within five standard errors; rounding to the nearest misses it by far more."""
    values = torch.full((MILLION,), value)
    rounded = round_stochastically(values, dtype, random_words("key", (0,), (MILLION,), (MILLION,), CPU)).double()
    exact = float(values[0])
    below, above = neighbors(exact, dtype)
    assert set(rounded.unique().tolist()) == {below, above}
    share = (exact - below) / (above - below)
    error = (above - below) * (share * (1 - share) / MILLION) ** 0.5
    assert abs(float(rounded.mean()) - exact) < 5 * error
    nearest = float(values[0].to(dtype))
    assert abs(nearest - exact) > 20 * error, "or this value would show nothing"


@DTYPES
def test_numbers_of_the_dtype_stay(dtype):
    draws = torch.Generator().manual_seed(0)
    exact = torch.cat([torch.randn(4096, generator=draws) * 10.0**power for power in (-8, -6, -4, 0, 3)])
    exact = torch.cat([exact, torch.tensor([0.0, -0.0])]).to(dtype)
    words = random_words("key", (0,), exact.shape, exact.shape, CPU)
    assert torch.equal(round_stochastically(exact.float(), dtype, words), exact)
    endless = torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(round_stochastically(endless, dtype, words[:2]), endless.to(dtype))


def test_words_of_a_part_are_those_of_the_whole():
    whole = random_words("1/tokens", (0, 0, 0), (3, 5, 7), (3, 5, 7), CPU)
    assert whole.unique().numel() == whole.numel()
    part = random_words("1/tokens", (1, 2, 3), (2, 3, 4), (3, 5, 7), CPU)
    assert torch.equal(part, whole[1:3, 2:5, 3:7])
    assert not (whole == random_words("2/tokens", (0, 0, 0), (3, 5, 7), (3, 5, 7), CPU)).any()


def test_words_of_a_tensor_of_more_than_two_to_the_31_elements():
    rows, columns = 70_000, 50_000
    part = random_words("key", (rows - 2, 0), (2, columns), (rows, columns), CPU)
    again = random_words("key", (rows - 1, 7), (1, 5), (rows, columns), CPU)
    assert torch.equal(part[1:, 7:12], again)


def test_every_bit_of_the_words_is_even():
    words = random_words("key", (0,), (MILLION,), (MILLION,), CPU)
    for bit in range(16):
        assert abs(float(((words >> bit) & 1).double().mean()) - 0.5) < 5 * 0.5 / MILLION**0.5
