"""`hornbook demo` keeps the length that it was started with."""

import json

import pytest

from hornbook.__main__ import main
from hornbook.cli import demo_command as demo


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands that the demo would run, in place of running them; each measuring plans 300 steps."""
    given = []
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "command", lambda *words: given.append(words) or {})
    monkeypatch.setattr(demo, "_measure", lambda corpus, arguments, seconds: {"steps": 300})
    return given


def steps_of(commands):
    (train,) = (words for words in commands if words[0] == "train")
    return train[train.index("--training.steps") + 1]


@pytest.mark.parametrize(("words", "steps"), [((), "300"), (("--minutes", "2"), "300"), (("--short",), "20")], ids=str)
def test_the_same_command_resumes_and_another_length_is_an_error(commands, capsys, words, steps):
    assert main(["demo", *words]) == 0
    assert steps_of(commands) == steps
    commands.clear()
    assert main(["demo", *words]) == 0
    assert steps_of(commands) == steps
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


def test_the_demo_says_what_to_expect_of_its_steps(commands, capsys):
    assert main(["demo"]) == 0
    assert "expect about 1.18 bits per byte of held-out text\n" in capsys.readouterr().out
    bits = [demo.expected_bits(steps) for steps in (20, 100, 300, 430, 570, 3000)]
    assert bits == sorted(bits, reverse=True) and bits[-2:] == [0.99, 0.99]


def test_the_prompt_does_not_end_with_a_blank(commands):
    """Text is cut into pieces before a blank, so a prompt with a blank at its end is one that no training text has."""
    assert main(["demo", "--short"]) == 0
    (generate,) = (words for words in commands if words[0] == "generate")
    assert not generate[generate.index("--prompt") + 1].endswith(" ")


def test_a_plan_that_does_not_say_its_length_is_followed(commands, tmp_path):
    (tmp_path / "demo" / "plan.json").write_text(json.dumps({"steps": 7}))
    assert main(["demo"]) == 0
    assert steps_of(commands) == "7"
