"""docs/old-systems: what its pages call hornbook's is there by that name, and where nothing is, they say why."""

import contextlib
import functools
import io
import re
from typing import NamedTuple

import pytest
from pages import ROOT, prose_of
from torch.distributed.run import get_args_parser

from hornbook.cli.main import main
from hornbook.config import bundled_recipes, load_recipe
from hornbook.config.recipe import SECTIONS, specs
from hornbook.errors import RecipeError
from hornbook.evaluate import task_names
from hornbook.measure.bench_spec import bundled_specs

PAGES = sorted((ROOT / "docs" / "old-systems").glob("*.md"))
SYSTEMS = {page.read_text(encoding="utf-8")[len("# System ")]: page for page in PAGES if page.stem != "index"}
HEAD = ("old option", "hornbook", "notes")
ABSENT = ("none", "not yet")
KINDS = ("gpt2-small", "bert-base-wikitext2")
"""A decoder and an encoder: what is no value for the one may be one for the other."""

CODE = re.compile(r"`(?P<code>[^`\n]+)`")
OPTION_LINE = re.compile(r"^  (?P<names>-[^{ ]*(?:, --[\w.-]+)*)(?: \{(?P<choices>[^}]*)\})?", re.MULTILINE)
POSITIONAL_LINE = re.compile(r"^  (?P<name>[A-Z]+)\b", re.MULTILINE)


class Row(NamedTuple):
    """An option of an old system, its counterpart in hornbook, and notes."""

    there: str
    here: str
    note: str


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows_of(system: str) -> list[Row]:
    """The rows of a system's tables of options, without their heads."""
    page = prose_of(SYSTEMS[system]).partition("\n## Layouts\n")[0]
    rows = [Row(*cells_of(line)) for line in page.splitlines() if line.startswith("|")]
    return [row for row in rows if row != HEAD and set(row.there) != {"-"}]


def codes_of(text: str) -> list[str]:
    return [match["code"] for match in CODE.finditer(text)]


def own_words() -> str:
    """The pages without what they say of the old systems: the first cell of each line of a table."""
    lines = [line for page in PAGES for line in prose_of(page).splitlines()]
    return "\n".join(" ".join(cells_of(line)[1:]) if line.startswith("|") else line for line in lines)


def is_ours(code: str) -> bool:
    """Tell whether a code reads as a command of hornbook's, an option of `train` or a key of a recipe."""
    section, dot, _ = code.removeprefix("--").partition(".")
    return code.startswith("hornbook ") or (section in SECTIONS and bool(dot))


def exists(code: str) -> bool:
    """Tell whether hornbook has a command with its options, a key of a recipe, with its value, or a recipe."""
    program, _, rest = code.partition(" ")
    if program == "hornbook":
        return command_exists(rest.split())
    if program == "torchrun":
        return set(re.findall(r"--[\w-]+", rest)) <= set(options_of(torchrun_help()))
    if code in bundled_recipes():
        return True
    if code.startswith("--"):
        options = re.findall(r"--(\S+)(?: (?!--)(\S+))?", code)
        alone = len(options) == 1
        return all(key_exists(name.replace("-", "_"), value if alone else "") for name, value in options)
    key, _, value = code.partition(" = ")
    return key_exists(key, value.strip('"'))


def key_exists(key: str, value: str) -> bool:
    """Tell whether recipes have such a key, and whether it takes the value, if one is given."""
    section, _, name = key.partition(".")
    if section not in SECTIONS or name not in specs(section):
        return False
    return not value or any(makes_recipe(kind, [f"--{key}", value]) for kind in KINDS)


def makes_recipe(name: str, overrides: list[str]) -> bool:
    """Tell whether the validator takes a bundled recipe with these options."""
    with contextlib.suppress(RecipeError):
        return bool(load_recipe(name, overrides, require_data=False))
    return False


def command_exists(words: list[str]) -> bool:
    """Compare the words with the command's help: its options, the values where it lists them, its arguments."""
    names = [word for word in words[:2] if word.isalpha() and word.islower()]
    exit_code, text = help_of(*names)
    options, arguments = options_of(text), {*POSITIONAL_LINE.findall(text), *bundled_recipes(), *bundled_specs(), "..."}
    values: list[str] | None = None
    known = [exit_code == 0]
    for word in words[len(names) :]:
        if word.startswith("--"):
            known.append(word in options)
            values = options.get(word)
        elif values is None:
            known.append(word in arguments)
        else:
            known.append(not values or word in values)
    return all(known)


