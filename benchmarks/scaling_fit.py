"""Fit the loss over size and tokens to the results of ``scaling_runs.py``: approach 3 of Hoffmann et al. (2022).

::

    cd benchmarks
    python scaling_fit.py scaling_runs.json text_runs.json --resamples ../src/hornbook/plan/scaling_resamples.py

The loss of a corpus c in bits per byte is scale_c (E_c + A / N^alpha + B / D'^beta), where D' is what D tokens are
worth of which only U are different (`hornbook.plan.dial.Law`). As Besiroglu et al. (2024, arXiv 2404.10102) found
necessary, the Huber losses are summed, not averaged, and minimized to a small tolerance from many starts. Intervals
are those of a bootstrap over the runs, whose fits the dial keeps for its predictions. Another fit leaves out the
longest runs of each depth and predicts them. Runs on further corpora tell how floor and scale depend on the text. All
together take some minutes.
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

from hornbook.plan.dial import LAW, Corpus, Law, TextBits, num_weights

_DELTA = 1e-3
_STARTS = {"alpha": (0.15, 0.35), "beta": (0.25, 0.4), "repeats": (3.0, 15.0)}
_RESAMPLES = 24
TEXTS = {
    "anarchism": TextBits(compressed=2.7338, bigram=1.7268),
    "books": TextBits(compressed=3.0168, bigram=2.2271),
    "cpp": TextBits(compressed=0.9342, bigram=1.7850),
    "linux": TextBits(compressed=2.3705, bigram=2.5439),
    "owt-2": TextBits(compressed=3.0277, bigram=2.2788),
    "py-2": TextBits(compressed=1.7370, bigram=1.8009),
}
"""By `hornbook.measure.text_bits`; the corpora ``owt`` and ``py`` of the law were not kept."""

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
    parser.add_argument("texts", type=Path, help="file of results on further corpora")
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
    texts = json.loads(given.texts.read_text()) + [run for run in runs if run["corpus"] in TEXTS]
    _report_texts(replace(LAW, **found.shared), texts)
    few = {name: values[:1] for name, values in _STARTS.items()}
    draw = torch.Generator().manual_seed(0)
    again = [
        fit([runs[i] for i in torch.randint(len(runs), (len(runs),), generator=draw)], few) for _ in range(_RESAMPLES)
    ]
    for name in found.shared:
        values = sorted(each.shared[name] for each in again)
        print(f"{name}: {values[_RESAMPLES // 10]:.4g} to {values[-1 - _RESAMPLES // 10]:.4g}, 80 % of resamples")
    if given.resamples is not None:
        _write_resamples([replace(LAW, **each.shared) for each in again], texts, given.resamples)


def text_lines(law: Law, runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Return how level and slope depend on a text: the coefficients of `hornbook.plan.dial.Corpus.of`."""
    corpora = sorted({run["corpus"] for run in runs})
    levels, slopes = list[float](), list[float]()
    for corpus in corpora:
        own = [run for run in runs if run["corpus"] == corpus]
        losses = [law.loss(run["depth"], run["tokens"], run["unique_tokens"]) for run in own]
        slope, floor = numpy.polyfit(losses, [run["bits_per_byte"] for run in own], 1)
        levels.append(floor + slope)
        slopes.append(slope / levels[-1])
    texts = [TEXTS[corpus] for corpus in corpora]
    measures = [(1.0, math.log(text.compressed), math.log(text.bigram)) for text in texts]
    level = numpy.linalg.lstsq(measures, numpy.log(levels))[0].tolist()
    return level, numpy.polyfit([text.compressed for text in texts], slopes, 1)[::-1].tolist()


def _report_texts(law: Law, runs: Sequence[Run]) -> None:
    """Print how a corpus's losses depend on its text, and how well other corpora predict them."""
    print("level, slope of texts:", *([float(f"{value:.4g}") for value in line] for line in text_lines(law, runs)))
    means = list[float]()
    for corpus in sorted({run["corpus"] for run in runs}):
        own = [run for run in runs if run["corpus"] == corpus]
        found = Corpus.of(TEXTS[corpus], *text_lines(law, [run for run in runs if run not in own]))
        errors = [
            (found.floor + found.scale * law.loss(run["depth"], run["tokens"], run["unique_tokens"]))
            / run["bits_per_byte"]
            - 1
            for run in own
        ]
        print(f"error of {corpus}, left out of its own prediction: {min(errors):+.1%} to {max(errors):+.1%}")
        means.append(statistics.mean(errors))
    print(f"error of a corpus, root mean square of {len(means)}: {math.sqrt(statistics.mean(e**2 for e in means)):.1%}")


def _write_resamples(laws: Sequence[Law], texts: Sequence[Run], path: Path) -> None:
    rows = [
        [law.size, law.alpha, law.data, law.beta, law.repeats, *itertools.chain(*text_lines(law, texts))]
        for law in laws
    ]
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
