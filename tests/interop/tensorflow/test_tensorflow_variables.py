"""BERTs of TensorFlow: which checkpoint is meant, what its model is, and all of its weights under our names."""

from pathlib import Path

import pytest
import torch
from tiny_bundle import google_variables, graphcore_variables, with_slots, write_bundle, write_json
from tiny_encoders import tiny_encoder, tiny_encoder_config
from tiny_huggingface import refusal, same, tiny_folder
from torch import Tensor

from hornbook.config import recipe_from_dict
from hornbook.exchange.huggingface import is_folder, read_folder
from hornbook.exchange.huggingface.families import BERT

PLAIN = {"qkv_bias": False, "projection_bias": False, "head_transform": False, "prediction_bias": False}
OPTIONS = {
    "vocab_size": 70,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
}
ARGUMENTS = {
    **OPTIONS,
    "task": "pretraining",
    "epsilon": 1e-6,
    "pipeline_stages": [["emb", "pos"], ["hid", "hid"], ["mlm", "nsp"]],
    "use_qkv_bias": False,
    "use_attention_projection_bias": False,
    "use_cls_layer": False,
}


def weights(**changes: object) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a tiny encoder as ours and, those and no others, under transformers' names."""
    model, config = tiny_encoder(**changes), tiny_encoder_config(**changes)
    ours = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    theirs = BERT.to_theirs(ours, config)
    return ours, {name: theirs[name] for weight in BERT.layout(config, "bert.") for name in weight.theirs}


def google(folder: Path, *names: str) -> dict[str, Tensor]:
    """A folder as Google published them, with one checkpoint or with several; returns the weights as ours."""
    ours, theirs = weights()
    for name in names or ("bert_model.ckpt",):
        write_bundle(folder / name, with_slots(google_variables(theirs), "adam_m", "adam_v"))
    write_json(folder / "bert_config.json", OPTIONS)
    return ours


def graphcore(folder: Path, **arguments: object) -> dict[str, Tensor]:
    """A run of Graphcore's BERT, without the biases and the transform that it leaves out."""
    ours, theirs = weights(**PLAIN)
    variables = with_slots(graphcore_variables(theirs), "lamb_m", "lamb_v")
    write_bundle(folder / "ckpt-100", variables | {"lamb_step_counter": torch.ones(1, dtype=torch.int32)})
    write_json(folder / "arguments.json", ARGUMENTS | arguments)
    return ours


def test_a_folder_as_google_published_them(tmp_path):
    expected, messages = google(tmp_path / "bert"), []
    assert is_folder(tmp_path / "bert")
    contents = read_folder(tmp_path / "bert", with_source=True, warn=messages.append)
    assert same(contents.tensors["model"], expected)
    recipe = recipe_from_dict(contents.documents["recipe"])
    assert (recipe.name, recipe.model.family, recipe.objective.name) == ("bert", "bert", "mlm_nsp")
    assert recipe.model.layer_norm_epsilon == 1e-12 and recipe.model.residual_dropout == 0.1
    files = contents.documents["source"]["files"]
    assert list(files) == ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
    count = 2 * len(expected) + 4 * 2 * 2 + 2  # query, key and value are three variables
    assert messages == [
        f"{tmp_path / 'bert' / 'bert_model.ckpt.index'}: the optimizer state is left out ({count} variables, such as "
        "'global_step')"
    ]


