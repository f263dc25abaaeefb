"""Fit the loss over size and tokens to the results of ``scaling_runs.py``: approach 3 of Hoffmann et al. (2022).

::

    cd benchmarks
    python scaling_fit.py scaling_runs.json --resamples ../src/hornbook/plan/scaling_resamples.py

The loss of a corpus c in bits per byte is scale_c (E_c + law), with the law of `hornbook.plan.dial.Law`. As Besiroglu
et al. (2024, arXiv 2404.10102) found necessary, the Huber losses are summed, not averaged, and minimized to a small
tolerance from several starts. Intervals are those of a bootstrap over the runs, whose fits the dial keeps for its
predictions. Another fit leaves out the longest runs of each width and predicts them. The shortest runs of width 1 are
pilots, which tell how to extrapolate another corpus. All together take some minutes.
"""

import argparse
import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from hornbook.plan.dial import (
    EARLY_TOKENS,
    FITTED,
    LAW,
    PILOTS,
    SIZE_EXPONENT,
    SIZE_UNIT,
    TOKENS_UNIT,
    Corpus,
    Law,
    Pilot,
    num_flops,
    num_weights,
    pilot_share,
)

_DELTA = 1e-2
_STARTS = {"beta": (0.25, 0.45), "size": (0.05, 0.3), "repeats": (2.0, 6.0)}
_RESAMPLES = 24
_VOCABULARY = 8192
_LEAST_TOKENS = 2**18  # of a run that the law is fitted to
_LEAST_COST = 4  # of a run that is predicted, in that of its pilot
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
        values = [math.log(self.shared[name]) for name in FITTED]
        corpora = [*map(math.log, self.floors), *map(math.log, self.scales)]
        return _log_loss(torch.tensor(values + corpora, dtype=torch.float64), _columns(runs, self.corpora)).exp()


def fit(runs: Sequence[Run], starts: Mapping[str, Sequence[float]] = _STARTS) -> Fit:
    """Return the best fit over all starts."""
    corpora = sorted({run["corpus"] for run in runs})
    columns = _columns(runs, corpora)
    target = torch.tensor([run["bits_per_byte"] for run in runs], dtype=torch.float64).log()
    best: tuple[float, torch.Tensor] | None = None
    for shared in itertools.product(*starts.values()):
        start = [*map(math.log, (1.0, *shared)), *[math.log(0.7)] * len(corpora)]
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
    floors, scales = torch.tensor(values[len(FITTED) :]).chunk(2)
    scales = scales / scales.log().mean().exp()
    return Fit(
        shared=dict(zip(FITTED, values, strict=False)),
        corpora=corpora,
        floors=floors.tolist(),
        scales=scales.tolist(),
        objective=best[0],
    )


def _columns(runs: Sequence[Run], corpora: Sequence[str]) -> dict[str, torch.Tensor]:
    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return {
        "weights": column([num_weights(run["width"]) for run in runs]).log(),
        "tokens": column([run["tokens"] for run in runs]),
        "unique": column([run["unique_tokens"] for run in runs]),
        "corpus": torch.tensor([corpora.index(run["corpus"]) for run in runs]),
    }


def _log_loss(point: torch.Tensor, columns: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logarithms of the losses; ``point`` has those of the parameters."""
    data, beta, size, repeats = point[: len(FITTED)]
    floors, scales = point[len(FITTED) :].chunk(2)
    again = (columns["tokens"] / columns["unique"] - 1).clamp(min=0) / repeats.exp()
    worth = torch.minimum(columns["tokens"], columns["unique"]) - columns["unique"] * repeats.exp() * torch.expm1(
        -again
    )
    scale = scales - scales.mean()
    of_tokens = data - beta.exp() * (worth.log() - math.log(TOKENS_UNIT))
    of_size = size - SIZE_EXPONENT * (columns["weights"] - math.log(SIZE_UNIT))
    law = torch.logaddexp(of_tokens, of_size)
    return scale[columns["corpus"]] + torch.logaddexp(floors[columns["corpus"]], law)


def main() -> None:
    """Print the fit, intervals of its exponents, and how well it predicts runs that it was not fitted to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, help="file of results")
    parser.add_argument("--resamples", type=Path, metavar="FILE", help="module to write the bootstrap's fits to")
    given = parser.parse_args()
    everything: list[Run] = json.loads(given.runs.read_text())
    runs = [run for run in everything if run["tokens"] >= _LEAST_TOKENS]
    found = fit(runs)
    print(f"{len(runs)} runs", {name: float(f"{value:.4g}") for name, value in found.shared.items()})
    for corpus, floor, scale in zip(found.corpora, found.floors, found.scales, strict=True):
        print(f"{corpus}: scale {scale:.4f}, floor {floor:.4f}")
    _report("of all runs", found, runs)
    longest = {(run["corpus"], run["width"]): 0 for run in runs}
    for run in runs:
        longest[run["corpus"], run["width"]] = max(longest[run["corpus"], run["width"]], run["tokens"])
    held_out = [run for run in runs if run["tokens"] == longest[run["corpus"], run["width"]] > min(longest.values())]
    lengths = Counter((run["corpus"], run["width"]) for run in runs if run not in held_out)
    held_out = [run for run in held_out if lengths[run["corpus"], 1] > 1]  # fewer do not tell floor and scale
    _report("held out, the longest of each width", fit([run for run in runs if run not in held_out]), held_out)
    for tokens in PILOTS:
        _report_pilots(replace(LAW, **found.shared), everything, tokens)
    few = {name: values[:1] for name, values in _STARTS.items()}
    draw = torch.Generator().manual_seed(0)
    again = [
        fit([runs[i] for i in torch.randint(len(runs), (len(runs),), generator=draw)], few) for _ in range(_RESAMPLES)
    ]
    for name in found.shared:
        values = sorted(each.shared[name] for each in again)
        print(f"{name}: {values[_RESAMPLES // 10]:.4g} to {values[-1 - _RESAMPLES // 10]:.4g}, 80 % of resamples")
    if given.resamples is not None:
        _write_resamples([replace(LAW, **each.shared) for each in again], everything, given.resamples)


