"""What ``--help`` shows fits a terminal of 80 columns."""

import re

import pytest

from hornbook.__main__ import main

CORPUS = ("build", "convert", "download", "instances", "inspect", "verify", "which")
COMMANDS = ("", "evaluate", "generate", "recipes", "runs", "tokenizer train", *(f"corpus {name}" for name in CORPUS))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= 80


def test_the_lines_of_a_description_are_wrapped_below_their_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["corpus", "convert", "--help"])
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  instances "))
    assert lines[start].index("bert-tfrecord") == len(lines[start + 1]) - len(lines[start + 1].lstrip()) == 15


def test_a_long_list_of_choices_is_shown_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["corpus", "build", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search("--from( KIND)?, --format KIND", shown), "from Python 3.13 on, KIND is shown once"
    assert shown.count("wikiextractor: a <doc> of") == 1
    assert "blank-lines: the text between blank lines" in shown, "no name is broken at its hyphen"


def help_of(capsys, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_the_help_of_train_shows_frequent_options_first_and_folds_the_sections(capsys, monkeypatch):
    shown = help_of(capsys, monkeypatch, "train", "--help")
    assert len(shown.splitlines()) < 130
    assert shown.index("--lr NUMBER") < shown.index("--print-recipe") < shown.index("learning-rate, weight-decay")
    assert "--optimizer.learning-rate NUMBER" not in shown
    assert help_of(capsys, monkeypatch, "help", "train") == shown


def test_help_of_one_section_and_of_all(capsys, monkeypatch):
    optimizer = help_of(capsys, monkeypatch, "train", "--help", "optimizer")
    assert "--optimizer.learning-rate NUMBER" in optimizer and "--model.family" not in optimizer
    everything = help_of(capsys, monkeypatch, "train", "--help", "all")
    assert "--optimizer.learning-rate NUMBER" in everything and "--model.family" in everything


def test_a_command_with_its_own_steps_keeps_them(capsys, monkeypatch):
    for command in ("verify resume", "profile"):
        shown = help_of(capsys, monkeypatch, *command.split(), "--help")
        assert "--steps N" in shown and "--steps INTEGER" not in shown and "--lr NUMBER" in shown
