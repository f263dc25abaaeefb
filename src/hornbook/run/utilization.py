"""Hardware utilization of a run: its model FLOP/s as a share of the device's peak rate (MFU).

::

    tokens per second · flops_per_token of the recipe's model = tflops · 10¹²         tflops / peak = mfu

The peak of a known GPU is the data sheet's for dense bf16 products. For other GPUs, CPUs and fp32 runs it is measured
at the start: a product of the feed-forward's shape, in the run's dtype and threads; on a CPU also in fp32, and the
faster of the two counts. A CPU's products are timed by processor time, so that other processes on the machine lower a
run's MFU and not its peak. Even so, a rate can only be measured too low: other processes take caches, the other half of
a core, and its clock rate. So the fastest rate that this machine ever showed, kept in the user's cache, is the peak,
and runs of a machine are shares of the same one. A resumed run keeps its peak on each device, so that its MFU before
and after compare. Nothing here is saved in checkpoints or draws random numbers.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import torch

from hornbook.config import Recipe
from hornbook.config.description import description_of
from hornbook.parallel.device import dtype_name, synchronize
from hornbook.parallel.world import World
from hornbook.samples.batches import Samples
from hornbook.storage.json_files import keep, kept
from hornbook.storage.system import cpu_model
from hornbook.track.units import flop_rate
from hornbook.wording import counted

_TERA = 1e12
_FLOPS_OF_A_TIMING = 4e8
"""FLOPs of a timed product on a CPU: a few milliseconds."""
_MOST_REPEATS = 100
"""Calls per timing on a CPU; tiny products are dominated by call overhead, and 100 calls are enough to time it."""
_MOST_FLOPS = 2e9
"""Rows of a product on a CPU; larger ones are cut, which hardly changes their rate."""
_FEWEST_ROWS = 64
_LONGEST_SIDE = 8192
"""Elements of a weight matrix on a CPU, so that models larger than memory can be timed."""
_FEWEST_ROUNDS, _ROUNDS_IF_KNOWN = 6, 2  # the first one warms up
_MOST_GAIN = 5.0
"""A kept rate that is higher than this, relative to a measured one, is not believed: no load slows a product so much,
as only processor time counts."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak rate of one rank's device, as ``environment.json`` keeps it."""

    device: str
    """All that it depends on besides the product: processor or GPU, version of PyTorch, threads, dtype of the run."""
    rate: float
    """FLOP/s."""
    source: str
    """Origin of the rate."""

    @classmethod
    def of(cls, document: object) -> "Peak | None":
        """Return the peak in a JSON document; None for anything else."""
        if not isinstance(document, dict) or {key: type(value) for key, value in document.items()} != _KINDS:
            return None
        peak = cls(**document)
        return peak if 0.0 < peak.rate < math.inf else None


_KINDS: Final = {"device": str, "rate": float, "source": str}


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """The conversion of a run's speed into FLOP/s and MFU."""

    flops_per_token: float
    """FLOPs of a training step per token; see ``flops_per_token`` of the recipe's model."""
    peak: Peak
    num_ranks: int = 1
    """Ranks, each of which has this peak."""

    def at(self, tokens_per_second: float) -> dict[str, float]:
        """Return ``tflops``, in 10¹² FLOP/s of all ranks, and ``mfu``, as a share of the peak."""
        rate = self.flops_per_token * tokens_per_second
        return {"tflops": rate / _TERA, "mfu": rate / (self.peak.rate * self.num_ranks)}

    def describe(self) -> str:
        """Return a description of the peak of all ranks."""
        return f"{flop_rate(self.peak.rate * self.num_ranks)}, {self.peak.source}"


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
        """Return the product ``[rows, inner] · [inner, columns]``; draws no random numbers.

        The right factor is a transposed ``[columns, inner]``, as the weight of a linear layer is: the other order takes
        37 times as long in bf16 on a CPU without instructions for it.
        """
        left, right = (
            torch.arange(shape[0] * shape[1], dtype=torch.float32, device=device).sin().view(shape).to(dtype)
            for shape in ((rows, inner), (columns, inner))
        )
        return cls(left=left, right=right.t(), repeats=repeats)

    @property
    def shape(self) -> str:
        """A description: sizes and dtype."""
        (rows, hidden), inner = self.left.shape, self.right.shape[1]
        return f"a {rows:,} × {hidden:,} × {inner:,} product in {dtype_name(self.left.dtype)}"

    @property
    def flops(self) -> float:
        """Floating-point operations of one call."""
        return 2.0 * self.repeats * self.left.numel() * self.right.shape[1]

    def __call__(self) -> int:
        """Compute the product, and return 0, the number of trained tokens."""
        for _ in range(self.repeats):
            torch.mm(self.left, self.right)
        return 0


