import math

import pytest
import torch
from tiny import tiny_config, tiny_model
from tiny_huggingface import edit_config, edit_weights, refusal, same, tiny_contents, tiny_folder

from hornbook.config import GPTConfig, recipe_from_dict
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import read_folder
from hornbook.exchange.huggingface.gpt2 import from_section, layout, read, to_section, to_theirs

PREFIX = "transformer."


def test_the_layout_is_that_of_the_model():
    for config in (tiny_config(), tiny_config(num_heads=4, head_size=6, feed_forward_size=40, num_layers=3)):
        model = tiny_model(num_heads=config.num_heads) if config.head_size is None else None
        weights = list(layout(config))
        assert sum(math.prod(weight.shape) for weight in weights) == config.num_parameters()
        if model is not None:
            own = {name: tuple(model.logical(name, tensor).shape) for name, tensor in model.own_parameters()}
            assert {weight.ours: weight.shape for weight in weights} == own


def test_matrices_are_transposed_and_query_key_and_value_are_concatenated():
    config = tiny_config(num_layers=1)
    weights = {weight.theirs: weight for weight in layout(config)}
    qkv = torch.arange(16 * 48.0).reshape(16, 48)
    ours = weights["h.0.attn.c_attn.weight"].to_ours(qkv)
    assert ours.shape == (3, 16, 16)
    assert torch.equal(ours[1], qkv[:, 16:32].t()), "the key is the second third of the columns"
    assert torch.equal(weights["h.0.attn.c_attn.weight"].to_theirs(ours), qkv)
    assert weights["h.0.mlp.c_fc.weight"].their_shape == (16, 64)
    assert weights["wte.weight"].their_shape == (70, 16)


def test_there_and_back_is_the_identity():
    contents = tiny_contents()
    config = recipe_from_dict(contents.documents["recipe"]).model
    theirs = to_theirs(contents.tensors["model"], config)
    assert all(name.startswith(PREFIX) for name in theirs)
    assert same(read(theirs, config, tied=True, what="x").weights, contents.tensors["model"])


@pytest.mark.parametrize("prefix", [PREFIX, ""])
@pytest.mark.parametrize("head", ["absent", "present"])
@pytest.mark.parametrize("buffers", ["absent", "present"])
def test_both_layouts_are_read(tmp_path, prefix, head, buffers):
    folder = tiny_folder(tmp_path / "hf")

    def change(tensors):
        for name in list(tensors):
            tensors[prefix + name.removeprefix(PREFIX)] = tensors.pop(name)
        if head == "present":
            tensors["lm_head.weight"] = tensors[f"{prefix}wte.weight"].clone()
        if buffers == "present":
            for layer in range(2):
                tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8)
                tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    edit_weights(folder, change)
    assert same(read_folder(folder).tensors["model"], tiny_contents().tensors["model"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_floats_become_fp32(tmp_path, dtype):
    folder = tiny_folder(tmp_path / "hf")
    edit_weights(folder, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    rounded = {name: tensor.to(dtype).float() for name, tensor in tiny_contents().tensors["model"].items()}
    assert same(read_folder(folder).tensors["model"], rounded)


def test_all_faults_of_the_weights_are_reported_together(tmp_path):
    folder = tiny_folder(tmp_path / "hf")

    def change(tensors):
        del tensors["transformer.h.1.mlp.c_fc.bias"]
        del tensors["transformer.ln_f.weight"]
        tensors["transformer.h.2.ln_1.weight"] = torch.ones(16)
        tensors["score.weight"] = torch.ones(2, 16)
        tensors["transformer.wpe.weight"] = torch.ones(20, 16)
        tensors["transformer.h.0.ln_2.bias"] = torch.ones(16, dtype=torch.int64)
        tensors["transformer.h.0.ln_1.bias"][3] = math.inf

    edit_weights(folder, change)
    message = refusal(folder)
    assert message.startswith(f"{folder} does not have the weights of its config: ")
    for part in (
        "transformer.h.1.mlp.c_fc.bias is missing",
        "transformer.ln_f.weight is missing",
        "'transformer.h.2.ln_1.weight' is not expected",
        "'score.weight' is not expected",
        "transformer.wpe.weight is [20, 16], expected [24, 16]",
        "transformer.h.0.ln_2.bias is int64, expected fp32, bf16 or fp16",
        "transformer.h.0.ln_1.bias has values that are not finite",
    ):
        assert part in message
    assert message.count(";") == 6


def test_four_of_many_weights_of_a_kind_are_named(tmp_path):
    folder = tiny_folder(tmp_path / "hf")

    def change(tensors):
        for name in [name for name in tensors if "h.1." in name]:
            tensors[f"x{name}"] = tensors.pop(name)

    edit_weights(folder, change)
    message = refusal(folder)
    assert message.count(" is missing") == message.count(" is not expected") == 4
    assert message.count("so are 8 more") == 2


def test_a_hostile_file_gives_no_endless_line(tmp_path):
    folder = tiny_folder(tmp_path / "hf")
    edit_config(folder, n_layer=10_000, n_embd=1 << 40, n_head=1)
    assert len(refusal(folder)) < 10_000, "and nobody tried to make such a model"
    edit_config(folder, n_layer=10**12)
    assert "n_layer is 1000000000000, expected at most 10000" in refusal(folder)


def test_a_head_of_its_own_is_refused(tmp_path):
    folder = tiny_folder(tmp_path / "hf")
    edit_config(folder, tie_word_embeddings=False)
    assert "lm_head.weight is missing, but tie_word_embeddings is false" in refusal(folder)
    edit_weights(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].clone()}))
    read_folder(folder)
    edit_weights(folder, lambda tensors: tensors["lm_head.weight"].add_(1e-3))
    assert "lm_head.weight differs from transformer.wte.weight" in refusal(folder)
    edit_config(folder, tie_word_embeddings=True)
    assert "lm_head.weight differs" in refusal(folder), "whatever the config says: which of them counts is not known"
    edit_weights(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(300, 16, dtype=torch.float16)}))
    assert "lm_head.weight differs" in refusal(folder)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu", "gelu"),
        ("relu", "relu"),
        ("relu2", "relu_squared"),
        ("silu", "silu"),
        ("swish", "silu"),
    ],
)
def test_activations_by_their_names(theirs, ours):
    assert to_section({"activation_function": theirs}, "x")["activation"] == ours


