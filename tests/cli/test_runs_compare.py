import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_run import RECIPE, default_rows, make_run

from hornbook.__main__ import main


def compare(*words: object) -> int:
    return main(["runs", "compare", *map(str, words)])


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "one")
    rows = [{**row, "loss": float(str(row["loss"])) * 2} for row in default_rows()]
    make_run(tmp_path / "two", recipe=RECIPE.replace("seed = 1234", "seed = 5"), rows=rows)
    return tmp_path


def test_compare_shows_facts_differences_and_curves(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("one", "two") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [
        ["A", "B"],
        ["run", "one", "two"],
        ["state", *["finished"] * 2],
        ["objective", *["causal_lm"] * 2],
    ]
    at = lines.index(["recipe", "A", "B"])
    assert lines[at + 1] == ["training.seed", "1234", "5"]
    titles = [" ".join(line[:2]) for line in lines if line and line[0] in ("Training", "Validation", "Bits")]
    assert titles == ["Training loss", "Validation loss", "Bits per"]
    ends = [line[-1] for line in lines if line and line[-1] in ("A", "B", "AB")]
    assert ends == ["B", "B", "B", "A", "B", "A", "AB"], "the heads of two tables; then the curves at their ends"


def test_identical_recipes_are_said(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(two / "again")
    assert compare("one", "again") == 0
    assert "the recipes are identical" in capsys.readouterr().out


def test_a_run_that_is_named_twice_is_one_run(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("one", "./one/") == 2
    problem = "only one run, one; expected two or more; add another run folder"
    assert capsys.readouterr() == ("", f"hornbook: error: {problem}\n")
    assert compare("one", "two", "one") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["run", "one", "two"]


def test_json_has_runs_differences_and_the_page(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("one", "two", "--html", "pages/both.html", "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["differences"] == {"training.seed": [1234, 5]}
    assert [run["state"] for run in found["runs"]] == ["finished", "finished"]
    assert found["page"] == "pages/both.html" and (two / "pages" / "both.html").is_file()
    assert max(err) > "\u2800", "the curves go where people read"
    assert compare("one", "two", "--html", "pages") == 2
    assert capsys.readouterr() == ("", "hornbook: error: --html pages is a folder: name a file in it\n")


def test_losses_of_different_objectives_share_no_chart(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(two / "bert", recipe=RECIPE.replace("causal_lm", "mlm"))
    assert compare("one", "bert", "two") == 0
    out = capsys.readouterr().out
    assert "note: losses of different objectives are not comparable: causal_lm, mlm" in out
    assert "Training loss of causal_lm (" in out and "Training loss of mlm (" in out


def test_different_validation_texts_are_said(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two / "two" / "run.json").write_text(json.dumps({"data": {"validation": "other"}}))
    assert compare("one", "two") == 0
    assert "note: the runs have different validation texts" in capsys.readouterr().out


@pytest.mark.parametrize(("over", "label"), [("steps", "step"), ("tokens", "tokens"), ("time", "seconds of training")])
def test_the_axis_can_be_chosen(two: Path, capsys: pytest.CaptureFixture[str], over: str, label: str) -> None:
    assert compare("one", "two", "--over", over) == 0
    assert re.search(rf"^ +{label}$", capsys.readouterr().out, re.MULTILINE)


def pieces_of(terminal: int) -> Iterator[bytes]:
    """Yield what is written to a terminal until nobody has it open any more."""
    with suppress(OSError):
        while piece := os.read(terminal, 1 << 16):
            yield piece


def test_a_terminal_of_80_columns_holds_everything(two: Path) -> None:
    """Long folders, values and many runs are wrapped; curves fit."""
    names = [f"a-run-with-quite-a-long-name-{number}" for number in range(7)]
    for number, name in enumerate(names):
        recipe = RECIPE.replace("seed = 1234", f"seed = {number}").replace("corpora/mine", f"corpora/{name}/and/more")
        make_run(two / name, recipe=recipe)
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "hornbook", "runs", "compare", *names]
    with subprocess.Popen(command, stdout=theirs, env=environment) as child:
        os.close(theirs)
        written = b"".join(pieces_of(ours))
    os.close(ours)
    assert child.returncode == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", written.decode())
    lines = text.replace("\r", "").split("\n")
    assert max(map(len, lines)) <= 80
    assert "\x1b[" in written.decode(), "colors tell the curves apart"
    assert text.count("state ") >= 2, "seven runs take several blocks"
    assert all(f"name-{number}" in text for number in range(7))


def test_an_output_without_braille_gets_letters(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert compare("one", "two") == 0
    text = written.getvalue().decode("ascii")
    assert re.search(r"\|.*B.*\n.*\|.*A", text)
    assert "\\u" not in text


def test_a_date_in_a_recipe_is_a_text_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = make_run(tmp_path / "one", recipe="when = 2026-11-20\nlist = [2026-11-20, 1]\n")
    two = make_run(tmp_path / "two", recipe="")
    assert compare(one, two, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == {"when": ["2026-11-20", None], "list": [["2026-11-20", 1], None]}


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = make_run(tmp_path / "one", recipe='name = "\\u001b[2J"\n[objective]\nname = "\\u001b[2J"\n')
    assert compare(one, make_run(tmp_path / "two")) == 0
    found = capsys.readouterr().out
    assert "\x1b" not in found
    assert r"\x1b[2J" in found