def pilots_of(runs: Sequence[Run], tokens: int) -> dict[str, tuple[Pilot, list[Run]]]:
    """Return by corpus its pilot of a length, in bits per byte, and the runs that take several times its FLOPs."""
    found = dict[str, tuple[Pilot, list[Run]]]()
    for corpus in sorted({run["corpus"] for run in runs}):
        own = [run for run in runs if run["corpus"] == corpus]
        losses = {run["tokens"]: run["bits_per_byte"] for run in own if run["width"] == 1}
        longer = [run for run in own if run["tokens"] > tokens and _cost(run) >= _LEAST_COST * tokens]
        if longer and {EARLY_TOKENS, tokens} <= losses.keys():
            found[corpus] = Pilot(tokens=tokens, early=losses[EARLY_TOKENS], late=losses[tokens]), longer
    return found


def _cost(run: Run) -> float:
    """Return the tokens on which the smallest model trains with the FLOPs of a run."""
    return float(run["tokens"] * num_flops(run["width"], _VOCABULARY) / num_flops(1, _VOCABULARY))


def pilot_line(law: Law, runs: Sequence[Run], tokens: int) -> tuple[float, float]:
    """Return how longer runs follow from a pilot: the coefficients of `hornbook.plan.dial.Corpus.of`."""
    shares, seen = list[float](), list[float]()
    for pilot, longer in pilots_of(runs, tokens).values():
        unique = longer[0]["unique_tokens"]
        start = law.loss(1, tokens, unique)
        shares.append(
            statistics.mean(
                (1 - run["bits_per_byte"] / pilot.late) / (1 - law.loss(run["width"], run["tokens"], unique) / start)
                for run in longer
            )
        )
        seen.append(pilot_share(pilot, unique, law))
    slope, first = numpy.polyfit(seen, shares, 1).tolist()
    return first, slope


@dataclass(frozen=True)
class Prediction:
    """A run's loss, predicted from a pilot's late loss, in bits per byte."""

    run: Run
    late: float
    loss: float

    @property
    def error(self) -> float:
        """Share of the run's loss."""
        return float(self.loss / self.run["bits_per_byte"] - 1)

    @property
    def fall_error(self) -> float:
        """Share of the predicted fall below the pilot's loss, as `hornbook.plan.dial.PilotFit.error`."""
        return float((self.loss - self.run["bits_per_byte"]) / (self.late - self.loss))


def predict_left_out(law: Law, runs: Sequence[Run], tokens: int) -> dict[str, list[Prediction]]:
    """Return by corpus the predictions of its longer runs, whose line is fitted to the other corpora."""
    found = dict[str, list[Prediction]]()
    for corpus, (pilot, longer) in pilots_of(runs, tokens).items():
        unique = longer[0]["unique_tokens"]
        line = pilot_line(law, [run for run in runs if run["corpus"] != corpus], tokens)
        fitted = Corpus.of(pilot, unique, law, line)
        found[corpus] = [
            Prediction(run, pilot.late, fitted.floor + fitted.scale * law.loss(run["width"], run["tokens"], unique))
            for run in longer
        ]
    return found


def root_mean_square(errors: Iterable[Iterable[float]]) -> float:
    """Return that of the corpora's mean errors."""
    return math.sqrt(statistics.mean(statistics.mean(each) ** 2 for each in errors))


def _report_pilots(law: Law, runs: Sequence[Run], tokens: int) -> None:
    """Print the line for a length of pilots, and how well it predicts corpora that it was not fitted to."""
    print(f"pilots of {tokens:,} tokens:", *(f"{value:.4g}" for value in pilot_line(law, runs, tokens)))
    left_out = predict_left_out(law, runs, tokens)
    for corpus, own in left_out.items():
        errors = [each.error for each in own]
        print(f"error of {corpus}, left out of its own prediction: {min(errors):+.1%} to {max(errors):+.1%}")
    of_loss = root_mean_square([each.error for each in own] for own in left_out.values())
    of_fall = root_mean_square([each.fall_error for each in own] for own in left_out.values())
    print(f"root mean square of {len(left_out)} corpora: {of_loss:.1%} of the loss, {of_fall:.1%} of its fall")


def _write_resamples(laws: Sequence[Law], runs: Sequence[Run], path: Path) -> None:
    rows = [
        [getattr(law, name) for name in FITTED]
        + [value for tokens in PILOTS for value in pilot_line(law, runs, tokens)]
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
