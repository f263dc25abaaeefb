r"""How many dense weights are those of a block-sparse model worth? From runs of ``scaling_runs.py``, dense and sparse.

::

    python benchmarks/scaling_runs.py results --corpus py --widths 2 --tokens 524288 --also "" \
        "sparsity.linears=blocks.* sparsity.density=0.25"
    python benchmarks/sparse_fit.py sparse_runs.json

A sparse run is compared with the dense run of the same corpus, width, tokens and seed. The law of the dial
(`hornbook.plan.dial.Law`), scaled to the corpus's dense runs, tells how many weights a dense model with the same loss
would have in its blocks, as a share of those of the dense run: if it is above the density, a sparse weight is worth
more than a dense one (Frantar et al. 2023, arXiv 2309.08520). The exponent k is that of share = density^k.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hornbook.plan.dial import LAW, SIZE_EXPONENT, SIZE_UNIT, num_weights

Run = dict[str, Any]


class Worth(NamedTuple):
    """A sparse run beside its dense twin."""

    run: Run
    density: float
    more: float
    """Its loss over the dense run's, less one."""
    share: float
    """Dense weights of the same loss, as a share of those of the dense run."""

    @property
    def exponent(self) -> float:
        """The k of share = density^k."""
        return math.log(self.share) / math.log(self.density)


def scale_of(dense: Sequence[Run]) -> float:
    """Return by how much a corpus's losses change with the law: the slope of a line through its dense runs."""
    laws = [LAW.loss(run["width"], run["tokens"], run["unique_tokens"]) for run in dense]
    return statistics.linear_regression(laws, [run["bits_per_byte"] for run in dense]).slope


def worths(runs: Sequence[Run]) -> Iterator[Worth]:
    """Yield the sparse runs that have a dense twin, in their order."""
    dense = {_twin(run): run for run in runs if not run["also"]}
    for run in runs:
        options = dict(word.split("=") for word in run["also"].split())
        if _twin(run) not in dense or "sparsity.density" not in options:
            continue
        own = [other for other in dense.values() if other["corpus"] == run["corpus"]]
        twin, density = dense[_twin(run)], float(options["sparsity.density"])
        weights = num_weights(run["width"]) / SIZE_UNIT
        of_size = LAW.size * weights**-SIZE_EXPONENT + (run["bits_per_byte"] - twin["bits_per_byte"]) / scale_of(own)
        share = (of_size / LAW.size) ** (-1 / SIZE_EXPONENT) / weights if of_size > 0 else math.inf
        yield Worth(run, density, run["bits_per_byte"] / twin["bits_per_byte"] - 1, share)


def _twin(run: Run) -> tuple[Any, ...]:
    return run["corpus"], run["width"], run["tokens"], run["seed"]


def main() -> None:
    """Print a row of markdown for each sparse run, and the median exponent of each density."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, help="file of results")
    found = [*worths(json.loads(parser.parse_args().runs.read_text()))]
    print("| corpus | columns | tokens | density | options | loss | more | share |\n|---|---|---|---|---|---|---|---|")
    for run, density, more, share in found:
        words = [word for word in run["also"].split() if not word.startswith(("sparsity.linears", "sparsity.density"))]
        place = f"| {run['corpus']} | {64 * run['width']} | {run['tokens']:,} | {density:g} | {' '.join(words)} "
        print(f"{place}| {run['bits_per_byte']:.4f} | {more:+.1%} | {share:.2f} |")
    for density in sorted({each.density for each in found}):
        exponents = [each.exponent for each in found if each.density == density and each.share < 1]
        if exponents:
            ends = f"{min(exponents):.2f} to {max(exponents):.2f}"
            print(f"density {density:g}: k {statistics.median(exponents):.2f} ({len(exponents)} runs, {ends})")


if __name__ == "__main__":
    main()
