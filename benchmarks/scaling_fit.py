"""Fit the loss over size and tokens to the results of ``scaling_runs.py``: approach 3 of Hoffmann et al. (2022).

::

    python benchmarks/scaling_fit.py benchmarks/scaling_runs.json --resamples src/hornbook/plan/scaling_resamples.py

The loss of a corpus c in bits per byte is scale_c (E_c + A / N^alpha + B / D'^beta), where D' is what D tokens are
worth of which only U are different (`hornbook.plan.dial.Law`). As Besiroglu et al. (2024, arXiv 2404.10102) found
necessary, the Huber losses are summed, not averaged, and minimized to a small tolerance from many starts. Intervals
are those of a bootstrap over the runs, whose fits the dial keeps for its predictions. Other fits leave out the longest
runs of each depth, or a corpus, and predict them. All together take some minutes.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from hornbook.plan.dial import num_weights

_DELTA = 1e-3
_STARTS = {"alpha": (0.15, 0.35), "beta": (0.25, 0.4), "repeats": (3.0, 15.0)}
_RESAMPLES = 24
_COMPRESSED = {"books": 2.534, "owt": 2.595, "py": 1.590}  # bits per byte of xz, see `hornbook.measure.dial`

Run = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """The parameters: those shared by the corpora, and the floor and scale of each corpus."""

    shared: dict[str, float]
    corpora: list[str]
    floors: list[float]
    scales: list[float]
    objective: float

    def predict(self, runs: Sequence[Run]) -> torch.Tensor:
        """Return the losses of runs in bits per byte, float64[runs]."""
        values = [math.log(self.shared[name]) for name in ("size", "alpha", "data", "beta", "repeats")]
        corpora = [*map(math.log, self.floors), *map(math.log, self.scales)]
        return _log_loss(torch.tensor(values + corpora, dtype=torch.float64), _columns(runs, self.corpora)).exp()


def fit(runs: Sequence[Run], starts: Mapping[str, Sequence[float]] = _STARTS) -> Fit:
    """Return the best fit over all starts."""
    corpora = sorted({run["corpus"] for run in runs})
    columns = _columns(runs, corpora)
    target = torch.tensor([run["bits_per_byte"] for run in runs], dtype=torch.float64).log()
    best: tuple[float, torch.Tensor] | None = None
    for alpha, beta, repeats in itertools.product(*starts.values()):
        floors = [math.log(0.7)] * len(corpora)
        start = [math.log(3.0), math.log(alpha), math.log(40.0), math.log(beta), math.log(repeats), *floors]
        point = torch.tensor([*start, *[0.0] * len(corpora)], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [point], max_iter=2000, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
        )

        def objective(point: torch.Tensor = point, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            value = torch.nn.functional.huber_loss(_log_loss(point, columns), target, delta=_DELTA, reduction="sum")
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(objective)  # type: ignore[no-untyped-call]
        value = objective().item()
        if math.isfinite(value) and (best is None or value < best[0]):
            best = value, point.detach()
    assert best is not None, "a start converges"
    values = best[1].exp().tolist()
    scales = torch.tensor(values[5 + len(corpora) :])
    scales = scales / scales.log().mean().exp()
    return Fit(
        shared=dict(zip(("size", "alpha", "data", "beta", "repeats"), values[:5], strict=True)),
        corpora=corpora,
        floors=values[5 : 5 + len(corpora)],
        scales=scales.tolist(),
        objective=best[0],
    )


def _columns(runs: Sequence[Run], corpora: Sequence[str]) -> dict[str, torch.Tensor]:
    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return {
        "weights": column([num_weights(run["depth"]) for run in runs]).log(),
        "tokens": column([run["tokens"] for run in runs]),
        "unique": column([run["unique_tokens"] for run in runs]),
        "corpus": torch.tensor([corpora.index(run["corpus"]) for run in runs]),
    }


def _log_loss(point: torch.Tensor, columns: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logarithms of the losses; ``point`` has those of the parameters."""
    size, alpha, data, beta, repeats = point[:5]
    floors, scales = point[5:].chunk(2)
    again = (columns["tokens"] / columns["unique"] - 1).clamp(min=0) / repeats.exp()
    worth = torch.minimum(columns["tokens"], columns["unique"]) - columns["unique"] * repeats.exp() * torch.expm1(
        -again
    )
    scale = scales - scales.mean()
    terms = [floors[columns["corpus"]], size - alpha.exp() * columns["weights"], data - beta.exp() * worth.log()]
    return scale[columns["corpus"]] + torch.stack([term.expand_as(terms[1]) for term in terms]).logsumexp(0)


