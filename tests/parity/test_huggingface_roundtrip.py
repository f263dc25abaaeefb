"""Models that transformers wrote, read here; models that hornbook wrote, read there: the same logits, the same ids."""

import json
from pathlib import Path

import pytest
import torch
from tiny import hidden_states, random_batch
from tiny_bundle import openai_variables, write_bundle, write_json
from tiny_huggingface import tiny_contents
from tiny_text import SHARED, TEXTS, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2Model
from transformers.utils import logging

from hornbook.checkpoint import save
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.model_card import MODEL_CARD
from hornbook.exchange.restore import load_model
from hornbook.text.tokenizer import Tokenizer

logging.disable_progress_bar()

CPU = torch.device("cpu")
LOSSLESS = {"atol": 1e-5, "rtol": 0.0}
STRANGERS = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not here")
SIZES = {"vocab_size": 300, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
ENDS = {"bos_token_id": 299, "eos_token_id": 299}


def peer(kind: type = GPT2LMHeadModel, **changes) -> torch.nn.Module:
    """A random GPT-2 of transformers with noise in every weight, so that biases, norms and positions matter."""
    torch.manual_seed(3)
    model = kind(GPT2Config(**{**SIZES, **ENDS, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def pickled(model: torch.nn.Module, folder: Path, *, legacy: bool = False, prefix: str = "", **buffers) -> None:
    """The state_dict as ``torch.save`` writes it, with its config, as folders were before safetensors."""
    folder.mkdir()
    model.config.save_pretrained(folder)
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()} | buffers
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)


def old_buffers() -> dict[str, torch.Tensor]:
    """What the files of 2019 hold beside the weights."""
    causal = torch.ones(24, 24, dtype=torch.uint8).tril().view(1, 1, 24, 24)
    names = [f"transformer.h.{layer}.attn" for layer in range(2)]
    masks = {f"{name}.bias": causal for name in names}
    return masks | {f"{name}.masked_bias": torch.tensor(-1e4) for name in names}


def as_openai(model: torch.nn.Module, folder: Path, *, num_shards: int = 1) -> None:
    """The checkpoint of TensorFlow and the options that OpenAI's script downloads."""
    variables = openai_variables({name: parameter.detach() for name, parameter in model.named_parameters()})
    write_bundle(folder / "model.ckpt", variables, num_shards=num_shards)
    hparams = {"n_vocab": 300, "n_ctx": 24} | {name: SIZES[name] for name in ("n_embd", "n_layer", "n_head")}
    write_json(folder / "hparams.json", hparams)


WRITTEN = {
    "safetensors": lambda model, folder: model.save_pretrained(folder),
    "shards": lambda model, folder: model.save_pretrained(folder, max_shard_size="10KB"),
    "pickled": lambda model, folder: pickled(model, folder),
    "pickled before 2020": lambda model, folder: pickled(model, folder, legacy=True, **old_buffers()),
    "OpenAI's TensorFlow": as_openai,
    "OpenAI's TensorFlow, 3 parts": lambda model, folder: as_openai(model, folder, num_shards=3),
    "without prefix": lambda model, folder: model.transformer.save_pretrained(folder),
    "without prefix, shards": lambda model, folder: model.transformer.save_pretrained(folder, max_shard_size="5KB"),
    "without prefix, pickled": lambda model, folder: pickled(model.transformer, folder),
}


def our_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = load_model(folder, CPU, compute="fp32").model
    return logits_of(model, tokens)


@torch.no_grad()
def logits_of(model, tokens: torch.Tensor) -> torch.Tensor:
    batch = random_batch(*tokens.shape) | {"tokens": tokens}
    return model.head.logits(hidden_states(model, batch))


@torch.no_grad()
def their_logits(model, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens).logits


def tokens_of(vocab_size: int, num_tokens: int = 24) -> torch.Tensor:
    return random_batch(3, num_tokens, vocab_size=vocab_size)["tokens"]


@pytest.mark.parametrize("way", WRITTEN)
def test_what_transformers_wrote_gives_the_same_logits(tmp_path, way):
    model, tokens = peer(), tokens_of(300)
    WRITTEN[way](model, tmp_path / "hf")
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert ("pytorch_model.bin" in names) == ("pickled" in way)
    assert ("model.safetensors.index.json" in names) == ("shards" in way)
    contents = read_folder(tmp_path / "hf", allow_pickle="pickled" in way)
    checkpoint = save(tmp_path / "checkpoints", contents)
    torch.testing.assert_close(our_logits(checkpoint, tokens), their_logits(model, tokens), **LOSSLESS)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "gelu"},
        {"activation_function": "gelu_fast"},
        {"activation_function": "gelu_pytorch_tanh"},
        {"activation_function": "relu"},
        {"activation_function": "relu2"},
        {"activation_function": "silu"},
        {"n_inner": 40, "layer_norm_epsilon": 1e-2, "n_head": 4},
        {"reorder_and_upcast_attn": True},
        {"vocab_size": 301, "tie_word_embeddings": True, "n_layer": 3},
    ],
    ids=str,
)
def test_options_of_transformers_mean_the_same_here(tmp_path, changes):
    model, tokens = peer(**changes), tokens_of(300, 20)
    model.save_pretrained(tmp_path / "hf")
    torch.testing.assert_close(our_logits(tmp_path / "hf", tokens), their_logits(model, tokens), **LOSSLESS)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (GPT2LMHeadModel, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT2LMHeadModel, {"scale_attn_weights": False}, "scale_attn_weights is False"),
        (GPT2LMHeadModel, {"tie_word_embeddings": False}, "lm_head.weight differs from transformer.wte.weight"),
        (GPT2Model, {"add_cross_attention": True}, "add_cross_attention is True"),
        (GPT2LMHeadModel, {"activation_function": "mish"}, "activation_function is 'mish'"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path, kind, changes, message):
    from hornbook.errors import CheckpointError

    peer(kind, **changes).save_pretrained(tmp_path / "hf")
    with pytest.raises(CheckpointError, match=message):
        read_folder(tmp_path / "hf")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "relu_squared", "num_layers": 3},
        {"activation": "gelu", "num_heads": 4, "feed_forward_size": 40},
        {"layer_norm_epsilon": 1e-2, "max_positions": 100, "vocab_size": 330},
    ],
    ids=str,
)
def test_what_hornbook_wrote_gives_the_same_logits_there(tmp_path, changes):
    contents = tiny_contents(**changes)
    write_folder(tmp_path / "hf", contents)
    ours = load_model(save(tmp_path / "checkpoints", contents), CPU, compute="fp32").model
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokens = tokens_of(300)
    torch.testing.assert_close(logits_of(ours, tokens), their_logits(theirs, tokens), **LOSSLESS)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == ours.num_parameters
    assert (theirs.generation_config.eos_token_id, theirs.config.bos_token_id) == (299, 299)


