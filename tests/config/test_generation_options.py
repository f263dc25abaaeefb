"""The options of generation are declared once: the command, `Model.generate` and its types all have these."""

import argparse
import inspect
import re
from pathlib import Path

import hornbook
from hornbook.api.writing import GenerateOptions
from hornbook.cli import generate_command
from hornbook.config.generation import GenerationConfig
from hornbook.config.options import describe


def test_the_command_has_every_option_with_its_help_and_default() -> None:
    parser = argparse.ArgumentParser()
    generate_command.add_arguments(parser)
    flags = {action.dest: action for action in parser._actions}
    for name, spec in describe(GenerationConfig).items():
        text = flags[name].help or ""
        assert text.startswith(spec.help)
        assert spec.default in (None, ()) or f"(default: {spec.default})" in text
    given = vars(parser.parse_args(["run"]))
    assert set(given).isdisjoint(describe(GenerationConfig)), "a command can tell what was given"


def test_python_has_every_option_with_its_default() -> None:
    parameters = inspect.signature(hornbook.Model.generate).parameters
    defaults = {name: spec.default for name, spec in describe(GenerationConfig).items() if name != "num_samples"}
    assert {name: parameters[name].default for name in defaults} == defaults
    assert set(parameters) == {"self", "prompt", "num_samples", *defaults}
    assert set(GenerateOptions.__annotations__) == set(defaults)


def test_the_page_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`model\.generate` has the options of `hornbook generate`.*?A text", page, re.DOTALL)
    for name, spec in describe(GenerationConfig).items():
        assert f"`{name}`" in told
        if number := re.search(rf"`{name}`\s+\(([\d.]+)", told):
            assert float(number[1]) == spec.default
    assert len(re.findall(r"`\w+`\s+\([\d.]+", told)) == 5