def test_options_and_their_defaults():
    section = to_section({}, "x")
    assert section == {
        "family": "gpt",
        "head": "pretraining",
        "num_layers": 12,
        "hidden_size": 768,
        "num_heads": 12,
        "feed_forward_size": None,
        "activation": "gelu_tanh",
        "vocab_size": 50257,
        "max_positions": 1024,
        "embedding_dropout": 0.1,
        "residual_dropout": 0.1,
        "attention_dropout": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_std": 0.02,
    }
    given = {"n_ctx": 32, "n_inner": 100, "num_hidden_layers": 3, "attn_pdrop": 0, "layer_norm_epsilon": 1e-6}
    section = to_section({**given, "reorder_and_upcast_attn": True, "use_cache": False}, "x")
    assert section["max_positions"] == 32
    assert (section["feed_forward_size"], section["num_layers"]) == (100, 3)
    assert (section["attention_dropout"], section["layer_norm_epsilon"]) == (0, 1e-6)


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx is True, expected False"),
        ("scale_attn_weights", False, "scale_attn_weights is False, expected True"),
        ("add_cross_attention", True, "add_cross_attention is True, expected False"),
        ("pruned_heads", {"0": [1]}, "pruned_heads is {'0': [1]}"),
        ("quantization_config", {"bits": 4}, "quantization_config is"),
        ("activation_function", "mish", "activation_function is 'mish', expected one of gelu_new, "),
        ("activation_function", ["gelu"], "activation_function is ['gelu']"),
        ("model_type", "mpnet", "is for a model of type 'mpnet'; hornbook reads gpt2, bert, roberta"),
        ("model_type", None, "is for a model of type None"),
        ("n_layer", "two", 'n_layer = "two" (config.json): expected an integer'),
        ("n_embd", 0, "n_embd = 0 (config.json)"),
        ("n_head", 3, "n_head = 3 (config.json)"),
        ("resid_pdrop", 1.0, "resid_pdrop = 1.0 (config.json)"),
        ("vocab_size", True, "vocab_size = true (config.json)"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path, option, value, shown):
    folder = tiny_folder(tmp_path / "hf")
    edit_config(folder, **{option: value})
    message = refusal(folder)
    assert shown in message
    assert str(folder / "config.json") in message


def test_several_refused_options_are_one_line(tmp_path):
    folder = tiny_folder(tmp_path / "hf")
    edit_config(folder, add_cross_attention=True, scale_attn_weights=False, activation_function="prelu")
    message = refusal(folder)
    assert all(part in message for part in ("add_cross_attention", "scale_attn_weights", "prelu"))


def test_a_config_without_a_type_is_known_by_its_options(tmp_path):
    folder = tiny_folder(tmp_path / "hf")
    text = (folder / "config.json").read_text().replace('"model_type": "gpt2",', "")
    (folder / "config.json").write_text(text)
    assert "model_type" not in text
    assert same(read_folder(folder).tensors["model"], tiny_contents().tensors["model"])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu_squared", "silu"])
def test_every_option_survives_the_way_out_and_in(activation):
    config = GPTConfig(
        num_layers=3,
        hidden_size=24,
        num_heads=4,
        feed_forward_size=50,
        vocab_size=99,
        max_positions=17,
        activation=activation,
        embedding_dropout=0.25,
        residual_dropout=0.5,
        attention_dropout=0.125,
        layer_norm_epsilon=1e-6,
        initializer_std=0.01,
    )
    assert GPTConfig(**to_section(from_section(config), "x")) == config


def test_heads_that_transformers_does_not_have_are_not_exported():
    with pytest.raises(CheckpointError, match=r"model.head_size is 6, .* = 16 / 2 wide"):
        from_section(tiny_config(head_size=6))
