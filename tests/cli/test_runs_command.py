import json
import re
from pathlib import Path

import pytest
from fake_run import make_run

from hornbook.__main__ import main
from hornbook.wording import one_line


def last_object(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_list_has_a_line_for_each_run_and_hides_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    broken = make_run(tmp_path / "c")
    (broken / "recipe.toml").write_text("[model\n")
    assert main(["runs", "list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = ["run", "state", "objective", "step", "tokens", "loss", "valid", "best", "bits/B", "tok/s", "time"]
    assert lines[0].split() == head
    assert lines[1].split() == [
        str(tmp_path / "a"),
        "finished",
        "causal_lm",
        "40/40",
        "41.0k",
        "2.1500",
        "2.6000",
        "2.5000",
        "@30",
        "1.790",
        "2k",
        "20",
        "s",
    ]
    assert lines[2].startswith(str(tmp_path / "b"))
    assert lines[3].startswith("@ the step at which")
    assert lines[4].startswith(f"unreadable: {broken / 'recipe.toml'}")
    assert len(lines) == 5


@pytest.mark.parametrize("words", [["list", "."], ["compare", "a", "b"], ["report", "b"]], ids=" ".join)
def test_a_damaged_by_product_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(tmp_path / name)
    (tmp_path / "b" / "evaluation.json").write_text('{"tasks": [')
    assert main(["runs", *words]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("b/evaluation.json: the evaluation is not valid JSON") == 1
    assert "error" not in said


def test_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a")
    assert main(["runs", "list", str(tmp_path), "--json"]) == 0
    found = last_object(capsys)
    [run] = found["runs"]
    assert (run["name"], run["step"], run["best_validation_loss"]) == ("demo", 40, 2.5)
    assert found["unreadable"] == []


def test_list_looks_into_runs_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "demo")
    assert main(["runs", "list"]) == 0
    assert "runs/demo" in capsys.readouterr().out


def test_no_runs_are_said_and_no_folder_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert "hornbook train" in capsys.readouterr().out
    assert main(["runs", "list", str(tmp_path / "missing")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (tmp_path / "file").touch()
    assert main(["runs", "list", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.endswith("file is a file; expected a folder with runs\n")


def test_bits_per_byte_of_the_validation_loss_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (make_run(tmp_path / "a") / "evaluation.json").unlink()
    assert main(["runs", "list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1.733*" in lines[1]
    assert lines[2].startswith("* with the validation loss")


@pytest.mark.parametrize("words", [["compare"], ["compare", "one"], ["compare", "one", "missing"], ["report"], []])
def test_a_mistake_is_one_line(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "one")
    paths = [str(tmp_path / word) if word in ("one", "missing") else word for word in words]
    assert main(["runs", *paths]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_report_writes_and_names_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    assert main(["runs", "report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert main(["runs", "report", str(run), "--json"]) == 0
    assert last_object(capsys) == {"report": str(run / "report.html")}


ESCAPES = "a\x1b]0;title\x07\x1b[2Jb"


def test_names_of_folders_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / ESCAPES)
    (run / "samples.jsonl").write_text("{}\n{}\n")
    page = str(run / "x.html")
    commands = (
        ["runs", "list", str(tmp_path)],
        ["runs", "report", str(run)],
        ["runs", "compare", str(run), str(make_run(tmp_path / "other")), "--html", page],
        ["runs", "list", str(run / "missing")],
        ["checkpoint", "list", str(run)],
        ["checkpoint", "verify", str(run)],
        ["recipes", "copy", "demo", str(run / "copy.toml")],
    )
    for command in commands:
        main(command)
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err, command
    (run / "samples.jsonl").unlink()
    assert main(["runs", "report", str(run)]) == 0
    assert capsys.readouterr().out == f"{one_line(str(run / 'report.html'))}\n"


def test_a_narrow_terminal_gets_fewer_columns(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    heads = []
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["runs", "list", "."]) == 0
        out = capsys.readouterr().out
        assert ("\x1b[2m2.5000 @30\x1b[22m" in out) == (width > 60), "older than the last step: dim"
        lines = re.sub(r"\x1b\[\d+m", "", out).splitlines()
        assert max(map(len, lines)) <= width
        heads.append(lines[0].split())
    narrow, usual, wide = map(set, heads)
    assert narrow < usual < wide and {"run", "step", "valid"} <= narrow and "objective" not in usual
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["runs", "list", "."]) == 0
    assert "\x1b" not in capsys.readouterr().out
