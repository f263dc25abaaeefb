"""What the pages say of the program is so: links, commands, options and their defaults, exit codes, make targets."""

import argparse
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES, ROOT, blocks_of, commands_of, prose_of

from hornbook import errors
from hornbook.__main__ import main
from hornbook.cli.arguments import CommandParser
from hornbook.cli.sweep_command import candidates_of
from hornbook.config import bundled_recipes, load_recipe
from hornbook.config.build import refuse_misfit
from hornbook.config.options import TAGS, show
from hornbook.config.recipe import SECTIONS, specs
from hornbook.exchange.gguf.architectures import architecture_of

LINK = re.compile(r"""(?:\]\(|(?:src|srcset)=")(?!https?://)(?P<target>[^)#"]+)(#[^)"]*)?[)"]""")
CODE = re.compile(r"`(?P<code>[^`\n]+)`")
OPTION_ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<default>[^`]+)` \|", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def words_of(command: str) -> list[list[str]]:
    """The words after ``hornbook`` of each part of a pipe that calls it."""
    parts = (shlex.split(part, comments=True) for part in command.split("|"))
    return [words[1:] for words in parts if words[:1] == ["hornbook"]]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = [match["target"] for match in LINK.finditer(prose_of(page))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@each_page
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``hornbook`` line of a block of commands gets past the parser, and its recipe past the validator."""
    understood: list[argparse.Namespace] = []

    def parse(parser: CommandParser, *words: Any) -> argparse.Namespace:
        arguments = argparse.ArgumentParser.parse_args(parser, *words)
        arguments.handler = understood.append
        return arguments

    monkeypatch.setattr(CommandParser, "parse_args", parse)
    calls = [words for command in commands_of(page, "sh", "shell") for words in words_of(command)]
    assert [words for words in calls if main(words) != 0] == []
    assert len(understood) == len(calls)
    for arguments in understood:
        if getattr(arguments, "recipe", None) in bundled_recipes():
            swept = arguments.command == "sweep"
            for options in (
                [each.words for each in candidates_of(arguments.overrides)] if swept else [arguments.overrides]
            ):
                load_recipe(arguments.recipe, options, require_data=arguments.command in ("train", "sweep"))


@cache
def has_help(*names: str) -> bool:
    return main([*names, "--help"]) == 0


@each_page
def test_commands_in_the_text_exist(page: Path) -> None:
    codes = [match["code"].split() for match in CODE.finditer(prose_of(page))]
    named = [[word for word in words[1:3] if word.isalpha() and word.islower()] for words in codes]
    calls = [names for words, names in zip(codes, named, strict=True) if words[0] == "hornbook"]
    assert [names for names in calls if not has_help(*names)] == []


@each_page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    codes = (match["code"] for match in CODE.finditer(prose_of(page)))
    named = {target for code in codes for target in re.findall(r"\bmake ([a-z][\w-]+)", code)}
    assert named <= targets


@each_page
def test_no_number_is_missing(page: Path) -> None:
    assert re.findall(r"@@\w+@@", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_listed_with_its_default(section: str) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    part = page.partition(f"\n### `[{section}]`\n")[2].partition("\n### ")[0]
    listed = {match["name"]: match["default"] for match in OPTION_ROW.finditer(part)}
    defaults = {name: owners[0][1].default for name, owners in specs(section).items()}
    if section in TAGS:
        defaults[TAGS[section]] = getattr(SECTIONS[section](), TAGS[section])
    assert listed == {name: show(default) for name, default in defaults.items()}


def test_the_recipe_for_eight_ranks_fits_them(tmp_path: Path) -> None:
    """Once, four stages had two micro-batches."""
    named = [block.body for block in blocks_of(ROOT / "docs/recipes.md") if block.body.startswith("# small")]
    for body in named:
        (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
    refuse_misfit(load_recipe(str(tmp_path / "small-on-8.toml"), require_data=False).recipe, 8)


def test_bundled_recipes_are_listed() -> None:
    page = prose_of(ROOT / "docs" / "recipes.md")
    assert [name for name in bundled_recipes() if f"`{name}`" not in page] == []


def test_exit_codes_are_listed() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", prose_of(ROOT / "README.md"), re.MULTILINE)}
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}
    assert listed >= raised | {0}


def test_the_plan_that_is_shown_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    commands, shown, *_ = blocks_of(ROOT / "docs" / "plan.md")
    (command,) = (line for line in commands.body.splitlines() if "gpt2-xl" in line)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == shown.body


@each_page
def test_what_is_exported_for_llama_cpp_has_a_counterpart_there(page: Path) -> None:
    """`runs/mine` of the README has a GELU that llama.cpp lacks."""
    calls = [words for command in commands_of(page, "sh", "shell") for words in words_of(command)]
    for words in (words for words in calls if "gguf" in words):
        vocabulary = ["--model.vocab-size", "2048"]
        architecture_of(load_recipe(Path(words[2]).name, vocabulary, require_data=False).recipe.model)
