"""Time block-sparse linear layers, compared with PyTorch's dense layers of the same dtype.

::

    up   [N, in] -> [N, out]      forward, gradient of the input, gradient of the weights: each dense and sparse
    down [N, out] -> [N, in]      the same
    feed-forward step             down(gelu(up(x))), its backward pass, AdamW
    pattern update                a step of a GPT with an update of its patterns, compared with a step without

Dense and sparse calls alternate, so that other load affects both; results are medians. A single CPU thread is measured
by processor time, on which other processes have little effect.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config import load_recipe
from hornbook.measure.throughput import hornbook_step
from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.ops.block_sparse import KERNELS
from hornbook.parallel.device import dtype_name, synchronize
from hornbook.parallel.world import World

_UPDATE_INTERVAL = 100
"""Steps between pattern updates for ``PatternUpdate.share``: the default of ``sparsity.update_interval``."""
_SEQUENCE_LENGTH = 256

Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pair of linear layers, up and down, and their input."""

    num_in: int
    num_out: int
    num_tokens: int
    block_size: int
    density: float
    dtype: torch.dtype
    """Dtype of the activations; weights are fp32 and cast to it."""
    device: torch.device
    kernel: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The duration of one call, in seconds."""

    median: float
    spread: float
    """Interquartile range divided by the median."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The times of a case, dense and sparse."""

    kernel: str
    reason: str
    dense: Mapping[str, Timing]
    """Times of ``forward``, ``input_gradient``, ``weight_gradient`` (of both layers together) and ``feed_forward``."""
    sparse: Mapping[str, Timing]
    products_ratio: float
    """Dense divided by sparse time of the three products."""
    feed_forward_ratio: float


@dataclass(frozen=True, kw_only=True)
class PatternUpdate:
    """The cost of RigL's pattern updates in a GPT of one layer whose linear layers are all sparse."""

    step_seconds: float
    """Duration of a step without an update."""
    update_seconds: float
    """Additional time of an update: dense gradients, scores, choice, and moving blocks and moments."""
    share: float
    """Share of the time of a run with an update every 100 steps."""


def measure_case(case: Case, rounds: int) -> Speed:
    """Time the products and the feed-forward step of a case, ``rounds`` times each after one warm-up call.

    Raises:
        UserError: the block size does not divide the sizes, no block is left, or the kernel is not available.
    """
    up, down = _maps(case)
    choice = up.kernel(case.dtype)
    calls = {**_products(case, up, down), **_feed_forwards(case, up, down)}
    timings = interleaved(calls, case.device, rounds)
    dense = {name: timings[f"dense {name}"] for name in _names(calls)}
    sparse = {name: timings[f"sparse {name}"] for name in _names(calls)}
    return Speed(
        kernel=choice.kernel,
        reason=choice.reason,
        dense=dense,
        sparse=sparse,
        products_ratio=_products_seconds(dense) / _products_seconds(sparse),
        feed_forward_ratio=dense["feed_forward"].median / sparse["feed_forward"].median,
    )


