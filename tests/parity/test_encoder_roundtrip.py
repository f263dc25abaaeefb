"""BERTs and RoBERTas that transformers wrote, read here; those that hornbook wrote, read there: the same logits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import hidden_states
from tiny_bundle import google_variables, with_slots, write_bundle, write_json
from tiny_encoders import lay_out, make_samples, tiny_encoder, tiny_encoder_config
from tiny_huggingface import edit_config, edit_weights, refusal, same
from tiny_text import SHARED
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)
from transformers.utils import logging

from hornbook.checkpoint import Contents, load, save
from hornbook.config import EncoderConfig, Recipe, TrainingConfig, recipe_from_dict, recipe_to_dict
from hornbook.config.objectives import MaskedLMConfig, PretrainingConfig
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.families import BERT, ROBERTA
from hornbook.exchange.huggingface.model_card import MODEL_CARD
from hornbook.exchange.restore import load_model

logging.disable_progress_bar()

LOSSLESS = {"atol": 1e-5, "rtol": 0.0}
SIZES = {"vocab_size": 70, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
CONFIGS = {
    "bert": BertConfig(**SIZES, max_position_embeddings=24),
    "roberta": RobertaConfig(**SIZES, max_position_embeddings=26, type_vocab_size=1, layer_norm_eps=1e-5),
}
FAMILIES = ("bert", "roberta")
BIASES = ("qkv_bias", "projection_bias", "prediction_bias")


def peer(kind: type, **changes: object) -> torch.nn.Module:
    """A random model of transformers with noise in every weight."""
    torch.manual_seed(3)
    config = CONFIGS["roberta" if "Roberta" in kind.__name__ else "bert"]
    model = kind(type(config)(**{**config.to_dict(), **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def contents_of(family: str, **changes: object) -> Contents:
    """A checkpoint of a tiny encoder, without a tokenizer."""
    model, config = tiny_encoder(family, **changes), tiny_encoder_config(family, **changes)
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    objective = PretrainingConfig() if family == "bert" else MaskedLMConfig()
    recipe = Recipe(name="tiny", model=config, training=TrainingConfig(steps=1), objective=objective)
    return Contents(step=5, tensors={"model": weights}, documents={"recipe": recipe_to_dict(recipe)}, files={})


@torch.no_grad()
def our_outputs(folder: Path, family: str) -> list[Tensor]:
    model = load_model(folder, torch.device("cpu"), compute="fp32").model
    (sample,) = make_samples([20])
    batch = lay_out([sample], "unpadded")
    x_BTD = hidden_states(model, batch)
    outputs = [model.head.logits(x_BTD)]
    if family == "bert":
        outputs.append(model.head.classifier(model.head.pooled(x_BTD, batch["firsts"])))
    return outputs


@torch.no_grad()
def their_outputs(model: torch.nn.Module) -> list[Tensor]:
    (sample,) = make_samples([20])
    segments = {"token_type_ids": sample.segments[None]} if model.config.type_vocab_size > 1 else {}
    output = model(input_ids=sample.tokens[None], **segments)
    logits = output.prediction_logits if hasattr(output, "prediction_logits") else output.logits
    return [logits, output.seq_relationship_logits] if hasattr(output, "seq_relationship_logits") else [logits]


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, yours in zip(ours, theirs, strict=False):
        torch.testing.assert_close(mine, yours, **LOSSLESS)


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu", "layer_norm_eps": 1e-2}])
@pytest.mark.parametrize("kind", [BertForPreTraining, RobertaForMaskedLM])
def test_what_transformers_wrote_gives_the_same_logits(tmp_path, kind, changes):
    family = "bert" if kind is BertForPreTraining else "roberta"
    model = peer(kind, **changes)
    model.save_pretrained(tmp_path / "hf")
    messages: list[str] = []
    checkpoint = save(tmp_path / "checkpoints", read_folder(tmp_path / "hf", warn=messages.append))
    assert messages == []
    learned = load_model(checkpoint, torch.device("cpu")).recipe.objective.name
    assert learned == ("mlm_nsp" if family == "bert" else "mlm")
    close(our_outputs(checkpoint, family), their_outputs(model))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_what_tensorflow_wrote_gives_the_same_logits(tmp_path, num_shards):
    model = peer(BertForPreTraining)
    weights = {name: p.detach() for name, p in model.named_parameters() if "decoder" not in name}
    variables = with_slots(google_variables(weights), "adam_m", "adam_v")
    write_bundle(tmp_path / "google" / "bert_model.ckpt", variables, num_shards=num_shards)
    options = {
        key: value for key, value in model.config.to_dict().items() if key not in ("model_type", "architectures")
    }
    write_json(tmp_path / "google" / "bert_config.json", options)
    messages: list[str] = []
    checkpoint = save(
        tmp_path / "checkpoints", read_folder(tmp_path / "google" / "bert_model.ckpt", warn=messages.append)
    )
    assert len(messages) == 1 and "the optimizer state is left out" in messages[0]
    close(our_outputs(checkpoint, "bert"), their_outputs(model))


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        (BertForMaskedLM, ["no head for whole texts, pairs of texts: it starts from random weights"]),
        (BertModel, ["no head for masked tokens, pairs of texts"]),
        (
            RobertaModel,
            ["no head for masked tokens", "left out, since the model does not use them: pooler.dense"],
        ),
    ],
)
def test_heads_that_a_file_lacks_are_drawn_and_those_of_others_left_out(tmp_path, kind, messages):
    model = peer(kind)
    model.save_pretrained(tmp_path / "hf")
    warnings: list[str] = []
    contents = read_folder(tmp_path / "hf", warn=warnings.append)
    assert len(warnings) == len(messages)
    assert all(part in warning for part, warning in zip(messages, warnings, strict=True))
    assert contents.documents["recipe"]["objective"]["name"] == "mlm", "a drawn head has learned no pairs"
    family = "roberta" if kind is RobertaModel else "bert"
    ours = our_outputs(save(tmp_path / "checkpoints", contents), family)
    if kind is BertForMaskedLM:
        close(ours, their_outputs(model))
    again = read_folder(tmp_path / "hf", warn=warnings.append)
    assert same(again.tensors["model"], contents.tensors["model"]), "drawn by a seed"
    trunk = load_model(tmp_path / "hf", torch.device("cpu"), compute="fp32").model
    (sample,) = make_samples([9])
    inner = model if kind in (BertModel, RobertaModel) else model.bert
    segments = {"token_type_ids": sample.segments[None]} if family == "bert" else {}
    with torch.no_grad():
        theirs = inner(input_ids=sample.tokens[None], **segments).last_hidden_state
        torch.testing.assert_close(hidden_states(trunk, lay_out([sample], "unpadded")), theirs, **LOSSLESS)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (BertForMaskedLM, "the head for whole texts, pairs of texts"),
        (BertForNextSentencePrediction, "the head for masked tokens"),
        (BertModel, "the head for masked tokens, pairs of texts"),
        (RobertaModel, "the head for masked tokens"),
        (BertForPreTraining, None),
        (RobertaForMaskedLM, None),
    ],
)
def test_an_export_has_no_weights_that_were_never_trained(tmp_path, kind, message):
    peer(kind).save_pretrained(tmp_path / "hf")
    checkpoint = save(tmp_path / "checkpoints", read_folder(tmp_path / "hf", warn=lambda _: None))
    warnings: list[str] = []
    write_folder(tmp_path / "out", load(checkpoint), warn=warnings.append)
    assert warnings == ([f"left out, since it was never trained: {message}"] if message else [])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [kind.__name__]
    written, source = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "hf"))
    prefix = "" if kind in (BertModel, RobertaModel) else None
    trunk = "roberta." if "Roberta" in kind.__name__ else "bert."
    named = {name if prefix is None else f"{trunk}{name}": tensor for name, tensor in source.items()}
    left_out = {name for name in named if kind is RobertaModel and "pooler" in name}  # RoBERTa's is of no use here
    assert same(written, {name: tensor for name, tensor in named.items() if name not in left_out})
    _, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["unexpected_keys"] and len(report["missing_keys"]) == len(left_out)


@pytest.mark.parametrize(("objective", "is_reported"), [(MaskedLMConfig(), True), (PretrainingConfig(), False)])
def test_a_pair_head_that_the_objective_did_not_train_is_reported(tmp_path, objective, is_reported):
    contents = contents_of("bert")
    recipe = replace(recipe_from_dict(contents.documents["recipe"]), objective=objective)
    messages: list[str] = []
    trained = replace(contents, documents={"recipe": recipe_to_dict(recipe)})
    write_folder(tmp_path / "hf", trained, warn=messages.append)
    note = "the head for pairs of texts and its pooler are exported, although the objective mlm does not train them"
    assert messages == [note] * is_reported
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize("changes", [{}, {"activation": "gelu_tanh", "num_layers": 3}, {"num_segments": 5}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_hornbook_wrote_gives_the_same_logits_there_and_comes_back_bit_for_bit(tmp_path, family, changes):
    contents = contents_of(family, **changes)
    write_folder(tmp_path / "hf", contents)
    kind = AutoModelForPreTraining if family == "bert" else AutoModelForMaskedLM
    theirs, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    close(our_outputs(save(tmp_path / "checkpoints", contents), family), their_outputs(theirs.eval()))
    back = read_folder(tmp_path / "hf")
    assert same(back.tensors["model"], contents.tensors["model"])
    write_folder(tmp_path / "again", back)
    for path in (tmp_path / "hf").iterdir():
        if path.name == MODEL_CARD:  # it names what was exported
            continue
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize("absent", [("qkv_bias",), ("projection_bias",), ("prediction_bias",), BIASES], ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_biases_that_a_model_does_without_are_zeros_there(tmp_path, family, absent):
    messages: list[str] = []
    contents = contents_of(family, **dict.fromkeys(absent, False))
    write_folder(tmp_path / "hf", contents, warn=messages.append)
    kind = AutoModelForPreTraining if family == "bert" else AutoModelForMaskedLM
    theirs, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ours = our_outputs(save(tmp_path / "checkpoints", contents), family)
    close(ours, their_outputs(theirs.eval()))
    close(our_outputs(save(tmp_path / "back", read_folder(tmp_path / "hf")), family), ours)
    (note,) = messages
    assert all(f"model.{name}" in note for name in absent) and "written as zeros" in note


def test_a_dropout_that_is_lost_is_reported(tmp_path):
    messages: list[str] = []
    write_folder(
        tmp_path / "lossy", contents_of("bert", embedding_dropout=0.3, residual_dropout=0.1), warn=messages.append
    )
    assert messages == [
        "model.embedding_dropout 0.3 is lost: transformers has one hidden_dropout_prob, and model.residual_dropout 0.1 "
        "is written to it"
    ]
    assert json.loads((tmp_path / "lossy" / "config.json").read_text())["hidden_dropout_prob"] == 0.1
    write_folder(
        tmp_path / "hf", contents_of("bert", embedding_dropout=0.1, residual_dropout=0.1), warn=messages.append
    )
    assert len(messages) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_survives_the_way_out_and_in(family):
    words = BERT if family == "bert" else ROBERTA
    config = tiny_encoder_config(
        family,
        feed_forward_size=50,
        activation="silu",
        embedding_dropout=0.25,
        residual_dropout=0.25,
        attention_dropout=0.125,
        layer_norm_epsilon=1e-3,
        initializer_std=0.01,
        num_segments=3,
    )
    assert type(config)(**words.to_section(words.from_section(config), "x")) == config


def test_old_names_buffers_and_a_written_out_head(tmp_path):
    peer(BertForPreTraining).save_pretrained(tmp_path / "hf")
    expected = read_folder(tmp_path / "hf")

    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(24)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

    edit_weights(tmp_path / "hf", change)
    assert same(read_folder(tmp_path / "hf").tensors["model"], expected.tensors["model"])
    edit_weights(tmp_path / "hf", lambda tensors: tensors["cls.predictions.decoder.weight"].add_(1.0))
    assert "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings" in refusal(tmp_path / "hf")


def test_all_faults_of_the_weights_are_reported_together(tmp_path):
    peer(BertForPreTraining).save_pretrained(tmp_path / "hf")

    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["bert.encoder.layer.1.attention.self.key.bias"]
        del tensors["bert.pooler.dense.bias"]
        tensors["bert.encoder.layer.2.output.dense.bias"] = torch.ones(32)
        tensors["bert.encoder.layer.0.attention.self.query.weight"] = torch.ones(32, 16)
        tensors["cls.predictions.bias"][3] = torch.nan

    edit_weights(tmp_path / "hf", change)
    message = refusal(tmp_path / "hf")
    for part in (
        "bert.encoder.layer.1.attention.self.key.bias is missing",
        "bert.pooler.dense.bias is missing",
        "'bert.encoder.layer.2.output.dense.bias' is not expected",
        "bert.encoder.layer.0.attention.self.query.weight is [32, 16], expected [32, 32]",
        "cls.predictions.bias has values that are not finite",
    ):
        assert part in message
    assert message.count(";") == 4


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BertModel, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (
            BertModel,
            {"is_decoder": True, "hidden_act": "mish"},
            "is_decoder is True, expected False; hidden_act is ",
        ),
        (RobertaModel, {"pad_token_id": 0}, "pad_token_id is 0, expected 1"),
        (RobertaModel, {"max_position_embeddings": 2}, "max_position_embeddings = 0"),
        (BertModel, {"num_attention_heads": 5}, "num_attention_heads"),
        (BertModel, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 10000"),
        (BertModel, {"hidden_size": "wide"}, 'hidden_size = "wide" (config.json): expected an integer'),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path, kind, options, message):
    peer(kind).save_pretrained(tmp_path / "hf")
    edit_config(tmp_path / "hf", **options)
    assert message in refusal(tmp_path / "hf")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"qkv_bias": False, "head_transform": False}, "model.head_transform is false"),
        ("roberta", {"head_size": 6}, "model.head_size is 6"),
        ("groupbert", {}, "a model of the family 'groupbert' cannot be exported"),
    ],
)
def test_what_transformers_does_not_have_is_not_exported(tmp_path, family, changes, message):
    from hornbook.errors import CheckpointError

    with pytest.raises(CheckpointError, match=message):
        write_folder(tmp_path / "hf", contents_of(family, **changes))
    assert not (tmp_path / "hf").exists()


def test_a_classifier_has_no_transform_to_miss():
    config = tiny_encoder_config("bert", head="classification", num_labels=3, head_transform=False)
    assert BERT.from_section(config)["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not here")
def test_a_strangers_pickled_classifier(tmp_path):
    folder, messages = SHARED / "checkpoints" / "hf_tiny_bert_cls", []
    contents = read_folder(folder, allow_pickle=True, warn=messages.append)
    assert not any("head" in warning for warning in messages)
    config = recipe_from_dict(contents.documents["recipe"]).model
    assert isinstance(config, EncoderConfig)
    assert (config.num_layers, config.hidden_size, config.feed_forward_size, config.num_segments) == (5, 32, 37, 16)
    model = load_model(save(tmp_path / "checkpoints", contents), torch.device("cpu"), compute="fp32").model
    theirs = BertForSequenceClassification.from_pretrained(folder).eval()
    (sample,) = make_samples([200], vocab_size=1124)
    with torch.no_grad():
        batch = lay_out([sample], "unpadded")
        expected = theirs(input_ids=sample.tokens[None], token_type_ids=sample.segments[None]).logits
        torch.testing.assert_close(model.head.label_logits(hidden_states(model, batch), batch), expected, **LOSSLESS)
    write_folder(tmp_path / "hf", contents)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["type_vocab_size"] == 16


def test_bf16_weights_come_in_as_fp32(tmp_path):
    write_folder(tmp_path / "hf", contents_of("bert"), dtype="bf16")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    save_file(weights, tmp_path / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in read_folder(tmp_path / "hf").tensors["model"].values()} == {torch.float32}
