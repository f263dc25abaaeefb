"""How fast a device multiplies matrices, the bulk of a training step.

product_rates(256, 768, 3072, (torch.float32, torch.bfloat16), torch.device("cpu"))
    -> {torch.float32: 3.4e10, torch.bfloat16: 1.9e10}    FLOP/s: here bf16 is emulated
"""

import time
from collections.abc import Sequence

import torch
from torch.nn.functional import linear

from hornbook.parallel.device import synchronize

_FEWEST, _SECONDS = 5, 0.5


def product_rates(
    rows: int, inner: int, columns: int, dtypes: Sequence[torch.dtype], device: torch.device
) -> dict[torch.dtype, float]:
    """Return the FLOP/s of the product [rows, inner] · [inner, columns] by dtype, with the threads of the process.

    The dtypes take turns for about half a second, at least five times, and the fastest timing of each counts: it is the
    one that other processes disturbed least. Short products, of a few milliseconds, find such moments on busy cores.
    """
    factors = {dtype: _factors(rows, inner, columns, dtype, device) for dtype in dtypes}
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in dtypes}
    begin, rounds = time.perf_counter(), 0
    with torch.no_grad():
        while rounds < _FEWEST or time.perf_counter() - begin < _SECONDS:
            rounds += 1
            for dtype, (left, right) in factors.items():
                synchronize(device)
                start = time.perf_counter()
                linear(left, right)
                synchronize(device)
                seconds[dtype].append(time.perf_counter() - start)
    return {dtype: 2.0 * rows * inner * columns / min(taken) for dtype, taken in seconds.items()}


def _factors(
    rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [rows, inner] and, as a layer stores its weight, [columns, inner]; no random number is drawn."""

    def filled(*shape: int) -> torch.Tensor:
        return torch.linspace(-1, 1, shape[0] * shape[1], device=device).view(shape).to(dtype)

    return filled(rows, inner), filled(columns, inner)