def options_of(text: str) -> dict[str, list[str]]:
    """Each option in a help text with the values that are listed for it; where none are, it takes any."""
    found = {
        name: match["choices"].split(",") if match["choices"] else []
        for match in OPTION_LINE.finditer(text)
        for name in re.findall(r"--[\w.-]+", match["names"])
    }
    return found | ({"--tasks": task_names()} if "--tasks" in found else {})


@functools.cache
def help_of(*names: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exit_code = main([*names, "--help"])
    return exit_code, out.getvalue()


@functools.cache
def torchrun_help() -> str:
    return get_args_parser().format_help()


def test_each_system_has_a_page() -> None:
    assert sorted(SYSTEMS) == list("ABCDE")


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_option_has_a_counterpart_or_a_reason(system: str) -> None:
    rows = rows_of(system)
    assert rows
    assert [row for row in rows if not row.there] == []
    assert [row for row in rows if row.here not in ABSENT and not codes_of(row.here)] == []
    assert [row for row in rows if row.here in ABSENT and not row.note] == []


@pytest.mark.parametrize(
    ("system", "option"),
    [
        ("B", "--poptorch_loop"),
        ("C", "dataloader_num_workers"),
        ("C", "dataloader_drop_last"),
        ("E", "--batches-per-step"),
    ],
)
def test_spellings_of_readmes_and_scripts_have_a_row(system: str, option: str) -> None:
    """Options that the programs inherit from a library, or whose spelling differs from the parser's."""
    assert [row for row in rows_of(system) if option in codes_of(row.there)] != []


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_counterpart_exists(system: str) -> None:
    assert [code for row in rows_of(system) for code in codes_of(row.here) if not exists(code)] == []


def test_no_other_name_is_made_up() -> None:
    """In the notes, in the table of words and in the text around them, too."""
    named = [code for code in codes_of(own_words()) if is_ours(code)]
    assert len(named) > 100
    assert [code for code in named if not exists(code)] == []


def test_options_of_shipped_runs_make_a_recipe() -> None:
    """Together, with each recipe that their row names."""
    runs = [
        (recipe, options)
        for system in SYSTEMS
        for row in rows_of(system)
        for recipe in set(codes_of(row.here)) & set(bundled_recipes())
        for options in codes_of(row.note)
        if options.startswith("--") and is_ours(options)
    ]
    assert len(runs) > 30
    assert [run for run in runs if not makes_recipe(run[0], run[1].split())] == []


def test_the_shipped_run_of_system_b_is_what_its_table_says() -> None:
    """Its AdamW corrects no bias, and its warm-up is a fraction of the steps."""
    (command,) = re.findall(r"^hornbook train (.*)$", SYSTEMS["B"].read_text(encoding="utf-8"), re.MULTILINE)
    name, *overrides = command.split()
    recipe = load_recipe(name, overrides).recipe
    adamw = {"learning_rate": 1.5e-4, "bias_correction": False, "epsilon": 1e-6, "beta1": 0.9, "beta2": 0.999}
    adamw |= {"name": "adamw", "weight_decay": 0.0, "clip_norm": None, "epsilon_before_correction": False}
    assert adamw.items() <= vars(recipe.optimizer).items()
    cosine = {"name": "cosine", "warmup_fraction": 0.01, "warmup_steps": 0, "final_fraction": 0.0, "decay_end": None}
    assert vars(recipe.schedule) == cosine
    assert (recipe.training.epochs, recipe.training.global_batch_size, recipe.sequence_length) == (20, 8192, 1024)


def test_options_that_make_no_recipe_would_be_found() -> None:
    assert not makes_recipe("bert-tiny", ["--training.micro-batch-size", "12"])
    assert not makes_recipe("bert-tiny", ["--schedule.name", "linear", "--schedule.decay-steps", "9"])


@pytest.mark.parametrize(
    "code",
    [
        "hornbook sing",
        "hornbook generate --topk",
        "hornbook generate --compute fp64",
        "hornbook generate RECIPE",
        "hornbook evaluate --tasks juggling",
        "hornbook train gpt2-tiny",
        "torchrun --num-processes",
        "--model.num-layer",
        "--model.activation swish",
        "--model.qkv-bias false --model.layer-normepsilon 1e-3",
        "model.num_layer",
        'model.activation = "swish"',
        "modell.num_layers",
        "gpt2-tiny",
        "num_layers",
    ],
)
def test_a_name_that_does_not_exist_would_be_found(code: str) -> None:
    assert not exists(code)
