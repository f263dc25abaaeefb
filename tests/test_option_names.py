"""Messages of functions name arguments and recipe keys; only the command line has options, and spells them so."""

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from written_runs import save_run

import hornbook
from hornbook.__main__ import main
from hornbook.cli.arguments import CommandParser
from hornbook.cli.main import COMMANDS, build_parsers
from hornbook.errors import RecipeError, UserError
from hornbook.wording import spelled, spelling

SOURCE = Path(hornbook.__file__).parent
COMMAND = re.compile(r"`(?:hornbook|torchrun) [^`]*`?|^hornbook .*")
"""A whole command to type: its words are those of a shell wherever it is read."""
OPTION = re.compile(r"(?:^|[\s`(])--[a-z{]")
NAMED = re.compile(r"`([a-z]\w*(?:\.\w+)?)(?:=[^`]*)?`")
WORDS_FOR_PROGRAMS = {
    "measure/machine.py",
    "measure/bench_results.py",
    "measure/bench_spec.py",
    "ops/native/build.py",
    "run/processes.py",
}
WORDS_FOR_PROGRAMS |= {"track/environment.py", "measure/sparse_speed.py"}
"""Files that start other programs, or read words: there, a text of one word is no message."""


@cache
def texts() -> list[tuple[str, str]]:
    """Place and text of every string outside of `hornbook.cli` that is no docstring; values in it are ``{}``."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith("cli/"):
            continue
        tree = ast.parse(path.read_text())
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                inner |= {id(part) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                found.append((f"{name}:{node.lineno}", "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{name}:{node.lineno}", node.value))
    return found


def commands() -> Iterator[argparse.ArgumentParser]:
    _, parsers = build_parsers()
    for name in COMMANDS:
        importlib.import_module(f"hornbook.cli.{name}_command").add_arguments(parsers[name])
        yield from _with_inner(parsers[name])


def _with_inner(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    if isinstance(parser, CommandParser):
        parser.declare()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _with_inner(inner)


def test_no_message_of_the_library_has_an_option() -> None:
    found = [
        f"{place} {text}"
        for place, text in texts()
        if OPTION.search(COMMAND.sub("", text))
        and not (place.partition(":")[0] in WORDS_FOR_PROGRAMS and " " not in text.strip())
        and not place.startswith("config/recipe_files.py")  # reads them
    ]
    assert found == []


def test_every_argument_that_a_message_names_is_an_option_of_a_command() -> None:
    actions = [action for parser in commands() for action in parser._actions if action.option_strings]
    known = {action.dest.replace("-", "_") for action in actions}
    assert {"format", "source_format", "output", "training.steps", "on_error", "suffixes"} <= known
    other = {"gunzip", "from"}  # a program, and a key that only a recipe file has
    unknown = {
        f"{place} {name}"
        for place, text in texts()
        for name in NAMED.findall(text)
        if name not in known | other and not name.startswith("hornbook")
    }
    assert unknown == set()


def test_a_function_names_its_argument_and_a_command_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"^`stop` is empty"):
        hornbook.load(run).generate("a", stop="")
    assert main(["generate", str(run), "--prompt", "a", "--stop", ""]) == 2
    assert capsys.readouterr().err.startswith("hornbook: error: --stop is empty")
    prompt = "".join(map(chr, range(33, 127)))
    with pytest.raises(UserError, match=r"keep its last 64 tokens by `input_length=64`$"):
        hornbook.load(run).generate(prompt)
    assert main(["generate", str(run), "--prompt", prompt]) == 2
    assert capsys.readouterr().err.endswith("keep its last 64 tokens by --input-length 64\n")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`stop` is empty", "--stop is empty"),
        ("use `format='text'`", "use --from text"),
        ('skip `exclude="it\'s mine"`', "skip --exclude 'it'\"'\"'s mine'"),
        ("pass `data=TASK=FILE`", "pass --data TASK=FILE"),
        ("set `training.steps=7`", "set --training.steps 7"),
        ("run it with `allow_pickle=True`", "run it with --allow-pickle"),
        ("`unknown=3`, `other.key` and `hornbook runs` stay", "`unknown=3`, `other.key` and `hornbook runs` stay"),
    ],
)
def test_messages_as_a_command_spells_them(message: str, expected: str) -> None:
    parser = argparse.ArgumentParser()
    for words in (["--stop"], ["--exclude"], ["--data"], ["--training.steps"]):
        parser.add_argument(*words)
    parser.add_argument("--from", dest="format")
    parser.add_argument("--allow-pickle", action="store_true")
    with pytest.raises(RecipeError) as caught, spelling(parser._actions):
        assert spelled(message) == expected
        raise RecipeError([message, "another"])
    assert caught.value.problems == [expected, "another"] and str(caught.value) == f"{expected}; another"
    assert spelled(message) == message
