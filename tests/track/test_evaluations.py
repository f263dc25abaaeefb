import json
from pathlib import Path
from typing import Any

import pytest
from fake_run import EVALUATION, OPTIONS, VALIDATION

from hornbook.errors import DataError
from hornbook.track.evaluations import add_evaluations, options_of, own_bits_per_byte, read_evaluations, text_of

OWN: dict[str, Any] = EVALUATION["tasks"][0]
OLD = {
    "step": 40,
    "checkpoint": "runs/demo/checkpoints/step-00000040",
    "tasks": [{"name": "x", "rows": [{"value": 1}]}],
}


def evaluation(value: float = 3.0, **changes: Any) -> dict[str, Any]:
    return {**OWN, "rows": [{"metric": "bits_per_byte", "value": value}], **changes}


def test_a_second_evaluation_replaces_none_and_a_repeated_one_its_date(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    other_text = {"name": "corpora/mine/train", "split": "train", "fingerprint": "7e57"}
    others = [
        evaluation(data=other_text),
        evaluation(name="lambada"),
        evaluation(options={**OPTIONS, "window": 16}),
        evaluation(options={**OPTIONS, "compute": "bf16"}),
        evaluation(checkpoint="runs/demo/checkpoints/step-00000020", step=20),
    ]
    add_evaluations(path, [evaluation()])
    for other in others:
        add_evaluations(path, [other])
    assert read_evaluations(path) == [evaluation(), *others]
    add_evaluations(path, [evaluation(date="later", checkpoint="/moved/demo/checkpoints/step-00000040")])
    found = read_evaluations(path)
    assert found[:-1] == others
    assert found[-1]["date"] == "later"


def test_a_text_without_a_fingerprint_is_repeated_only_if_its_numbers_are(tmp_path: Path) -> None:
    path, unknown = tmp_path / "evaluation.json", {"name": "hub:some/set"}
    for value in (3.0, 2.0, 3.0):
        add_evaluations(path, [evaluation(value, data=unknown)])
    assert [task["rows"][0]["value"] for task in read_evaluations(path)] == [2.0, 3.0]


def test_files_of_earlier_versions_are_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(OLD))
    (old,) = read_evaluations(path)
    assert old == {**OLD["tasks"][0], "step": 40, "checkpoint": OLD["checkpoint"]}
    assert text_of(old) == "a text that was not recorded"
    add_evaluations(path, [evaluation()])
    assert read_evaluations(path) == [old, evaluation()]


def test_a_malformed_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text('{"tasks": [{"name": "x"}]}')
    with pytest.raises(DataError, match="remove the file and evaluate again"):
        add_evaluations(path, [evaluation()])
    assert path.read_text() == '{"tasks": [{"name": "x"}]}'


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"name": "corpora/mine/train", "split": "train", "fingerprint": "7e57"}},
        {"data": None},
        {"name": "wikitext2"},
        *({"options": {**OPTIONS, name: 8}} for name in ("window", "overlap", "max_sequences")),
        {"rows": [{"metric": "bits_per_byte", "value": None}]},
    ],
    ids=str,
)
def test_only_the_own_split_by_the_default_convention_is_the_runs_number(changes: dict[str, Any]) -> None:
    assert own_bits_per_byte([evaluation(**changes)], VALIDATION) is None
    assert own_bits_per_byte([evaluation(), evaluation(1.0, **changes)], VALIDATION) == evaluation()


def test_the_newest_own_evaluation_counts() -> None:
    early, late, repeated = evaluation(4.0, step=20), evaluation(3.0), evaluation(2.9, options={"compute": "bf16"})
    assert own_bits_per_byte([late, early], VALIDATION) == late
    assert own_bits_per_byte([early, late, repeated], VALIDATION) == repeated
    assert own_bits_per_byte([evaluation(data={"fingerprint": None})], None) is None


def test_a_text_and_its_options_are_named() -> None:
    assert text_of(OWN) == "corpora/mine, validation split"
    assert text_of({"data": {"name": "wiki.test.raw"}}) == "wiki.test.raw"
    assert options_of(OWN) == ""
    assert options_of({"options": {**OPTIONS, "window": 16, "max_sequences": 5}}) == "window 16, max sequences 5"