def main() -> None:
    """Print the fit, intervals of its exponents, and how well it predicts runs that it was not fitted to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, help="file of results")
    parser.add_argument("--resamples", type=Path, metavar="FILE", help="module to write the bootstrap's fits to")
    given = parser.parse_args()
    runs: list[Run] = json.loads(given.runs.read_text())
    found = fit(runs)
    print(f"{len(runs)} runs", {name: float(f"{value:.4g}") for name, value in found.shared.items()})
    for corpus, floor, scale in zip(found.corpora, found.floors, found.scales, strict=True):
        print(f"{corpus}: scale {scale:.4f}, floor {floor:.4f}")
    _report("of all runs", found, runs)
    longest = {(run["corpus"], run["depth"]): 0 for run in runs}
    for run in runs:
        longest[run["corpus"], run["depth"]] = max(longest[run["corpus"], run["depth"]], run["tokens"])
    held_out = [run for run in runs if run["tokens"] == longest[run["corpus"], run["depth"]] > min(longest.values())]
    _report("held out, the longest of each depth", fit([run for run in runs if run not in held_out]), held_out)
    few = {name: values[:1] for name, values in _STARTS.items()}
    for corpus in found.corpora:
        own = [run for run in runs if run["corpus"] == corpus]
        _report(f"of {corpus}, left out", _elsewhere(corpus, fit([run for run in runs if run not in own], few)), own)
    draw = torch.Generator().manual_seed(0)
    again = [
        fit([runs[i] for i in torch.randint(len(runs), (len(runs),), generator=draw)], few) for _ in range(_RESAMPLES)
    ]
    for name in found.shared:
        values = sorted(each.shared[name] for each in again)
        print(f"{name}: {values[_RESAMPLES // 10]:.4g} to {values[-1 - _RESAMPLES // 10]:.4g}, 80 % of resamples")
    if given.resamples is not None:
        _write_resamples(again, given.resamples)


def _lines(found: Fit) -> tuple[list[float], list[float]]:
    """Return floor and scale as lines over the bits per byte of xz, of each the value at 0 and the slope."""
    compressed = [_COMPRESSED[corpus] for corpus in found.corpora]
    floors = [scale * floor for scale, floor in zip(found.scales, found.floors, strict=True)]
    floor, scale = (numpy.polyfit(compressed, values, 1)[::-1].tolist() for values in (floors, found.scales))
    return floor, scale


def _elsewhere(corpus: str, found: Fit) -> Fit:
    """Return a fit to other corpora for one of which only the bits per byte of xz are known."""
    floor, scale = (max(0.1, at + slope * _COMPRESSED[corpus]) for at, slope in _lines(found))
    return replace(found, corpora=[corpus], floors=[floor / scale], scales=[scale])


def _write_resamples(fits: Sequence[Fit], path: Path) -> None:
    rows = [[*each.shared.values(), *itertools.chain(*_lines(each))] for each in fits]
    text = path.read_text()
    start = text.index(" = (\n") + len(" = (\n")
    lines = "".join(f"    ({', '.join(f'{value:.4g}' for value in row)}),\n" for row in rows)
    path.write_text(text[:start] + lines + text[text.index("\n)\n", start) + 1 :])


def _report(what: str, found: Fit, runs: Sequence[Run]) -> None:
    errors = [
        predicted / run["bits_per_byte"] - 1 for predicted, run in zip(found.predict(runs).tolist(), runs, strict=True)
    ]
    rms = math.sqrt(statistics.mean(error**2 for error in errors))
    print(f"error {what}, {len(runs)}: {rms:.2%} (root mean square), at most {max(map(abs, errors)):.2%}")


if __name__ == "__main__":
    main()
