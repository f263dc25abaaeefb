"""Benchmark specs: TOML files with named benchmarks, their variants and options for shrunken runs.

::

    description = "What two operators cost"
    repeats = 5                                     # processes of each variant

    [options.step]                                  # for all benchmarks of a kind
    threads = 1

    [benchmarks.small_step]
    kind = "step"                                   # of `hornbook bench`: step, generate or corpus
    recipe = "gpt2-small"                           # or source = "texts.jsonl", for corpus
    options = { rounds = 5, "training.micro_batch_size" = 4 }

    [benchmarks.small_step.variants.native]         # additional options
    "precision.kernels" = "native"

    [shrunk.step]                                   # for --shrunk: override all other options; false removes one
    "model.num_layers" = 2
    processes = false

    ──cases_of──► Case(name="small_step/native", words=("step", "gpt2-small", "--threads", "1", ...))

The words are arguments of ``hornbook bench``, whose parser validates them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hornbook.config.options import show
from hornbook.config.recipe_files import read_document
from hornbook.config.suggest import did_you_mean, did_you_mean_path
from hornbook.errors import DataError, UserError

FOLDER = Path(__file__).parent / "benchmarks"
KINDS = {"step": "recipe", "generate": "recipe", "corpus": "source"}
"""Subcommands of ``hornbook bench``, and the key with the recipe or file that each measures."""
_TOP = ("description", "repeats", "options", "benchmarks", "shrunk")
_BENCHMARK = ("description", "kind", "recipe", "source", "options", "variants")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant of a benchmark, with the words after ``hornbook bench``."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A validated spec; the command line's parser validates the words of its cases."""

    name: str
    description: str
    repeats: int
    document: Mapping[str, Any]

    @property
    def benchmarks(self) -> list[str]:
        """The names of the benchmarks, in order."""
        return list(self.document["benchmarks"])

    def of_kind(self, table: str, kind: str) -> dict[str, Any]:
        """Return the table ``options`` or ``shrunk`` for all benchmarks of a kind."""
        return dict(self.document.get(table, {}).get(kind, {}))


