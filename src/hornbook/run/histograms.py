"""Histograms of weights and gradients for the trackers, identical on any number of ranks.

::

    slots of home, in parts ─► minimum and maximum of each tensor ─► over all ranks ─► 64 bins each
    slots of home, in parts ─► counts in these bins ───────────────► sums over ranks

Of copies on several ranks only one counts; padding does not count.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hornbook.engine.home import Home
from hornbook.parallel.world import World
from hornbook.run.training_run import TrainingRun
from hornbook.track.trackers.tracker import Histogram

NUM_BINS = 64
_EXACT = 1 << 22
"""Values per call: ``histc`` counts in fp32."""


def send_histograms_if_due(run: TrainingRun, every_steps: int, count: int) -> None:
    """Send the current step's histograms to the trackers, before its update ``count``."""
    step = run.state.progress.step + 1
    if step % every_steps and step != run.num_steps:
        return
    with run.paused():
        found = measure_histograms(run.state.home, run.world, count)
    if run.trackers is not None:
        run.trackers.histograms(step, found)


def measure_histograms(home: Home, world: World, count: int) -> dict[str, Histogram]:
    """Return a histogram of each trained weight, ``weight/NAME``, and of its gradient, ``gradient/NAME``.

    All ranks call this together and get the same result. A tensor with a non-finite value has no histogram.

    Args:
        home: weights with gradients.
        world: the ranks that hold them.
        count: the number of the update, from 1.
    """
    names = [f"{kind}/{name}" for name in home.tensors()["model"] for kind in ("weight", "gradient")]
    ends = dict.fromkeys(names, (math.inf, -math.inf))
    for name, values in _own_values(home, count):
        low, high = torch.aminmax(values)
        ends[name] = (float(low), float(high))
    rows = world.gather([end for name in names for end in ends[name]])
    lows, highs = (list(zip(*(row[first::2] for row in rows), strict=True)) for first in (0, 1))
    ranges = {
        name: (low, high) if low < high else (low - 0.5, high + 0.5)
        for name, low, high in zip(names, map(min, lows), map(max, highs), strict=True)
        if math.isfinite(low) and math.isfinite(high)
    }
    counts = {name: [0] * NUM_BINS for name in ranges}
    for name, values in _own_values(home, count):
        if name in ranges:
            counts[name] = _counted(values, *ranges[name])
    totals = world.everyone.sum_integers([number for own in counts.values() for number in own])
    return {
        name: Histogram(
            edges=[low + (high - low) * edge / NUM_BINS for edge in range(NUM_BINS)] + [high],
            counts=totals[at * NUM_BINS : (at + 1) * NUM_BINS],
        )
        for at, (name, (low, high)) in enumerate(ranges.items())
    }


def _own_values(home: Home, count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights and gradients that this rank counts, flat, without padding."""
    own = {name: shard.values.numel() for name, shard in home.tensors()["model"].items() if not shard.is_copy}
    for part in home.parts:
        with home.slots(part, count) as slots:
            for slot in slots:
                if size := own.get(slot.name, 0):
                    yield f"weight/{slot.name}", slot.parameter.flatten()[:size]
                    yield f"gradient/{slot.name}", slot.gradient.flatten()[:size]


def _counted(values: Tensor, low: float, high: float) -> list[int]:
    counts = torch.zeros(NUM_BINS, dtype=torch.int64)
    for piece in torch.split(values, _EXACT):
        counts += torch.histc(piece, NUM_BINS, low, high).to("cpu", torch.int64)
    return counts.tolist()