def test_bf16_is_what_its_config_says(tmp_path):
    write_folder(tmp_path / "hf", tiny_contents(), dtype="bf16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("left_out", [(), ("tokenizer.json",), ("vocab.json", "merges.txt")], ids=str)
def test_their_tokenizer_of_our_files_gives_the_same_ids(tmp_path, left_out):
    write_folder(tmp_path / "hf", tiny_contents())
    for name in left_out:
        (tmp_path / "hf" / name).unlink()
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "hf"), tiny_tokenizer()
    for text in (*TEXTS[:8], "", " ", "\n\n a  b\t", "it's 1234 'll", "日本語 😀\x00", "x" * 500):
        assert theirs(text)["input_ids"] == [299, *ours.encode(text)], "prompts start as those of the run"
        assert theirs.decode(ours.encode(text), clean_up_tokenization_spaces=False) == text
    assert (theirs.eos_token_id, theirs.bos_token_id, len(theirs)) == (299, 299, 300)
    assert theirs.model_max_length == 24


def test_the_name_of_the_end_of_text_inside_a_text(tmp_path):
    """transformers takes it for the special token unless configured otherwise; here text is text."""
    write_folder(tmp_path / "hf", tiny_contents())
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "hf"), tiny_tokenizer()
    text = "the cat<|endoftext|> sat"
    assert ours.end_of_text_id not in ours.encode(text)
    assert theirs(text)["input_ids"] == [299, *ours.encode("the cat"), 299, *ours.encode(" sat")]
    assert theirs(text, split_special_tokens=True)["input_ids"] == [299, *ours.encode(text)]


def test_their_tokenizer_comes_in_with_the_model(tmp_path):
    peer().save_pretrained(tmp_path / "hf")
    write_folder(tmp_path / "ours", tiny_contents())
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "hf")
    found = Tokenizer.from_json(read_folder(tmp_path / "hf").files["tokenizer.json"].decode())
    assert found.digest == tiny_tokenizer().digest


def test_out_and_in_and_out_again_is_the_same_byte_for_byte(tmp_path):
    write_folder(tmp_path / "first", tiny_contents())
    write_folder(tmp_path / "second", read_folder(tmp_path / "first"))
    for path in (tmp_path / "first").iterdir():
        if path.name == MODEL_CARD:  # it names what was exported
            continue
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_nothing_in_our_config_is_unknown_there(tmp_path):
    write_folder(tmp_path / "hf", tiny_contents())
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    known = AutoConfig.from_pretrained(tmp_path / "hf").to_dict()
    assert set(written) - {"torch_dtype", "n_ctx"} <= known.keys()
    assert not known.keys() - set(GPT2Config().to_dict()) - {"n_ctx", "architectures"}


@STRANGERS
@pytest.mark.parametrize("name", ["hf_tiny_gpt2", "hf_fake_gpt2_50257"])
def test_strangers_models_give_the_same_logits(tmp_path, name, caplog):
    folder = SHARED / "checkpoints" / name
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    tokens = tokens_of(model.config.vocab_size, 64)
    torch.testing.assert_close(our_logits(folder, tokens), their_logits(model, tokens), **LOSSLESS)
    write_folder(tmp_path / "again", read_folder(folder))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    torch.testing.assert_close(their_logits(again, tokens), their_logits(model, tokens), atol=0.0, rtol=0.0)


@pytest.mark.slow
@STRANGERS
def test_gpt2s_own_tokenizer_gives_the_same_ids_there(tmp_path):
    tokenizer = Tokenizer.load(SHARED / "tokenizers" / "gpt2")
    contents = read_folder(SHARED / "checkpoints" / "hf_fake_gpt2_50257")
    contents.files["tokenizer.json"] = tokenizer.to_json().encode()
    write_folder(tmp_path / "hf", contents)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.eos_token_id == 50256
    for text in (*TEXTS, "They don't\n\n  know 3.14159 — ünïcödé 日本語"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
    assert Tokenizer.load(tmp_path / "hf").digest == tokenizer.digest