def bundled_specs() -> dict[str, Path]:
    """Return the paths of the bundled specs by name, in alphabetical order."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find_spec(reference: str) -> tuple[Spec, list[str]]:
    """Return a spec and the names of the selected benchmarks.

    Args:
        reference: the name of a bundled spec or of a benchmark in one, or the path of a file.

    Raises:
        UserError: it does not exist; suggests the most similar name.
        RecipeError: the file cannot be read, or is not TOML.
        DataError: the spec is malformed.
    """
    bundled = bundled_specs()
    if reference in bundled:
        spec = read_spec(bundled[reference])
        return spec, spec.benchmarks
    specs = [read_spec(path) for path in bundled.values()]
    for spec in specs:
        if reference in spec.benchmarks:
            return spec, [reference]
    path = Path(reference)
    if path.is_file():
        spec = read_spec(path)
        return spec, spec.benchmarks
    if path.suffix == ".toml" or "/" in reference:
        raise UserError(f"no benchmark spec {reference} here{did_you_mean_path(path)}")
    known = [*bundled, *(name for spec in specs for name in spec.benchmarks)]
    hint = did_you_mean(reference, known) or f"; bundled specs: {', '.join(bundled)}"
    raise UserError(f"no benchmark or spec {show(reference)}{hint}")


def read_spec(path: Path) -> Spec:
    """Read a spec; errors as for ``find_spec``."""
    document, _ = read_document(path, str(path))
    _refuse_unknown(document, _TOP, str(path))
    benchmarks = _table(document, "benchmarks", str(path))
    if not benchmarks:
        raise DataError(f"{path}: no benchmarks; add a table such as [benchmarks.mine]")
    for name, benchmark in benchmarks.items():
        _check_benchmark(benchmark, f"{path}: benchmarks.{name}")
    for name in ("options", "shrunk"):
        by_kind = _table(document, name, str(path))
        _refuse_unknown(by_kind, tuple(KINDS), f"{path}: {name}")
        for kind, options in by_kind.items():
            _check_options(options, f"{path}: {name}.{kind}")
    repeats = document.get("repeats", 5)
    if type(repeats) is not int or repeats < 1:
        raise DataError(f"{path}: repeats = {show(repeats)}: expected a whole number of 1 or more")
    description = document.get("description", "")
    if not isinstance(description, str):
        raise DataError(f"{path}: description = {show(description)}: expected a text")
    return Spec(name=path.stem, description=description, repeats=repeats, document=document)


def cases_of(spec: Spec, benchmarks: list[str], *, shrunk: bool, options: Mapping[str, object]) -> list[Case]:
    """Return the cases of some benchmarks, in order; a benchmark without variants is one case of its name.

    Args:
        spec: has the benchmarks.
        benchmarks: their names.
        shrunk: whether to apply the options of ``[shrunk]``.
        options: override all others; ``false`` removes one.

    Raises:
        UserError: a benchmark does not exist; suggests the most similar name.
    """
    cases = []
    for name in benchmarks:
        if name not in spec.benchmarks:
            raise UserError(f"{spec.name} has no benchmark {show(name)}{did_you_mean(name, spec.benchmarks)}")
        benchmark = spec.document["benchmarks"][name]
        for variant, changes in {"": {}, **benchmark.get("variants", {})}.items():
            kind = benchmark["kind"]
            merged = {**spec.of_kind("options", kind), **benchmark.get("options", {}), **changes}
            merged |= {**(spec.of_kind("shrunk", kind) if shrunk else {}), **options}
            words = (kind, str(benchmark[KINDS[kind]]), *_words(merged))
            cases.append(Case(name=f"{name}/{variant}" if variant else name, words=words))
    return cases


def _words(options: Mapping[str, object]) -> list[str]:
    """Return options as words: ``{"rounds": 3, "skip_alone": true}`` -> ``--rounds 3 --skip-alone``.

    A list becomes several words for an option of the command, and one value for an option of the recipe.
    """
    words: list[str] = []
    for key, value in options.items():
        option = f"--{key.replace('_', '-')}"
        if "." in key:
            words += [option, _value(value)]
        elif value is not False:
            words += [
                option,
                *(map(_value, value) if isinstance(value, list) else [] if value is True else [_value(value)]),
            ]
    return words


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_value, value)) or "none"
    return str(value)


def _check_benchmark(benchmark: object, label: str) -> None:
    if not isinstance(benchmark, dict):
        raise DataError(f"{label}: expected a table with kind and recipe")
    _refuse_unknown(benchmark, _BENCHMARK, label)
    kind = benchmark.get("kind")
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise DataError(f"{label}: kind = {show(kind)}: expected one of {', '.join(KINDS)}{hint}")
    for key in ("recipe", "source"):
        if (key in benchmark) != (key == KINDS[kind]):
            wrong = "one too many, remove it" if key in benchmark else "missing, add it"
            raise DataError(f'{label}: kind = "{kind}" takes {KINDS[kind]}: the {key} is {wrong}')
    if not isinstance(benchmark[KINDS[kind]], str):
        raise DataError(f"{label}: {KINDS[kind]} = {show(benchmark[KINDS[kind]])}: expected a text")
    _check_options(_table(benchmark, "options", label), f"{label}.options")
    for name, changes in _table(benchmark, "variants", label).items():
        _check_options(changes, f"{label}.variants.{name}")


def _check_options(options: object, label: str) -> None:
    if not isinstance(options, dict):
        raise DataError(f"{label}: expected a table of options")
    for key, value in options.items():
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str | int | float | bool) for entry in entries):
            hint = f'; write "{key}.{next(iter(value))}" in quotes' if isinstance(value, dict) and value else ""
            raise DataError(f"{label}.{key}: expected a number, a text, true, false or a list of these{hint}")


def _table(document: Mapping[str, Any], key: str, label: str) -> dict[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise DataError(f"{label}: {key} = {show(found)}: expected a table, [{key}]")
    return found


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], label: str) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            raise DataError(f"{label}: unknown key {show(key)}{hint}")
