"""Options of transformers' decoders: translated, known to change nothing, or refused by name in one line."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tiny_huggingface import edit_config, edit_weights, refusal
from tiny_text import tiny_tokenizer

import hornbook
from hornbook.__main__ import main
from hornbook.checkpoint import Contents
from hornbook.config import DecoderConfig, Recipe, TrainingConfig, load_recipe, recipe_to_dict
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.decoder_families import decoder_of
from hornbook.exchange.huggingface.decoders import shortest
from hornbook.exchange.restore import load_model
from hornbook.model import build_model, initialize

SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 300, "max_positions": 24, "tied": False}
KINDS = {
    "llama": {},
    "qwen3": {"query_key_norm": "head"},
    "olmo2": {"query_key_norm": "width", "norm_placement": "after"},
    "gemma3_text": {
        "query_key_norm": "head",
        "norm_placement": "both",
        "embedding_scale": None,
        "activation": "gelu_tanh",
        "window": 6,
        "window_pattern": "LG",
        "rope_theta": 1e6,
        "local_rope_theta": 1e4,
    },
    "nanochat": {
        "query_key_norm": "head",
        "norm_gain": False,
        "embedding_norm": True,
        "feed_forward": "plain",
        "activation": "relu_squared",
    },
}


def contents_of(**options: object) -> Contents:
    config = DecoderConfig(**{**SIZES, **options})
    model = build_model(config, torch.float32)
    initialize(model, 7)
    recipe = Recipe(name="tiny", model=config, training=TrainingConfig(steps=1))
    files = {"tokenizer.json": tiny_tokenizer().to_json().encode()}
    documents = {"recipe": recipe_to_dict(recipe)}
    return Contents(step=5, tensors={"model": model.saved_tensors()}, documents=documents, files=files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "llama", contents_of(num_kv_heads=2))
    return tmp_path / "llama"


@pytest.mark.parametrize(("model_type", "options"), KINDS.items(), ids=list(KINDS))
def test_each_family_is_recognized_by_its_options(model_type: str, options: dict) -> None:
    config = DecoderConfig(**SIZES | options)
    family = decoder_of(config)
    assert family.model_type == model_type
    known = transformers.AutoConfig.for_model(**json.loads(json.dumps(family.from_section(config)))).to_dict()
    assert {name: known[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size")} == {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": config.effective_feed_forward_size,
    }


def test_a_published_recipe_of_another_width_stays_in_its_family() -> None:
    model = load_recipe("gemma3-270m", ["--model.hidden-size=64"], require_data=False).recipe.model
    assert isinstance(model, DecoderConfig) and model.effective_embedding_scale == 8.0
    assert decoder_of(model).model_type == "gemma3_text"


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        ({"window": 8}, ["model.query_key_norm"]),
        ({"norm": "layer"}, ["model.norm"]),
        ({"rope_share": 0.5}, ["model.rope_share"]),
        ({"qkv_bias": True}, ["attention_bias and mlp_bias differ, expected equal values"]),
        ({"attention_cap": 30.0, "query_key_norm": "head"}, ["model.attention_cap"]),
    ],
    ids=str,
)
def test_models_that_transformers_does_not_have(options: dict, differences: list[str]) -> None:
    with pytest.raises(CheckpointError, match="this model cannot be exported") as caught:
        decoder_of(DecoderConfig(**SIZES | options))
    assert f"differs in {', '.join(differences)}; this" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias and mlp_bias differ, expected equal values"),
        ({"num_experts": 8}, "'num_experts' is not known"),
        ({"sliding_window": 8}, "'sliding_window' is not known"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1.0"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type is 'dynamic', expected one of default, linear",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1}},
            "'mscale' of the rotary positions is not known",
        ),
        ({"rope_scaling": [2.0]}, "rope_scaling is [2.0], expected a table"),
        ({"rope_scaling": {"rope_type": "linear"}}, 'rope_scaling = "linear" needs rope_factor'),
        ({"rope_interleaved": True}, "rope_interleaved is True, expected False"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, expected None"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish', expected one of"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3 (config.json), num_attention_heads = 4 (config.json)"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
    ids=str,
)
def test_options_that_hornbook_lacks_are_named(folder: Path, changes: dict, message: str) -> None:
    edit_config(folder, **changes)
    assert message in refusal(folder)


def test_options_without_effect_and_nulls_are_accepted(folder: Path) -> None:
    edit_config(folder, use_cache=False, pretraining_tp=2, sliding_window=None, mlp_bias=False, rope_interleaved=False)
    assert read_folder(folder).documents["recipe"]["model"]["num_kv_heads"] == 2


def test_rotary_options_of_both_versions(folder: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 12
    edit_config(folder, rope_theta=5e5, rope_scaling=scaling)
    old = read_folder(folder).documents["recipe"]["model"]
    edit_config(folder, rope_theta=None, rope_scaling=None, rope_parameters={"rope_theta": 5e5, **scaling})
    assert read_folder(folder).documents["recipe"]["model"] == old
    assert (old["rope_theta"], old["rope_scaling"], old["rope_original_positions"]) == (5e5, "llama3", 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "'extra' is not expected"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}),
            "model.norm.weight is [7], expected [32]",
        ),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_the_config(folder: Path, change, message: str) -> None:
    edit_weights(folder, change)
    assert message in refusal(folder)


def test_a_tied_head_may_be_there_if_it_is_equal(tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    write_folder(folder, contents_of(tied=True))
    edit_weights(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    assert read_folder(folder).documents["recipe"]["model"]["tied"] is True
    edit_weights(folder, lambda tensors: tensors["lm_head.weight"].add_(1))
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(folder)


def test_shortest_patterns() -> None:
    assert [shortest(pattern) for pattern in ("LLGLLG", "LLGLL", "GGL", "LLL", "L")] == ["LLG", "LLG", "GGL", "L", "L"]


def test_the_library_and_the_command_continue_and_generate(folder: Path, tmp_path: Path, capsys) -> None:
    """A folder of transformers starts a run, is evaluated, and continues a prompt as transformers does."""
    model = hornbook.load(folder, device="cpu", compute="fp32")
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("the cat", return_tensors="pt")
    theirs = peer.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    ours = model.generate("the cat", output_length=12, temperature=0.0)
    assert ours == tokenizer.decode(theirs[0, inputs["input_ids"].shape[1] :])
    options = "--data.synthetic --data.sequence-length 24 --training.steps 2 --schedule.warmup-steps 1 --threads 1"
    start = ["train", "demo", "--init-from", str(folder), "--output", str(tmp_path / "run")]
    assert main([*start, *options.split(), "--precision.compute", "fp32", "--tracking.log-every-steps", "1"]) == 0
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    capsys.readouterr()
    assert main(["checkpoint", "export", str(tmp_path / "run"), "--output", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["warnings"] == []
    again = load_model(tmp_path / "out", torch.device("cpu"), compute="fp32")
    assert again.recipe.model == model.recipe.model
    assert first["loss"] == pytest.approx(5.7, abs=0.5), "nearly the logarithm of 300: random tokens, few logits"
