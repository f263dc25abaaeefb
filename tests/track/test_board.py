import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_run import RECIPE, default_rows, make_run, train_row

from hornbook.track.board import SEARCH_SECONDS, Board
from hornbook.track.metrics import MetricsLog, Tail


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(answer: dict[str, Any]) -> dict[str, list[str]]:
    """The question that a page asks after an answer."""
    known = {run["id"]: f"{run['token']}.{run['at']}" for run in answer["curves"]}
    shown = answer["selected"]
    return {"run": shown, "seen": [known.get(run, "") for run in shown], "have": [answer["signature"]]}


def test_only_new_rows_are_sent_and_nothing_where_nothing_changed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    board = Board([tmp_path])
    first = board.answer({})
    assert first["selected"] == [str(run)] and first["curves"][0]["at"] == len(default_rows())
    assert "<h1>run <small>recipe demo</small></h1>" in first["parts"]["head"] and "def f" not in first["parts"]["head"]
    assert board.answer(seen(first)) == {"signature": first["signature"]}
    with MetricsLog(run / "metrics.jsonl") as log:
        log.append(train_row(41))
    second = board.answer(seen(first))
    (curves,) = second["curves"]
    assert (curves["from"], curves["at"]) == (len(default_rows()), len(default_rows()) + 1)
    assert curves["series"]["train/loss"]["points"] == [(41, pytest.approx(2 + 6 / 41))]
    json.dumps(second, allow_nan=False)


def test_a_log_that_a_resume_replaced_is_sent_as_a_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    board = Board([tmp_path])
    first = board.answer({})
    (make_run(tmp_path / "other", rows=[train_row(1)]) / "metrics.jsonl").replace(run / "metrics.jsonl")
    (curves,) = board.answer(seen(first))["curves"]
    assert (curves["from"], curves["at"]) == (0, 1)
    assert curves["token"] != first["curves"][0]["token"]


def test_a_disk_that_does_not_answer_stops_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = make_run(tmp_path / "stuck"), make_run(tmp_path / "other")
    answers, read_rows = threading.Event(), Tail.new_rows

    def new_rows(tail: Tail) -> tuple[list[dict[str, Any]], bool]:
        if tail.path.parent == stuck:
            answers.wait()
        return read_rows(tail)

    monkeypatch.setattr(Tail, "new_rows", new_rows)
    board = Board([tmp_path], patience=0.1)
    wanted = {"run": [str(stuck), str(other)]}
    try:
        while len((answer := board.answer(wanted))["curves"]) < 1:
            pass
        assert [curves["id"] for curves in answer["curves"]] == [str(other)]
        assert "its disk has not answered" in answer["parts"]["head"] and "no answer" in answer["parts"]["runs"]
        assert board.answer(seen(answer)) == {"signature": answer["signature"]}, "while nothing changes"
    finally:
        answers.set()
    while len(board.answer(wanted)["curves"]) < 2:
        pass
    assert len(board.answer(wanted)["curves"]) == 2


def test_twelve_runs_have_twelve_styles_and_the_list_is_in_order(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run-{at:02d}") for at in range(12)]
    board = Board([tmp_path])
    d_and_l = board.answer({"run": [str(runs[3]), str(runs[11])]})
    assert [(run["label"], run["number"]) for run in d_and_l["curves"]] == [("D", 0), ("L", 1)]
    assert '<span class="key run1">L</span>' in d_and_l["parts"]["before"]
    everything = board.answer({"run": [str(run) for run in runs]})
    assert len({run["number"] for run in everything["curves"]}) == 12
    assert '<span class="key run0 dash1">I</span>' in everything["parts"]["before"]
    assert re.findall(r"<strong>(\w)  run-", everything["parts"]["runs"]) == list("ABCDEFGHIJKL")


def test_runs_keep_their_color_while_others_come_and_go(tmp_path: Path) -> None:
    a, b, c = (str(make_run(tmp_path / name)) for name in ("a", "b", "c"))
    board = Board([tmp_path])

    def colors(shown: list[str], styles: list[str]) -> dict[str, int]:
        found = board.answer({"run": shown, "style": styles})
        assert found["selected"] == shown
        assert [run["label"] for run in found["curves"]] == sorted(run["label"] for run in found["curves"])
        return {run["label"]: run["number"] for run in found["curves"]}

    assert colors([c], [""]) == {"C": 0}
    assert colors([c, a], ["0", ""]) == {"A": 1, "C": 0}
    assert colors([a], ["1"]) == {"A": 1}
    assert colors([a, b, c], ["1", "", ""]) == {"A": 1, "B": 0, "C": 2}
    assert colors([a, b], ["1", "1"]) == {"A": 1, "B": 0}, "one each"
    assert colors([a, b], ["999", "-1"]) == {"A": 0, "B": 1}, "what is no style counts for nothing"


def test_runs_appear_and_disappear_and_keep_their_labels(tmp_path: Path) -> None:
    clock = Clock()
    board = Board([tmp_path, tmp_path / "later"], clock)
    assert "hornbook train" in board.answer({})["parts"]["head"]
    b = make_run(tmp_path / "b")
    assert board.answer({})["selected"] == []
    clock.now += SEARCH_SECONDS
    assert board.answer({})["curves"][0]["number"] == 0
    a = make_run(tmp_path / "later" / "a", recipe=RECIPE.replace("seed = 1234", "seed = 5"))
    clock.now += SEARCH_SECONDS
    both = board.answer({"run": [str(a), str(b), "nonsense", "/etc"]})
    assert [(run["label"], run["number"]) for run in both["curves"]] == [("A", 1), ("B", 0)]
    assert "<h1>2 runs</h1>" in both["parts"]["head"] and "training.seed" in both["parts"]["after"]
    assert both["parts"]["runs"].count('type="checkbox"') == 2


def test_an_unreadable_run_says_so_and_hides_no_other(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    board = Board([tmp_path])
    answer = board.answer({"run": [str(run), str(other)]})
    assert "metrics.jsonl:45" in answer["parts"]["head"] and "unreadable" in answer["parts"]["runs"]
    assert [found["id"] for found in answer["curves"]] == [str(other)]
    log = run / "metrics.jsonl"
    log.write_text(log.read_text().replace("nonsense\n", ""))
    assert len(board.answer(seen(answer))["curves"]) == 2


def test_rows_of_runs_that_are_not_shown_are_forgotten_and_read_again(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    board = Board([tmp_path])
    first = board.answer({"run": [str(a)]})
    second = board.answer({"run": [str(b)]})
    third = board.answer({"run": [str(a)], "seen": [f"{first['curves'][0]['token']}.{first['curves'][0]['at']}"]})
    assert [len(answer["curves"]) for answer in (first, second, third)] == [1, 1, 1]
    assert third["curves"][0]["from"] == 0, "a token of rows that were forgotten counts for nothing"


def test_a_tail_reads_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.new_rows() == ([], True)
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert tail.new_rows() == ([{"step": 1}, {"step": 2}], True)
    assert tail.new_rows() == ([], False)
    with path.open("a") as file:
        file.write('ep": 3}\n')
    assert tail.new_rows() == ([{"step": 3}], False)
    path.write_text('{"step": 1}\n')
    assert tail.new_rows() == ([{"step": 1}], True), "shortened"
