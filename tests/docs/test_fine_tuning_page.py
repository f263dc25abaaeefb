"""docs/fine-tuning.md: its recipes are written to files as they stand there, and its commands run with them."""

import json
from pathlib import Path

import pytest
from pages import ROOT, Shell, blocks_of, commands_of, write_texts
from tiny_labelled import QUESTIONS, labelled_rows, write_jsonl, write_squad

PAGE = ROOT / "docs" / "fine-tuning.md"
PRETRAINING = """
hornbook tokenizer train my-texts/ --kind wordpiece --vocab-size 200 --output tokenizers/mine
hornbook corpus build my-texts/ --tokenizer tokenizers/mine --sequences lines --output corpora/mine
hornbook train bert-tiny --data.train corpora/mine --training.steps 1 --training.global-batch-size 32
"""


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    write_texts(tmp_path / "my-texts")
    for command in PRETRAINING.strip().splitlines():
        shell.run(command)
    for block in blocks_of(PAGE):
        if block.file:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
    assert {path.name for path in tmp_path.glob("*.toml")} == {"classify.toml", "squad.toml"}
    write_jsonl(tmp_path / "train.jsonl", labelled_rows(4))
    write_jsonl(tmp_path / "dev.jsonl", labelled_rows())
    lines = [f'"{row["text"]}",{row["label"]}' for row in labelled_rows()]
    (tmp_path / "other.csv").write_text("\n".join(["text,label", *lines]))
    for name in ("train", "dev"):
        write_squad(tmp_path / f"{name}-v1.1.json", QUESTIONS)
    for command in commands_of(PAGE):
        shell.run(command)
    found = {
        name: json.loads((tmp_path / "runs" / name / "evaluation.json").read_text()) for name in ("classify", "squad")
    }
    assert {name: result["tasks"][0]["rows"][0]["metric"] for name, result in found.items()} == {
        "classify": "accuracy",
        "squad": "exact_match",
    }
    predicted = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("predictions", "answers")
    }
    assert [len(rows) for rows in predicted.values()] == [len(labelled_rows()), len(QUESTIONS)]
    config = json.loads((tmp_path / "hf" / "classify" / "config.json").read_text())
    assert config["id2label"] == {"0": "moby", "1": "pride"}
