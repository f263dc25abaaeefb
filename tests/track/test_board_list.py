import html
import re
from pathlib import Path

import pytest
from fake_run import RECIPE, default_rows, make_run, train_row

from hornbook.storage.files import lock_folder
from hornbook.track.board import Board
from hornbook.track.notes import Notes, write_notes

HOSTILE = "</span><script>alert(1)</script>"


def cards(board: Board, **choice: str) -> list[str]:
    """The names on the cards of the list, in order, each heading as ``= text``."""
    source = board.answer({name: [value] for name, value in choice.items()})["parts"]["runs"]
    found = re.findall(r"<h3>(.*?) <small>|<strong>(.*?)(?:<small>.*?)?</strong>", source)
    return [html.unescape(f"= {heading}" if heading else name) for heading, name in found]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Three runs: a, not validated; b-10, tagged; b-9, with the least loss and another seed."""
    train = [row for row in default_rows() if row["kind"] == "train"]
    (make_run(tmp_path / "a", rows=train[:20]) / "evaluation.json").unlink()
    tagged = make_run(tmp_path / "b-10")
    write_notes(tagged, Notes(tags=("paper", HOSTILE), note=f"too slow {HOSTILE}"))
    better = [row | {"loss": 1.0} if row["kind"] == "validation" else row for row in default_rows()]
    make_run(tmp_path / "b-9", rows=better, recipe=RECIPE.replace("seed = 1234", "seed = 5"))
    return Board([tmp_path])


def test_the_list_is_in_the_order_that_was_chosen(board: Board) -> None:
    assert cards(board) == cards(board, sort="nonsense") == ["A  a", "B  b-10", "C  b-9"]
    assert cards(board, sort="name") == ["A  a", "C  b-9", "B  b-10"], "numbers in names by value"
    assert cards(board, sort="validation") == ["C  b-9", "B  b-10", "A  a"], "without a value last"
    assert cards(board, sort="progress") == ["B  b-10", "C  b-9", "A  a"]


def test_groups_of_numbers_are_in_their_order(tmp_path: Path) -> None:
    for at, rate in enumerate((1e-3, 1e-5, 0.02, 1e-4)):
        make_run(tmp_path / f"{at}", recipe=f"{RECIPE}\n[optimizer]\nlearning_rate = {rate}\n")
    headings = cards(Board([tmp_path]), group="optimizer.learning_rate")[::2]
    assert [heading.rpartition(" ")[2] for heading in headings] == ["1e-05", "0.0001", "0.001", "0.02"]


def test_words_find_names_tags_states_and_notes(board: Board) -> None:
    assert cards(board, find="PAPER") == cards(board, find="slow b-") == ["B  b-10"]
    assert cards(board, find="b-") == ["B  b-10", "C  b-9"]
    assert cards(board, find="nowhere") == []
    assert "0 of 3 runs" in board.answer({"find": ["nowhere"]})["parts"]["runs"]


def test_groups_are_values_of_the_recipe_states_and_tags(board: Board) -> None:
    options = board.answer({})["parts"]["group"]
    assert re.findall('value="(.*?)"', options) == ["", "state", "tag", "training.seed"], "only keys that differ"
    assert cards(board, group="training.seed") == [
        "= training.seed: 5", "C  b-9", "= training.seed: 1234", "A  a", "B  b-10"
    ]  # fmt: skip
    assert cards(board, group="tag")[:3] == ["= no tag", "A  a", "C  b-9"]
    assert cards(board, group="tag")[3:] == ["= paper", "B  b-10", f"= {HOSTILE}", "B  b-10"]
    assert cards(board, group="state") == ["= finished", "B  b-10", "C  b-9", "= stopped", "A  a"]
    assert cards(board, group="no such key") == cards(board)


def test_a_card_has_one_named_loss_and_hostile_notes_stay_texts(board: Board) -> None:
    source = board.answer({})["parts"]["runs"]
    a, b, _ = re.findall(r"<li>.*?</li>", source)
    assert "<span>training loss <b>2.3000</b> at step 20</span>" in a
    assert "<span>validation loss <b>2.6000</b> at step 40 (800 tokens)</span>" in b and "training loss" not in b
    assert "<script" not in source and b.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert '<span class="tag">paper</span>' in b and '<span class="remark">too slow ' in b


def test_a_running_run_has_its_time_left(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=[train_row(10)])
    with lock_folder(run):
        answer = Board([tmp_path]).answer({})
        assert "step 10/40 · 15 s left" in answer["parts"]["runs"] and "15 s left" in answer["parts"]["head"]
    assert "left" not in Board([tmp_path]).answer({})["parts"]["runs"]


def test_a_loss_before_a_newer_evaluation_is_gray(tmp_path: Path) -> None:
    make_run(tmp_path / "run", rows=default_rows()[:-3])  # validated at step 30, evaluated at step 40
    assert '<b class="old">2.5000</b> at step 30' in Board([tmp_path]).answer({})["parts"]["runs"]


def test_new_notes_appear_while_the_board_is_open(board: Board, tmp_path: Path) -> None:
    before = board.answer({})
    write_notes(tmp_path / "a", Notes(note="now written"))
    after = board.answer({"have": [before["signature"]], "run": before["selected"]})
    assert "now written" in after["parts"]["runs"]
