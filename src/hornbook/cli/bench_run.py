"""``hornbook bench run``, ``compare`` and ``list``: run named benchmarks in repeated processes and compare results.

hornbook bench list
hornbook bench run mine.toml --output benchmarks/before
hornbook bench run pytorch_gpt2_small_train_gen_pod16 --set processes=8
hornbook bench compare benchmarks/before benchmarks/after
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hornbook.cli.arguments import positive_integer
from hornbook.cli.table import print_columns, say
from hornbook.errors import HornbookError, UserError

Check = Callable[[Sequence[str]], None]
"""Validates the words of ``hornbook bench``; raises HornbookError."""


def add_arguments(commands: "argparse._SubParsersAction[Any]", check: Check) -> None:
    """Declare the commands; ``check`` is called with every command line before ``run`` runs any."""
    ran = commands.add_parser(
        "run",
        help="run named benchmarks",
        description="Run the benchmarks of a spec, alternating, each repeat in its own process. Run the same "
        "command again to continue after an interruption.",
    )
    ran.add_argument(
        "spec", metavar="SPEC", help="TOML file with benchmarks, or a name that `hornbook bench list` prints"
    )
    ran.add_argument("--only", nargs="+", default=[], metavar="NAME", help="benchmarks of the spec (default: all)")
    ran.add_argument("--repeats", type=positive_integer, help="processes of each variant (default: the spec's)")
    ran.add_argument("--shrunk", action="store_true", help="apply the spec's [shrunk] options, for a quick test")
    ran.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="set an option of all benchmarks, such as rounds=3 or training.micro_batch_size=4; KEY=false removes it",
    )
    ran.add_argument("--output", type=Path, metavar="DIR", help="folder for results (default: benchmarks/<SPEC>)")
    ran.set_defaults(handler=run_command, check=check)
    compared = commands.add_parser(
        "compare",
        help="compare results of two runs",
        description="Print the speedup of B over A with a 95 % confidence interval.",
    )
    compared.add_argument("a", type=Path, metavar="A", help="output folder of `hornbook bench run`")
    compared.add_argument("b", type=Path, metavar="B", help="second output folder")
    compared.set_defaults(handler=compare_command)
    listed = commands.add_parser("list", help="list bundled benchmarks", description="List the bundled benchmarks.")
    listed.set_defaults(handler=list_command)


def run_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the benchmarks that have no results yet, save results after each process, and print medians.

    Raises:
        UserError: the spec does not exist, is malformed, or has options that ``hornbook bench`` rejects; or the folder
            has results of other benchmarks.
    """
    from hornbook.measure.bench_results import read_results, run_bench, run_cases, spreads_of, write_results
    from hornbook.measure.bench_spec import cases_of, find_spec
    from hornbook.storage.files import lock_folder
    from hornbook.track.environment import capture
    from hornbook.track.units import significant

    spec, found = find_spec(arguments.spec)
    cases = cases_of(spec, arguments.only or found, shrunk=arguments.shrunk, options=dict(arguments.set))
    for case in cases:
        try:
            arguments.check(case.words)
        except HornbookError as error:
            raise UserError(f"benchmark {case.name}: {error}") from None
    folder = arguments.output or Path("benchmarks") / f"{Path(arguments.spec).stem}{'-shrunk' * arguments.shrunk}"
    with lock_folder(folder):
        if (folder / "results.json").exists():
            results = read_results(folder)
        else:
            results = {"name": spec.name, "description": spec.description, "machine": capture(), "cases": {}}
        for case in cases:
            if case.name in results["cases"] and _words(results, case.name) != list(case.words):
                raise UserError(f"{folder} has results of {case.name} with other options: choose another --output")
        repeats = arguments.repeats or spec.repeats
        ran = run_cases(cases, repeats, results, run_bench, lambda: write_results(folder, results))
        for case, repeat, outcome in ran:
            said = outcome.get("error") or "  ".join(
                f"{measure} {significant(value, 4)}" for measure, value in list(outcome["values"].items())[:2]
            )
            print(f"{repeat + 1}/{repeats}  {case.name}  {said}", flush=True)
        write_results(folder, results)
    rows = spreads_of(results)
    _print_spreads(rows)
    say(f"{folder / 'results.md'}")
    failed = [name for name, case in results["cases"].items() if any("error" in run for run in case["runs"])]
    return {"output": str(folder), "spreads": rows, "failed": failed, "exit_code": int(bool(failed))}


def compare_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the medians of each measure that both folders have, and the speedup of B with its interval.

    Raises:
        UserError: the folders have no benchmark in common.
        DataError: a folder has no results.
    """
    from hornbook.measure.bench_results import compare_results, read_results, show_ratio
    from hornbook.track.units import significant

    a, b = read_results(arguments.a), read_results(arguments.b)
    rows = compare_results(a, b)
    if not rows:
        raise UserError(f"{arguments.a} and {arguments.b} have no benchmark in common: run the same spec for both")
    head = ("benchmark", "measure", "A", "B", "B is times as fast (95 %)", "")
    table = [
        (row["case"], row["measure"], significant(row["a"], 4), significant(row["b"], 4), show_ratio(row["speedup"]),
         row["verdict"])
        for row in rows
    ]  # fmt: skip
    print_columns([head, *table], right=(2, 3))
    print("intervals: Welch's t on logarithms of independent processes; 1 inside: no difference shown")
    others = [name for name in a["cases"] if name not in b["cases"]] + [n for n in b["cases"] if n not in a["cases"]]
    if others:
        say(f"only in A or only in B: {', '.join(others)}")
    differing = [name for name in a["cases"] if name in b["cases"] and _words(a, name) != _words(b, name)]
    if differing:
        say(f"different options in A and B: {', '.join(differing)}")
    return {"rows": rows, "only_in_one": others, "different_options": differing}


def list_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the bundled specs with their benchmarks."""
    from hornbook.measure.bench_spec import bundled_specs, read_spec

    specs = {name: read_spec(path) for name, path in bundled_specs().items()}
    for name, spec in specs.items():
        say(f"{name}: {spec.description}")
        for benchmark in spec.benchmarks:
            say(f"  {benchmark}")
    return {"specs": {name: spec.benchmarks for name, spec in specs.items()}}


def _words(results: dict[str, Any], name: str) -> list[str]:
    return list(results["cases"][name]["words"])


def _print_spreads(rows: list[dict[str, Any]]) -> None:
    from hornbook.measure.bench_results import show_ratio
    from hornbook.track.units import significant

    head = ("benchmark", "measure", "median", "quartiles", "times as fast (95 %)")
    table = []
    for row in rows:
        median, low, high = (significant(row[key], 4) for key in ("median", "lower_quartile", "upper_quartile"))
        table.append((row["case"], row["measure"], median, f"{low} to {high}", show_ratio(row["speedup"])))
    print()
    print_columns([head, *table], right=(2,))


def _setting(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f'"{text}": expected KEY=VALUE, as in rounds=3')
    flags = {"true": True, "false": False}
    return key, flags.get(value, value)
