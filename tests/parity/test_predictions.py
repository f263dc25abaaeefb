"""Probabilities, answers and vectors of `hornbook predict` and `embed`, against transformers on what we export."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoder_runs import encoder_contents
from tiny_huggingface import tiny_folder
from tiny_labelled import CONTEXT, QUESTIONS, labelled_rows, word_pieces, write_jsonl, write_squad
from tiny_text import TEXTS, tiny_tokenizer
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    GPT2Model,
)
from transformers.utils import logging

from hornbook.__main__ import main
from hornbook.config import ClassificationConfig, SpanConfig
from hornbook.exchange.huggingface import write_folder

logging.disable_progress_bar()

LABELS = ("bad", "so so", "good")


def exported(folder: Path, objective, **changes) -> Path:
    """Write a random fine-tuned encoder as a Hugging Face folder."""
    write_folder(folder, encoder_contents("bert", word_pieces(), objective, **changes))
    return folder


def theirs_of(folder: Path) -> BertTokenizer:
    return BertTokenizer(vocab=dict(word_pieces().vocab), do_lower_case=True)


def lines(capsys, *words) -> list[dict]:
    capsys.readouterr()
    assert main([*map(str, words), "--threads", "1"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("second", [None, "other"])
def test_probabilities(tmp_path, capsys, second):
    objective = ClassificationConfig(labels=LABELS, second_text=second)
    folder = exported(tmp_path / "hf", objective, head="classification", num_labels=3)
    rows = [{"text": row["text"], "other": f"whale {number}"} for number, row in enumerate(labelled_rows(3))]
    file = write_jsonl(tmp_path / "x.jsonl", rows)
    found = lines(capsys, "predict", folder, file, "--batch-size", 4, *(["--second-text", second] if second else []))
    model, tokenizer = BertForSequenceClassification.from_pretrained(folder).eval(), theirs_of(folder)
    for row, ours in zip(rows, found, strict=True):
        texts = [row["text"], row["other"]] if second else [row["text"]]
        with torch.no_grad():
            expected = model(**tokenizer(*texts, return_tensors="pt")).logits[0].softmax(0).tolist()
        assert [ours["probabilities"][label] for label in LABELS] == pytest.approx(expected, abs=2e-6)
        assert ours["label"] == LABELS[int(np.argmax(expected))]


def test_answers(tmp_path, capsys):
    folder = exported(tmp_path / "hf", SpanConfig(), head="span", max_positions=256)
    file = write_squad(tmp_path / "x.json", QUESTIONS)
    found = lines(capsys, "predict", folder, file, "--num-best", 5)
    model, tokenizer = BertForQuestionAnswering.from_pretrained(folder).eval(), word_pieces()
    special = tokenizer.require_masking()
    ((ids, offsets),) = tokenizer.encode_with_offsets([CONTEXT])
    for asked, ours in zip(QUESTIONS, found, strict=True):
        before = [special.cls, *tokenizer.encode(asked["question"]), special.sep]
        tokens = torch.tensor([[*before, *ids.tolist(), special.sep]])
        segments = (torch.arange(tokens.numel()) >= len(before)).long()[None]
        with torch.no_grad():
            output = model(input_ids=tokens, token_type_ids=segments)
        begins, ends = (logits[0, len(before) : -1].tolist() for logits in (output.start_logits, output.end_logits))
        spans = [(a, b) for a in range(len(ids)) for b in range(a, min(a + 30, len(ids)))]
        best = sorted(spans, key=lambda span: -(begins[span[0]] + ends[span[1]]))[:5]
        assert ours["id"] == asked["id"]
        assert [(each["start"], each["end"]) for each in ours["n_best"]] == [
            (offsets[a, 0], offsets[b, 1]) for a, b in best
        ]
        assert [each["score"] for each in ours["n_best"]] == pytest.approx(
            [begins[a] + ends[b] for a, b in best], abs=1e-5
        )
        assert ours["answer"] == CONTEXT[ours["start"] : ours["end"]]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_vectors_of_an_encoder(tmp_path, capsys, pooling):
    folder = exported(tmp_path / "hf", None)
    texts = [row["text"] for row in labelled_rows(2)]
    (tmp_path / "x.txt").write_text("\n".join(texts))
    found = lines(capsys, "embed", folder, tmp_path / "x.txt", "--pooling", pooling)
    model, tokenizer = BertModel.from_pretrained(folder).eval(), theirs_of(folder)
    pool = {
        "mean": lambda states: states.mean(0),
        "max": lambda states: states.amax(0),
        "cls": lambda states: states[0],
    }
    for text, ours in zip(texts, found, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(ours["embedding"], pool[pooling](states).numpy(), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_of_a_gpt(tmp_path, capsys, pooling):
    folder = tiny_folder(tmp_path / "hf", max_positions=64)
    texts = [text.strip() for text in TEXTS[:5]]
    found = lines(
        capsys,
        "embed",
        folder,
        write_jsonl(tmp_path / "x.jsonl", [{"text": text} for text in texts]),
        "--pooling",
        pooling,
    )
    model = GPT2Model.from_pretrained(folder).eval()
    for text, ours in zip(texts, found, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([tiny_tokenizer().encode(text)[:64]])).last_hidden_state[0]
        expected = states[-1] if pooling == "last" else states.mean(0)
        np.testing.assert_allclose(ours["embedding"], expected.numpy(), atol=1e-5)