def measure_utilization(
    recipe: Recipe, samples: Samples, world: World, dtype: torch.dtype, earlier: Iterable[Peak] = ()
) -> Utilization | None:
    """Return the utilization of a run; None for a custom model without ``flops_per_token``.

    Args:
        recipe: complete, with a vocabulary.
        samples: samples, for the mean length of a sequence.
        world: its device is measured on all ranks at once.
        dtype: dtype of the activations.
        earlier: peaks of the run's sessions before it was resumed, the newest first; one of the same device is kept.
    """
    flops = recipe.flops_per_token(samples.tokens_per_sample)
    if flops is None:
        return None
    on_cpu, name, tokens = world.device.type == "cpu", dtype_name(dtype), samples.tokens_per_sample
    gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else ""
    machine = f"{(cpu_model() if on_cpu else gpu) or world.device.type}, PyTorch {torch.__version__}"
    machine += f", {counted(torch.get_num_threads(), 'thread')}" if on_cpu else ""
    device, rate = f"{machine}, {name}", peak_of(gpu, dtype) if gpu else None
    if rate is not None:
        peaks = [Peak(device=device, rate=rate, source=f"dense {name} of {gpu}, by its data sheet")]
    else:
        # A CPU may multiply fp32 faster than 16 bits, and hornbook's operators then widen.
        kinds, tokens = {dtype, torch.float32} if on_cpu else {dtype}, tokens * recipe.training.micro_batch_size
        products = [Product.of(recipe, tokens, kind, world.device) for kind in kinds]
        names = [f"{machine}, {product.shape}" for product in products]
        is_known = all(isinstance(kept("peaks", name), float) for name in names)
        rounds = _ROUNDS_IF_KNOWN if is_known else _FEWEST_ROUNDS
        peaks = [
            Peak(device=device, rate=fastest(name, now), source=f"measured: {product.shape}")
            for name, product, now in zip(names, products, measure_rates(products, world.device, rounds), strict=True)
        ]
    peak = next((peak for peak in earlier if peak.device == device), max(peaks, key=attrgetter("rate")))
    return Utilization(flops_per_token=flops, peak=peak, num_ranks=world.size)


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s of a GPU's dense products by its name; None if it or the dtype is not in the table.

    See `hornbook.plan.devices.card`.
    """
    from hornbook.plan.devices import card

    known = card(name) if dtype in (torch.bfloat16, torch.float16) else None
    return None if known is None else known.flops["bf16" if dtype == torch.bfloat16 else "fp16"]


def measure_rates(
    products: Sequence[Product], device: torch.device, rounds: int = _FEWEST_ROUNDS, seconds: float = 0.0
) -> list[float]:
    """Return the FLOP/s of each product on ``device``, with the threads of the process, by ``compute_clock``.

    The products take turns at least ``rounds`` times, and until ``seconds`` have passed; the fastest timing of each
    counts: a peak that is too low would give an MFU above 100 %.
    """
    shortest = [math.inf] * len(products)
    clock, begin, done = compute_clock(device), time.perf_counter(), 0
    while done < rounds or time.perf_counter() - begin < seconds:
        done += 1
        for number, product in enumerate(products):
            synchronize(device)
            start = clock()
            product()
            synchronize(device)
            shortest[number] = min(shortest[number], clock() - start)
    return [product.flops / taken for product, taken in zip(products, shortest, strict=True)]


def fastest(product: str, rate: float) -> float:
    """Return the fastest rate of a product that was measured on this machine, and keep it.

    Args:
        product: all that its speed depends on: processor, version of PyTorch, threads, dtype, shape.
        rate: FLOP/s measured now.
    """
    before = kept("peaks", product)
    if isinstance(before, float) and rate <= before <= _MOST_GAIN * rate:
        return before
    keep("peaks", product, rate)
    return rate


def compute_clock(device: torch.device) -> Callable[[], float]:
    """Return the clock of computations, in seconds: on a CPU the processor time of each of PyTorch's threads.

    Other processes do not advance it; a wait for memory or another thread does. On other devices it is the wall's.
    """
    if device.type != "cpu":
        return time.perf_counter
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        return time.thread_time  # without those that read ahead
    return lambda: time.process_time() / num_threads
