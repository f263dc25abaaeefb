"""Decoders that transformers wrote, read here, and written again: the same logits, losses, gradients and texts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tiny import hidden_states, random_batch
from tiny_text import tiny_tokenizer
from torch.nn import functional

from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.decoder_families import DECODERS
from hornbook.exchange.huggingface.tokenizer_files import tokenizer_files
from hornbook.exchange.restore import load_model
from hornbook.generate.decoder import CachedDecoder, make_decoder

transformers.utils.logging.disable_progress_bar()

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 24,
    "bos_token_id": 299,
    "eos_token_id": 299,
    "pad_token_id": None,
}
LLAMA_3 = {
    "rope_theta": 5e5,
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 12,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LOCAL = ["sliding_attention", "sliding_attention", "full_attention"]
PEERS = {
    "Llama": ("LlamaConfig", {}),
    "Llama with SmolLM's heads, tied": (
        "LlamaConfig",
        {"tie_word_embeddings": True, "hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "Llama 3": ("LlamaConfig", {"rope_parameters": LLAMA_3, "num_key_value_heads": 4, "head_dim": 12}),
    "Llama with biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "Llama, linear": ("LlamaConfig", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}}),
    "Qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "Qwen3 with windows": (
        "Qwen3Config",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "layer_types": LOCAL},
    ),
    "Olmo2": ("Olmo2Config", {"rms_norm_eps": 1e-6}),
    "Gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 6, "layer_types": LOCAL, "query_pre_attn_scalar": 24},
    ),
    "Gemma2": (
        "Gemma2Config",
        {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "NanoChat": ("NanoChatConfig", {}),
    "NanoChat without its cap": ("NanoChatConfig", {"final_logit_softcapping": None, "tie_word_embeddings": True}),
}


@pytest.fixture(params=PEERS.items(), ids=list(PEERS))
def peer(request):
    """A random model of transformers with noise in every weight, so that biases and norms matter."""
    name, (kind, options) = request.param
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**SIZES | {"attn_implementation": "eager"} | options)
    model = getattr(transformers, f"{name.split()[0].strip(',')}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture
def folder(peer, tmp_path: Path) -> Path:
    """The model as transformers saves it, in shards, with a tokenizer."""
    peer.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    for name, data in tokenizer_files(tiny_tokenizer(), 24, generates=True, has_start=True).items():
        (tmp_path / "hf" / name).write_bytes(data)
    return tmp_path / "hf"


def test_logits_losses_and_gradients(peer, folder: Path) -> None:
    model, batch = load_model(folder, CPU, compute="fp32").model, random_batch(3, 24, vocab_size=300, unscored=0.1)
    theirs = peer(batch["tokens"]).logits
    assert theirs.std() > 0.1, "the weights matter"
    torch.testing.assert_close(model.head.logits(hidden_states(model, batch)), theirs, rtol=1e-5, atol=1e-5)
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    other = functional.cross_entropy(theirs.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5)
    loss.backward()
    other.backward()
    model.fold_tied_gradients()
    config = read_model(folder)
    family = replace(DECODERS[peer.config.model_type], norm_offset=0.0)
    gradients = {name: parameter.grad for name, parameter in peer.named_parameters()}
    expected = family.read(gradients, config, tied=config.tied, what="gradients").weights
    ours = {name: model.logical(name, parameter.grad) for name, parameter in model.own_parameters()}
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * float(gradient.abs().max()))


def read_model(folder: Path):
    """The options of a folder's model."""
    return load_model(folder, CPU, compute="fp32").recipe.model


@pytest.mark.usefixtures("peer")
def test_out_again(folder: Path, tmp_path: Path) -> None:
    """The class, every weight and the texts of ``generate``, with the ends of the tokenizer."""
    write_folder(tmp_path / "again", read_folder(folder), shard_size=20_000)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", attn_implementation="eager")
    assert type(again) is type(theirs)
    tokens = random_batch(3, 24, vocab_size=300)["tokens"]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert again.generation_config.eos_token_id == 299
    assert read_model(tmp_path / "again") == read_model(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert tokenizer("the cat sat")["input_ids"] == [299, *tiny_tokenizer().encode("the cat sat")]


@pytest.mark.slow
def test_greedy_texts(peer, folder: Path) -> None:
    model, prompts = load_model(folder, CPU, compute="fp32").model, [[5, 9, 2, 8, 1], [7, 3, 200, 4, 17]]
    decoder = make_decoder(model.eval())
    assert isinstance(decoder, CachedDecoder)
    theirs = peer.generate(torch.tensor(prompts), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    logits, texts = decoder.start(prompts, 16), [list(prompt) for prompt in prompts]
    for _ in range(16):
        texts = [[*text, number] for text, number in zip(texts, logits.argmax(-1).tolist(), strict=True)]
        logits = decoder.advance([text[-1] for text in texts])
    assert texts == theirs.tolist()
