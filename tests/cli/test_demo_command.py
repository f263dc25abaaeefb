"""`hornbook demo` keeps the length that it was started with."""

import itertools
import json

import pytest

from hornbook.__main__ import main
from hornbook.cli import demo_command as demo


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands that the demo would run, in place of running them."""
    given = []
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "command", lambda *words: given.append(words) or {})
    return given


def trained(commands):
    """The recipe, and the option and value of its length."""
    (train,) = (words for words in commands if words[0] == "train")
    return train[1:4]


SHORT = ("decoder-demo", "--training.steps", "20")


@pytest.mark.parametrize(
    ("words", "length"),
    [((), ("auto", "--time", "305s")), (("--minutes", "2"), ("auto", "--time", "95s")), (("--short",), SHORT)],
    ids=str,
)
def test_the_same_command_resumes_and_another_length_is_an_error(commands, capsys, monkeypatch, words, length):
    """The dial has the time that is left before evaluation and report, and again the same when resumed."""
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert main(["demo", *words]) == 0
    assert trained(commands) == length
    commands.clear()
    monkeypatch.setattr("time.monotonic", itertools.count(step=10).__next__)
    assert main(["demo", *words]) == 0
    assert trained(commands) == length
    commands.clear()
    capsys.readouterr()
    assert main(["demo", "--minutes", "3"]) == 2
    begun = " ".join(words) or "--minutes 5.5"
    assert capsys.readouterr().err == (
        f"hornbook: error: the demo in demo was started with {begun}, not --minutes 3: use the same options to "
        "resume it, or choose another --output\n"
    )
    assert commands == []


def test_the_default_length_is_one_too(commands, capsys):
    assert main(["demo", "--short"]) == 0
    assert main(["demo"]) == 2
    assert "was started with --short, not --minutes 5.5" in capsys.readouterr().err
    assert main(["demo", "--short", "--minutes", "2"]) == 2
    assert "argument --minutes: not allowed with argument --short" in capsys.readouterr().err


def test_what_building_took_is_not_the_dials(commands, monkeypatch):
    monkeypatch.setattr("time.monotonic", itertools.count(step=10).__next__)
    assert main(["demo"]) == 0
    (_, _, time) = trained(commands)
    assert int(time.removesuffix("s")) < 305


def test_a_short_demo_says_what_to_expect(commands, capsys):
    assert main(["demo", "--short"]) == 0
    assert "expect about 1.96 bits per byte of held-out text\n" in capsys.readouterr().out


def test_the_prompt_does_not_end_with_a_blank(commands):
    """Text is cut into pieces before a blank, so a prompt with a blank at its end is one that no training text has."""
    assert main(["demo", "--short"]) == 0
    (generate,) = (words for words in commands if words[0] == "generate")
    assert not generate[generate.index("--prompt") + 1].endswith(" ")


def test_a_plan_that_does_not_say_its_length_is_followed(commands, tmp_path):
    (tmp_path / "demo" / "plan.json").write_text(json.dumps({"steps": 7}))
    assert main(["demo"]) == 0
    assert trained(commands) == ("decoder-demo", "--training.steps", "7")
