import json
from pathlib import Path

import pytest
from fake_run import make_run

from hornbook.__main__ import main
from hornbook.track.notes import read_notes


def test_tags_of_several_runs_and_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (make_run(tmp_path / name) for name in ("one", "two"))
    assert main(["runs", "report", str(one)]) == 0
    assert main(["runs", "tag", str(one), str(two), "--add", "baseline", "--add", "paper"]) == 0
    assert main(["runs", "tag", str(two), "--remove", "paper"]) == 0
    assert main(["runs", "note", str(one), "rate too high"]) == 0
    assert read_notes(one).tags == ("baseline", "paper") and read_notes(two).tags == ("baseline",)
    page = (one / "report.html").read_text()
    assert '<span class="tag">paper</span>' in page and "rate too high" in page, "an existing report is written again"
    assert not (two / "report.html").exists()
    capsys.readouterr()
    assert main(["runs", "tag", str(one), str(two), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["tags"] for run in found["runs"]] == [["baseline", "paper"], ["baseline"]]
    assert main(["runs", "note", str(one)]) == 0
    assert capsys.readouterr().out == "rate too high\n"
    assert main(["runs", "list", str(tmp_path)]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.endswith("tags") and first.endswith("  baseline paper")
    assert main(["runs", "compare", str(one), str(two)]) == 0
    assert "rate too high" in capsys.readouterr().out
    assert main(["runs", "note", str(one), ""]) == 0
    assert capsys.readouterr().out == "no note\n"


@pytest.mark.parametrize(
    "words", [["--add", "two words"], ["--add", "ok", "--remove", "nope"], ["missing", "--add", "x"]]
)
def test_a_mistake_is_one_line_and_changes_no_run(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    assert main(["runs", "tag", str(run), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (run / "notes.json").exists()


def test_notes_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "notes.json").write_text(json.dumps({"tags": ["a\x1b[2J"], "note": "b\x1b]0;title\x07"}))
    for command in (
        ["list", str(tmp_path)],
        ["compare", str(run), str(make_run(tmp_path / "other"))],
        ["tag", str(run)],
        ["note", str(run)],
    ):
        assert main(["runs", *command]) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err and "\\x1b" in out, command
