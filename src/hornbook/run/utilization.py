"""Hardware utilization of a run: its model FLOP/s as a share of the device's peak rate (MFU).

::

    tokens per second · flops_per_token of the recipe's model = tflops · 10¹²         tflops / peak = mfu

The peak of a known GPU is the data sheet's for dense bf16 products. For other GPUs, CPUs and fp32 runs it is measured
once at the start: a product of the feed-forward's shape, in the run's dtype and threads; on a CPU also in fp32, and the
faster of the two counts. Nothing here is saved in checkpoints or draws random numbers.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from hornbook.config import Recipe
from hornbook.config.description import description_of
from hornbook.parallel.device import dtype_name, synchronize
from hornbook.parallel.world import World
from hornbook.samples.batches import Samples

_TERA = 1e12
_PEAKS = (
    ("H100 PCIe", 756),
    ("H100 NVL", 835),
    ("H100", 989),
    ("H200", 989),
    ("GH200", 989),
    ("B200", 2250),
    ("A100", 312),
    ("A40", 149.7),
    ("A30", 165),
    ("A10G", None),
    ("A10", 125),
    ("L40S", 362),
    ("L40", 181),
    ("L4", 121),
    ("RTX A6000", 154.8),
    ("RTX 4090 D", None),
    ("RTX 4090 Laptop", None),
    ("RTX 4090", 165.2),
    ("RTX 3090 Ti", None),
    ("RTX 3090", 71),
)
"""Part of the name that NVIDIA's driver reports, and TFLOP/s by the data sheet: dense bf16 with fp32 accumulation.

The first match counts. None: a slower card whose name begins like the next one."""

_FLOPS_OF_A_TIMING = 4e8
"""FLOPs of a timed product on a CPU: a few milliseconds."""
_MOST_REPEATS = 100
"""Calls per timing on a CPU; tiny products are dominated by call overhead, and 100 calls are enough to time it."""
_MOST_FLOPS = 2e9
"""Rows of a product on a CPU; larger ones are cut, which hardly changes their rate."""
_FEWEST_ROWS = 64
_LONGEST_SIDE = 8192
"""Elements of a weight matrix on a CPU, so that models larger than memory can be timed."""
_FEWEST_ROUNDS = 6  # the first one warms up


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """The conversion of a run's speed into FLOP/s and MFU."""

    flops_per_token: float
    """FLOPs of a training step per token; see ``flops_per_token`` of the recipe's model."""
    peak: float
    """Peak FLOP/s of all ranks together."""
    source: str
    """Origin of the peak."""

    def at(self, tokens_per_second: float) -> dict[str, float]:
        """Return ``tflops``, in 10¹² FLOP/s of all ranks, and ``mfu``, as a share of the peak."""
        rate = self.flops_per_token * tokens_per_second
        return {"tflops": rate / _TERA, "mfu": rate / self.peak}

    def describe(self) -> str:
        """Return a description of the peak."""
        rate = f"{self.peak / _TERA:.3g} T" if self.peak >= _TERA else f"{self.peak / 1e9:.3g} G"
        return f"{rate}FLOP/s, {self.source}"


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix product of the shape of a model's feed-forward: ``[rows, hidden] · [hidden, inner]``.

    A call computes it several times, so that it takes long enough to be timed.
    """

    left: torch.Tensor
    right: torch.Tensor
    repeats: int

    @classmethod
    def of(cls, recipe: Recipe, tokens: float, dtype: torch.dtype, device: torch.device) -> "Product":
        """Return the product for a micro-batch of ``tokens`` tokens; on a CPU, of part of them if it is large."""
        described: Any = description_of(recipe.model) or recipe.model
        hidden, inner = described.hidden_size, described.feed_forward_size
        rows, repeats = max(1, round(tokens)), 10
        if device.type == "cpu":
            hidden, inner = min(hidden, _LONGEST_SIDE), min(inner, _LONGEST_SIDE)
            rows = min(rows, max(_FEWEST_ROWS, int(_MOST_FLOPS / (2 * hidden * inner))))
            repeats = min(_MOST_REPEATS, max(1, round(_FLOPS_OF_A_TIMING / (2 * rows * hidden * inner))))
        return cls.of_shape(rows, hidden, inner, dtype, device, repeats)

    @classmethod
    def of_shape(
        cls, rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device, repeats: int = 1
    ) -> "Product":
        """Return the product ``[rows, inner] · [inner, columns]``; draws no random numbers."""
        left, right = (
            torch.arange(shape[0] * shape[1], dtype=torch.float32, device=device).sin().view(shape).to(dtype)
            for shape in ((rows, inner), (inner, columns))
        )
        return cls(left=left, right=right, repeats=repeats)

    @property
    def flops(self) -> float:
        """Floating-point operations of one call."""
        return 2.0 * self.repeats * self.left.numel() * self.right.shape[1]

    def __call__(self) -> int:
        """Compute the product, and return 0, the number of trained tokens."""
        for _ in range(self.repeats):
            torch.mm(self.left, self.right)
        return 0


def measure_utilization(recipe: Recipe, samples: Samples, world: World, dtype: torch.dtype) -> Utilization | None:
    """Return the utilization of a run; None for a custom model without ``flops_per_token``.

    Args:
        recipe: complete, with a vocabulary.
        samples: samples, for the mean length of a sequence.
        world: its device is measured on all ranks at once, and multiplied by the number of ranks.
        dtype: dtype of the activations.
    """
    flops = recipe.flops_per_token(samples.tokens_per_sample)
    if flops is None:
        return None
    tokens = recipe.training.micro_batch_size * samples.tokens_per_sample
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else ""
    peak, source = peak_of(name, dtype), f"dense {dtype_name(dtype)} of {name}, by its data sheet"
    if peak is None:
        # A CPU may multiply fp32 faster than 16 bits, and hornbook's operators then widen.
        dtypes = {dtype, torch.float32} if world.device.type == "cpu" else {dtype}
        products = [Product.of(recipe, tokens, kind, world.device) for kind in dtypes]
        rates = measure_rates(products, world.device)
        peak, product = max(zip(rates, products, strict=True), key=itemgetter(0))
        (rows, hidden), inner = product.left.shape, product.right.shape[1]
        source = f"measured: a {rows:,} × {hidden:,} × {inner:,} product in {dtype_name(product.left.dtype)}"
    return Utilization(flops_per_token=flops, peak=peak * world.size, source=source)


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s of a GPU's dense products by its name; None if it or the dtype is not in the table.

    A MIG slice has the GPU's name but only part of its speed, so it is not in the table either.
    """
    if dtype not in (torch.bfloat16, torch.float16) or "MIG" in name:
        return None
    words = f" {name.replace('-', ' ')} "
    peak = next((peak for part, peak in _PEAKS if f" {part} " in words), None)
    return None if peak is None else peak * _TERA


def measure_rates(products: Sequence[Product], device: torch.device, seconds: float = 0.0) -> list[float]:
    """Return the FLOP/s of each product on ``device``, with the threads of the process.

    The products take turns at least six times, and until ``seconds`` have passed; the fastest timing of each counts.
    Other processes only slow it down, and a peak that is too low would give an MFU above 100 %.
    """
    fastest = [math.inf] * len(products)
    begin, rounds = time.perf_counter(), 0
    while rounds < _FEWEST_ROUNDS or time.perf_counter() - begin < seconds:
        rounds += 1
        for number, product in enumerate(products):
            synchronize(device)
            start = time.perf_counter()
            product()
            synchronize(device)
            fastest[number] = min(fastest[number], time.perf_counter() - start)
    return [product.flops / taken for product, taken in zip(products, fastest, strict=True)]
