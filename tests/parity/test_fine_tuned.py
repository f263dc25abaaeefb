"""Fine-tuned models of transformers, read here, and back: the same logits, the same losses, the same labels."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import hidden_states
from tiny_encoders import lay_out, make_samples
from tiny_huggingface import edit_config
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
)
from transformers.utils import logging

from hornbook.checkpoint import save
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.gpt2 import layout
from hornbook.exchange.restore import load_model
from hornbook.objective import build_objective

logging.disable_progress_bar()

SIZES = {"vocab_size": 70, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
CLASSIFIERS = (BertForSequenceClassification, RobertaForSequenceClassification)
PADDING = 69
SPAN_FINDERS = (BertForQuestionAnswering, RobertaForQuestionAnswering)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def peer(kind):
    """A random model of transformers with noise in every weight, in evaluation mode."""
    torch.manual_seed(3)
    names = NAMES if kind not in SPAN_FINDERS else {}
    if kind is GPT2ForSequenceClassification:
        sizes = {"vocab_size": 70, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 40, "n_positions": 24}
        config = GPT2Config(**sizes, **names, pad_token_id=PADDING, bos_token_id=68, eos_token_id=68)
    elif kind.__name__.startswith("Bert"):
        config = BertConfig(**SIZES, **names, max_position_embeddings=24)
    else:
        positions = {"max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        config = RobertaConfig(**SIZES, **names, **positions)
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.mark.parametrize("kind", [*CLASSIFIERS, *SPAN_FINDERS])
@pytest.mark.parametrize("layout", ["padded", "unpadded"])
def test_logits_losses_and_gradients_are_the_same(tmp_path, kind, layout):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path / "hf")
    messages = []
    checkpoint = save(tmp_path / "checkpoints", read_folder(tmp_path / "hf", warn=messages.append))
    assert messages == []
    loaded = load_model(checkpoint, torch.device("cpu"), compute="fp32")
    samples = make_samples([20, 20, 20])
    batch = lay_out(samples, layout)
    inputs = {"input_ids": torch.stack([sample.tokens for sample in samples])}
    if kind.__name__.startswith("Bert"):
        inputs["token_type_ids"] = torch.stack([sample.segments for sample in samples])
    if kind in CLASSIFIERS:
        batch["labels"] = torch.tensor([2, 0, 1])
        output = theirs(**inputs, labels=batch["labels"])
        logits, expected = loaded.model.head.label_logits(hidden_states(loaded.model, batch), batch), output.logits
    else:
        batch["labels"] = torch.tensor([[1, 4], [0, 0], [7, 19]])
        starts, ends = batch["labels"].T
        output = theirs(**inputs, start_positions=starts, end_positions=ends)
        logits = loaded.model.head.span_logits(hidden_states(loaded.model, batch), batch)
        expected = torch.stack([output.start_logits, output.end_logits], dim=2)
    torch.testing.assert_close(logits, expected, **CLOSE)
    objective = build_objective(loaded.recipe.objective)
    sums, counts = objective.sums(loaded.model.head, hidden_states(loaded.model, batch), batch), objective.counts(batch)
    name = next(iter(objective.weights))
    loss = sums[name] / counts[name]
    torch.testing.assert_close(loss, output.loss, **CLOSE)
    loss.backward()
    output.loss.backward()
    table = loaded.model.logical("embedding.tokens", loaded.model.embedding.tokens.grad)
    torch.testing.assert_close(table[2:], theirs.base_model.embeddings.word_embeddings.weight.grad[2:], **CLOSE)


def test_a_decoder_reads_the_last_token_that_is_no_padding(tmp_path):
    """Logits, loss and all gradients; padding is on the right, and no token of a text is padding."""
    theirs = peer(GPT2ForSequenceClassification)
    theirs.save_pretrained(tmp_path / "hf")
    checkpoint = save(tmp_path / "checkpoints", read_folder(tmp_path / "hf", warn=pytest.fail))
    loaded = load_model(checkpoint, torch.device("cpu"), compute="fp32")
    assert loaded.recipe.objective.labels == tuple(NAMES["label2id"])
    samples = [replace(sample, tokens=sample.tokens % 68) for sample in make_samples([20, 5, 4])]
    batch = {**lay_out(samples, "padded"), "labels": torch.tensor([2, 0, 1])}
    rows = [torch.nn.functional.pad(s.tokens, (0, 20 - len(s.tokens)), value=PADDING) for s in samples]
    output = theirs(input_ids=torch.stack(rows), labels=batch["labels"])
    logits = loaded.model.head.label_logits(hidden_states(loaded.model, batch), batch)
    torch.testing.assert_close(logits, output.logits, **CLOSE)
    objective = build_objective(loaded.recipe.objective)
    sums = objective.sums(loaded.model.head, hidden_states(loaded.model, batch), batch)
    loss = sums["classification"] / objective.counts(batch)["classification"]
    torch.testing.assert_close(loss, output.loss, **CLOSE)
    loss.backward()
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    own = {name: loaded.model.logical(name, parameter.grad) for name, parameter in loaded.model.own_parameters()}
    expected = {weight.ours: gradients[weight.their_name()] for weight in layout(loaded.recipe.model)}
    assert own.keys() == expected.keys() and len(own) == len(gradients)
    for weight in layout(loaded.recipe.model):
        torch.testing.assert_close(weight.to_theirs(own[weight.ours]), expected[weight.ours], **CLOSE)


@pytest.mark.parametrize("kind", [*CLASSIFIERS, *SPAN_FINDERS, GPT2ForSequenceClassification])
def test_there_and_back(tmp_path, kind):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path / "hf")
    contents = read_folder(tmp_path / "hf")
    write_folder(tmp_path / "back", contents)
    again = kind.from_pretrained(tmp_path / "back").eval()
    weights = theirs.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["architectures"] == [kind.__name__]
    if kind not in SPAN_FINDERS:
        assert again.config.id2label == NAMES["id2label"]
        assert contents.documents["recipe"]["objective"]["labels"] == ("bad", "so so", "good")


@pytest.mark.parametrize("kind", [CLASSIFIERS[0], GPT2ForSequenceClassification])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_type": "regression"}, "problem_type is 'regression'"),
        ({"id2label": {"0": "one"}}, "num_labels = 1 .*must be at least 2"),
    ],
)
def test_what_is_no_choice_of_one_class_is_refused(tmp_path, kind, change, message):
    peer(kind).save_pretrained(tmp_path / "hf")
    edit_config(tmp_path / "hf", **change)
    with pytest.raises(CheckpointError, match=message):
        read_folder(tmp_path / "hf")
