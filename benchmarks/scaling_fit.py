"""Fit the loss over size and tokens to the results of ``scaling_runs.py``: approach 3 of Hoffmann et al. (2022).

::

    cd benchmarks
    python scaling_fit.py scaling_runs.json text_runs.json --resamples ../src/hornbook/plan/scaling_resamples.py

The loss of a corpus c in bits per byte is scale_c (E_c + A / N^alpha + B / D'^beta), where D' is what D tokens are
worth of which only U are different (`hornbook.plan.dial.Law`). As Besiroglu et al. (2024, arXiv 2404.10102) found
necessary, the Huber losses are summed, not averaged, and minimized to a small tolerance from many starts. Intervals
are those of a bootstrap over the runs, whose fits the dial keeps for its predictions. Another fit leaves out the
longest runs of each depth and predicts them. The shortest runs on further corpora, the pilots, tell how to extrapolate
others. All together take some minutes.
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

from hornbook.plan.dial import EARLY_TOKENS, LAW, PILOTS, Corpus, Law, Pilot, num_weights, pilot_share

_DELTA = 1e-3
_STARTS = {"alpha": (0.15, 0.35), "beta": (0.25, 0.4), "repeats": (3.0, 15.0)}
_RESAMPLES = 24
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
    texts: list[Run] = json.loads(given.texts.read_text())
    runs = json.loads(given.runs.read_text()) + [run for run in texts if run["tokens"] >= max(PILOTS)]
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
    for tokens in PILOTS:
        _report_pilots(replace(LAW, **found.shared), texts, tokens)
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


def pilots_of(runs: Sequence[Run], tokens: int) -> dict[str, tuple[Pilot, list[Run]]]:
    """Return by corpus its pilot of a length, in bits per byte, and its longer runs."""
    found = dict[str, tuple[Pilot, list[Run]]]()
    for corpus in sorted({run["corpus"] for run in runs}):
        own = [run for run in runs if run["corpus"] == corpus]
        losses = {run["tokens"]: run["bits_per_byte"] for run in own if run["depth"] == 1}
        pilot = Pilot(tokens=tokens, early=losses[EARLY_TOKENS], late=losses[tokens])
        found[corpus] = pilot, [run for run in own if run["tokens"] > max(PILOTS)]
    return found


def pilot_line(law: Law, runs: Sequence[Run], tokens: int) -> tuple[float, float]:
    """Return how longer runs follow from a pilot: the coefficients of `hornbook.plan.dial.Corpus.of`."""
    shares, seen = list[float](), list[float]()
    for pilot, longer in pilots_of(runs, tokens).values():
        unique = longer[0]["unique_tokens"]
        start = law.loss(1, tokens, unique)
        shares.append(
            statistics.mean(
                (1 - run["bits_per_byte"] / pilot.late) / (1 - law.loss(run["depth"], run["tokens"], unique) / start)
                for run in longer
            )
        )
        seen.append(pilot_share(pilot, unique, law))
    slope, first = numpy.polyfit(seen, shares, 1).tolist()
    return first, slope


def pilot_errors(law: Law, runs: Sequence[Run], tokens: int) -> dict[str, list[float]]:
    """Return by corpus the errors of its longer runs' predictions, whose line is fitted to the other corpora."""
    found = dict[str, list[float]]()
    for corpus, (pilot, longer) in pilots_of(runs, tokens).items():
        unique = longer[0]["unique_tokens"]
        line = pilot_line(law, [run for run in runs if run["corpus"] != corpus], tokens)
        fitted = Corpus.of(pilot, unique, law, line)
        found[corpus] = [
            (fitted.floor + fitted.scale * law.loss(run["depth"], run["tokens"], unique)) / run["bits_per_byte"] - 1
            for run in longer
        ]
    return found


def root_mean_square(errors: Mapping[str, Sequence[float]]) -> float:
    """Return that of the corpora's mean errors."""
    return math.sqrt(statistics.mean(statistics.mean(each) ** 2 for each in errors.values()))


def _report_pilots(law: Law, runs: Sequence[Run], tokens: int) -> None:
    """Print the line for a length of pilots, and how well it predicts corpora that it was not fitted to."""
    print(f"pilots of {tokens:,} tokens:", *(f"{value:.4g}" for value in pilot_line(law, runs, tokens)))
    errors = pilot_errors(law, runs, tokens)
    for corpus, own in errors.items():
        print(f"error of {corpus}, left out of its own prediction: {min(own):+.1%} to {max(own):+.1%}")
    print(f"error of a corpus, root mean square of {len(errors)}: {root_mean_square(errors):.1%}")


def _write_resamples(laws: Sequence[Law], texts: Sequence[Run], path: Path) -> None:
    rows = [
        [law.size, law.alpha, law.data, law.beta, law.repeats]
        + [value for tokens in PILOTS for value in pilot_line(law, texts, tokens)]
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
