"""Try the promises of hornbook: deaths, damage, bad inputs, equality; a table of what was tried and what failed.

::

    python tools/reliability --jobs 2                 the whole suite on two cores, some hours; run it again to go on
    python tools/reliability --short                  some minutes
    python tools/reliability deaths --trials 40 --seed 7
    python tools/reliability --table                  only the table of the results so far
    python tools/reliability --planted                faults planted in a copy of the tree: does the suite notice?

Results go to ``build/reliability``: a row a trial in ``PART.jsonl``, and ``table.md`` and ``table.json``. The exit
code is 1 if a promise was broken; the folder of such a trial is kept in ``build/reliability/work``.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from parts import PARTS, run_named
from planted import read_faults, try_faults
from table import write_table
from trials import Choice, failures, read_outcomes

_ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(prog="reliability", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(part.name for part in PARTS)} (default: all)"
    )
    parser.add_argument("--trials", type=int, help="trials of each part (default: those of the suite)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="parts that run at the same time (default: 1)")
    parser.add_argument("--short", action="store_true", help="fewer trials: minutes instead of hours")
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    parser.add_argument("--planted", action="store_true", help="plant known faults, one at a time")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--output", type=Path, default=_ROOT / "build" / "reliability", help="folder of the results")
    given = parser.parse_args()
    results: Path = given.output.resolve()  # trials work in folders of their own, and compare paths
    if unknown := set(given.parts) - {part.name for part in PARTS}:
        parser.error(f"no part {sorted(unknown)[0]}; expected {', '.join(part.name for part in PARTS)}")
    if given.trials is not None and given.trials < 1:
        parser.error("--trials must be at least 1")
    if given.jobs < 1:
        parser.error("--jobs must be at least 1")
    parts = [part for part in PARTS if not given.parts or part.name in given.parts]
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(described, cwd=_ROOT, capture_output=True, text=True).stdout.strip() or "no commit"
    results.mkdir(parents=True, exist_ok=True)
    missed = 0
    if given.planted:
        chosen = [fault for fault in read_faults() if not given.parts or fault.part in given.parts]
        missed = try_faults(chosen, results, commit)
    if given.planted or given.table:
        found = {part: read_outcomes(results / f"{part.name}.jsonl") for part in parts}
    else:
        choice = Choice(
            seed=given.seed,
            commit=commit,
            trials=given.trials,
            is_short=given.short,
            stops_at_failure=given.first_failure,
        )
        run = partial(run_named, results=results, choice=choice)
        # Each part has a process of its own, without threads, since trials fork.
        with ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
            found = dict(zip(parts, pool.map(run, [part.name for part in parts]), strict=True))
    print(write_table(found, results))
    return 1 if missed or any(failures(outcomes) for outcomes in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