@pytest.mark.parametrize("source", ["bert", "bert/bert_model.ckpt", "bert/bert_model.ckpt.index"])
def test_a_checkpoint_by_its_folder_its_prefix_and_its_index(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    expected = google(tmp_path / "bert")
    assert is_folder(Path(source))
    assert same(read_folder(Path(source)).tensors["model"], expected)


@pytest.mark.parametrize("source", ["bert/bert", "bert/bert_model", "bert/bert_model.ckpt.index.index", "elsewhere"])
def test_what_is_no_checkpoint(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    google(tmp_path / "bert")
    assert not is_folder(Path(source))


def test_of_several_checkpoints_the_last_by_the_savers_list(tmp_path):
    expected = google(tmp_path / "bert", "ckpt-10", "ckpt-9", "ckpt-20")
    message = refusal(tmp_path / "bert")
    assert "has several checkpoints: ckpt-10, ckpt-20, ckpt-9; name one" in message
    assert same(read_folder(tmp_path / "bert" / "ckpt-9").tensors["model"], expected)
    for last in ("ckpt-20", "/somewhere/else/ckpt-20"):
        (tmp_path / "bert" / "checkpoint").write_text(
            f'model_checkpoint_path: "{last}"\nall_model_checkpoint_paths: "ckpt-10"\n'
        )
        source = read_folder(tmp_path / "bert", with_source=True).documents["source"]
        assert "ckpt-20.index" in source["files"]
    for text in ('model_checkpoint_path: "ckpt-99"', 'model_checkpoint_path: "../../x"', "", "\xff\0"):
        (tmp_path / "bert" / "checkpoint").write_text(text)
        assert "has several checkpoints" in refusal(tmp_path / "bert")


def test_a_run_of_graphcores_bert(tmp_path):
    expected, messages = graphcore(tmp_path / "run"), []
    contents = read_folder(tmp_path / "run", warn=messages.append)
    model = recipe_from_dict(contents.documents["recipe"]).model
    assert {name: getattr(model, name) for name in PLAIN} == PLAIN
    assert model.layer_norm_epsilon == 1e-3
    assert same(contents.tensors["model"], expected)
    assert len(messages) == 1 and "the optimizer state is left out" in messages[0]


@pytest.mark.parametrize("switch", PLAIN)
def test_each_of_its_switches(tmp_path, switch):
    names = {
        "qkv_bias": "use_qkv_bias",
        "projection_bias": "use_attention_projection_bias",
        "head_transform": "use_cls_layer",
        "prediction_bias": "use_prediction_bias",
    }
    changes = PLAIN | {switch: True}
    ours, theirs = weights(**changes)
    variables = graphcore_variables(theirs)
    for name in [name for name in variables if name.endswith("self/query/bias")]:
        biases = [variables.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        variables[name.replace("query/bias", "qkv_bias")] = torch.cat(biases)
    write_bundle(tmp_path / "run" / "ckpt-1", variables)
    write_json(tmp_path / "run" / "arguments.json", ARGUMENTS | {names[switch]: True})
    assert same(read_folder(tmp_path / "run" / "ckpt-1").tensors["model"], ours)
    write_json(tmp_path / "run" / "arguments.json", ARGUMENTS)
    assert "is not expected" in refusal(tmp_path / "run")


def test_its_feed_forward_is_four_times_as_wide_where_it_does_not_say(tmp_path):
    expected = graphcore(tmp_path / "run")
    write_json(tmp_path / "run" / "arguments.json", {k: v for k, v in ARGUMENTS.items() if k != "intermediate_size"})
    assert same(read_folder(tmp_path / "run").tensors["model"], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groupbert": True}, "arguments.json is for a GroupBERT"),
        ({"use_qkv_bias": True}, "bert.encoder.layer.0.attention.self.query.bias is missing"),
        ({"use_qkv_bias": "yes"}, "qkv_bias"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"num_hidden_layers": 3}, "bert.encoder.layer.2.attention.self.query.weight is missing"),
        ({"vocab_size": 71}, "bert.embeddings.word_embeddings.weight is [70, 32], expected [71, 32]"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path, arguments, message):
    graphcore(tmp_path / "run", **arguments)
    assert message in refusal(tmp_path / "run")


def test_half_precision_and_a_trunk_alone(tmp_path):
    ours, theirs = weights()
    variables = {name: tensor.half() for name, tensor in google_variables(theirs).items() if name.startswith("bert/")}
    write_bundle(tmp_path / "bert" / "x.ckpt", variables | {"cls/squad/output_weights": torch.ones(2, 32)})
    write_json(tmp_path / "bert" / "bert_config.json", OPTIONS)
    messages: list[str] = []
    found = read_folder(tmp_path / "bert", warn=messages.append).tensors["model"]
    assert same(
        {name: tensor for name, tensor in found.items() if not name.startswith("head.")},
        {name: tensor.half().float() for name, tensor in ours.items() if not name.startswith("head.")},
    )
    assert "no head for masked tokens, pairs of texts" in messages[0]
    assert "left out, since the model does not use them: qa_outputs.weight" in messages[1]


def test_one_weight_by_two_names(tmp_path):
    _, theirs = weights()
    variables = google_variables(theirs)
    variables["bert/embeddings/GroupNorm/gamma"] = variables["bert/embeddings/LayerNorm/gamma"]
    write_bundle(tmp_path / "bert" / "x.ckpt", variables)
    write_json(tmp_path / "bert" / "bert_config.json", OPTIONS)
    assert "has bert.embeddings.LayerNorm.weight twice" in refusal(tmp_path / "bert")


@pytest.mark.parametrize("config", [None, [], {"vocab_size": 70}, {"model_type": "t5"}, {"model_type": ["bert"]}])
def test_a_config_that_says_nothing(tmp_path, config):
    google(tmp_path / "bert")
    (tmp_path / "bert" / "bert_config.json").unlink()
    if config is None:
        assert "does not describe its model" in refusal(tmp_path / "bert" / "bert_model.ckpt")
    else:
        write_json(tmp_path / "bert" / "bert_config.json", config)
        assert "bert_config.json" in refusal(tmp_path / "bert")


def test_a_folder_without_the_checkpoint(tmp_path):
    google(tmp_path / "bert")
    (tmp_path / "bert" / "bert_model.ckpt.data-00000-of-00001").unlink()
    assert "bert_model.ckpt.data-00000-of-00001 is missing" in refusal(tmp_path / "bert")
    (tmp_path / "bert" / "bert_model.ckpt.index").unlink()
    assert refusal(tmp_path / "bert")


def test_weights_of_hugging_face_come_first(tmp_path):
    folder = tiny_folder(tmp_path / "hf")
    write_bundle(folder / "bert_model.ckpt", {"x": torch.ones(1)})
    assert recipe_from_dict(read_folder(folder).documents["recipe"]).model.family == "gpt"


def test_an_old_folder_of_pytorch_calls_its_config_as_google_did(tmp_path):
    ours, theirs = weights()
    (tmp_path / "old").mkdir()
    torch.save(theirs, tmp_path / "old" / "pytorch_model.bin")
    write_json(tmp_path / "old" / "bert_config.json", OPTIONS)
    assert is_folder(tmp_path / "old")
    assert same(read_folder(tmp_path / "old", allow_pickle=True).tensors["model"], ours)


def test_slots_are_identified_by_their_position_alone(tmp_path):
    """Whatever the optimizer calls them, and with neighbors whose names begin alike."""
    ours, theirs = weights()
    variables = google_variables(theirs)
    slots = {f"{name}/SomeOptimizer_{n}": torch.ones(3) for name in variables for n in (0, 1)}
    slots |= {f"{name}/deeper/still": torch.ones(3) for name in variables}
    write_bundle(tmp_path / "bert" / "x.ckpt", variables | slots)
    write_json(tmp_path / "bert" / "bert_config.json", OPTIONS)
    assert same(read_folder(tmp_path / "bert").tensors["model"], ours)
    write_bundle(tmp_path / "bert" / "x.ckpt", variables | {"bert/embeddings/LayerNorm/gamma_2": torch.ones(3)})
    assert "'bert.embeddings.LayerNorm.gamma_2' is not expected" in refusal(tmp_path / "bert")