def measure_update(case: Case, rounds: int) -> PatternUpdate:
    """Time training steps of a GPT of the case's sizes with RigL's update after every step, and without updates.

    Raises:
        UserError: the sizes are not valid for a GPT.
    """
    num_heads = case.num_in // 64 if case.num_in % 64 == 0 else 1
    sequences = max(1, case.num_tokens // _SEQUENCE_LENGTH)
    options = {
        "model.num_layers": 1,
        "model.hidden_size": case.num_in,
        "model.feed_forward_size": case.num_out,
        "model.num_heads": num_heads,
        "model.vocab_size": 256,
        "training.micro_batch_size": sequences,
        "training.global_batch_size": sequences,
        "precision.compute": dtype_name(case.dtype),
        "sparsity.block_size": case.block_size,
        "sparsity.density": case.density,
        "sparsity.kernel": case.kernel,
        "sparsity.update_interval": 1,
    }
    given = [f"--{key}={value}" for key, value in options.items()]
    world, steps = World(device=case.device), {}
    for rule in ("static", "rigl"):
        recipe = load_recipe("sparse-demo", [*given, f"--sparsity.update={rule}"], require_data=False).recipe
        steps[rule] = hornbook_step(recipe, world)
    found = interleaved(steps, case.device, rounds)
    step, update = found["static"].median, max(found["rigl"].median - found["static"].median, 0.0)
    share = update / (_UPDATE_INTERVAL * step + update)
    return PatternUpdate(step_seconds=step, update_seconds=update, share=share)


def interleaved(calls: Mapping[str, Call], device: torch.device, rounds: int) -> dict[str, Timing]:
    """Time calls, alternating, ``rounds`` times each after one warm-up call."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(1 + rounds):
        for name, call in calls.items():
            start = clock()
            call()
            synchronize(device)
            if number:
                seconds[name].append(clock() - start)
    return {name: _timing(found) for name, found in seconds.items()}


def _timing(seconds: list[float]) -> Timing:
    middle = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return Timing(median=middle, spread=(high - low) / middle)


def _names(calls: Mapping[str, Call]) -> list[str]:
    return [name.removeprefix("dense ") for name in calls if name.startswith("dense ")]


def _products_seconds(timings: Mapping[str, Timing]) -> float:
    return sum(timing.median for name, timing in timings.items() if name != "feed_forward")


def _maps(case: Case) -> tuple[BlockSparseLinear, BlockSparseLinear]:
    with case.device:
        up, down = (
            BlockSparseLinear(*sizes, block_size=case.block_size, density=case.density, kernel=case.kernel, name=name)
            for name, sizes in (("up", (case.num_in, case.num_out)), ("down", (case.num_out, case.num_in)))
        )
    return up, down


def _random(case: Case, num_features: int) -> Tensor:
    return torch.randn(case.num_tokens, num_features, device=case.device).to(case.dtype)


def _products(case: Case, up: BlockSparseLinear, down: BlockSparseLinear) -> dict[str, Call]:
    """Return the three products of both layers, dense and sparse, with weights already cast."""
    kernel, size = KERNELS[up.kernel(case.dtype).kernel], case.block_size
    narrow, wide = _random(case, case.num_in), _random(case, case.num_out)
    sides = ((up, narrow, wide), (down, wide, narrow))
    maps = [(x, y, layer.values.detach().to(case.dtype), layer.pattern) for layer, x, y in sides]
    weights = [(x, y, layer.to_dense().to(case.dtype)) for layer, x, y in sides]
    return {
        "dense forward": lambda: [x @ weight.t() for x, _, weight in weights],
        "sparse forward": lambda: [kernel.forward(kernel.arrange(x), values, at, None) for x, _, values, at in maps],
        "dense input_gradient": lambda: [dy @ weight for _, dy, weight in weights],
        "sparse input_gradient": lambda: [kernel.input_gradient(dy, values, at) for _, dy, values, at in maps],
        "dense weight_gradient": lambda: [dy.t() @ x for x, dy, _ in weights],
        "sparse weight_gradient": lambda: [kernel.weight_gradient(dy, x, at, size) for x, dy, _, at in maps],
    }


def _feed_forwards(case: Case, up: BlockSparseLinear, down: BlockSparseLinear) -> dict[str, Call]:
    dense = [_Dense(layer.to_dense()) for layer in (up, down)]
    return {
        "dense feed_forward": _step(case, nn.Sequential(dense[0], nn.GELU(), dense[1])),
        "sparse feed_forward": _step(case, nn.Sequential(up, nn.GELU(), down)),
    }


class _Dense(nn.Module):
    """PyTorch's linear layer with fp32 parameters that are cast to the dtype of the activations."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(weight.new_zeros(len(weight)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def _step(case: Case, model: nn.Module) -> Call:
    """Return a training step of a feed-forward on random tokens and gradients."""
    x, gradient = _random(case, case.num_in).requires_grad_(), _random(case, case.num_in)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        model(x).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None

    return step
