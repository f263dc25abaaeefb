"""Decoders over a cache, by documents, in 16 bits: what the comparison with transformers leaves out."""

import pytest
import torch
from tiny import hidden_states, random_batch, randomize

from hornbook.config import DecoderConfig, Recipe
from hornbook.generate.decoder import CachedDecoder, PlainDecoder, make_decoder
from hornbook.model import LanguageModel, initialize, model_of
from hornbook.model.attention import CausalSelfAttention

OPTIONS = {
    "llama": {"num_kv_heads": 2},
    "gemma": {
        "num_kv_heads": 1,
        "query_key_norm": "head",
        "norm_placement": "both",
        "window": 5,
        "window_pattern": "LG",
        "local_rope_theta": 100.0,
        "attention_cap": 2.0,
        "logit_cap": 5.0,
        "embedding_scale": 4.0,
    },
    "windows": {"window": 3},
    "layer norms, learned positions": {"norm": "layer", "positions": "learned", "feed_forward": "plain"},
    "value embeddings": {"num_layers": 3, "value_embeddings": True, "query_key_norm": "head", "tied": False},
    "all of nanochat's shortcuts": {
        "value_embeddings": True,
        "residual_scales": True,
        "smear": True,
        "num_kv_heads": 2,
        "window": 7,
    },
    "shifted keys": {"shifted_keys": True, "query_key_norm": "head", "num_kv_heads": 2, "window": 7},
    "no positions, part of a head rotated": {"rope_share": 0.5, "tied": False, "query_key_norm": "width"},
}


def decoder(dtype: torch.dtype = torch.float32, **options) -> LanguageModel:
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, "max_positions": 24}
    model = model_of(Recipe(model=DecoderConfig(**sizes | options)), dtype)
    initialize(model, seed=3)
    randomize(model, scale=0.1)
    return model


@pytest.mark.parametrize("name", OPTIONS)
def test_a_cache_changes_nothing(name: str) -> None:
    """Prompts of unequal length and texts beyond the window, against a whole forward pass for every token."""
    model = decoder(**OPTIONS[name]).eval()
    cached, plain = make_decoder(model), PlainDecoder(model)
    assert isinstance(cached, CachedDecoder)
    prompts = [[5, 9, 2, 8, 1, 3, 3], [7, 3]]
    torch.testing.assert_close(cached.start(prompts, 40), plain.start(prompts, 40), rtol=1e-4, atol=1e-5)
    for step in range(40):
        ids = [(step * 7) % 70, (step * 11) % 70]
        torch.testing.assert_close(cached.advance(ids), plain.advance(ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_documents_do_not_see_each_other(name: str) -> None:
    """Two documents in a window give what each gives alone; the second keeps its positions."""
    model, batch = decoder(**OPTIONS[name]), random_batch(2, 20)
    documents = (torch.arange(20) >= 9).long().expand(2, 20)
    together = hidden_states(model, {**batch, "documents": documents})
    for part in (slice(0, 9), slice(9, 20)):
        alone = hidden_states(model, {key: tensor[:, part] for key, tensor in batch.items()})
        torch.testing.assert_close(together[:, part], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_bf16_is_near_fp32(name: str) -> None:
    batch, found = random_batch(2, 20), []
    for dtype in (torch.float32, torch.bfloat16):
        model = decoder(dtype, **OPTIONS[name])
        loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
        loss.backward()
        gradients = [parameter.grad.flatten() for _, parameter in model.own_parameters()]
        found.append((loss.detach(), torch.cat(gradients)))
        assert found[-1][1].dtype == torch.float32
    (loss, gradient), (other, rounded) = found
    assert other == pytest.approx(float(loss), rel=5e-3)
    assert torch.cosine_similarity(gradient, rounded, dim=0) > 0.99


def test_attention_like_gpts_is_gpts() -> None:
    """Native operators and tokens apply to it."""
    plain = decoder(positions="learned", norm="layer").blocks[0].attention
    assert type(plain) is CausalSelfAttention
    assert type(decoder(positions="learned", num_kv_heads=2).blocks[0].attention) is not CausalSelfAttention


def test_outputs_start_at_zero() -> None:
    model = model_of(Recipe(model=DecoderConfig(vocab_size=70, num_layers=2, zero_init_outputs=True)), torch.float32)
    initialize(model, seed=1)
    batch = random_batch(1, 4)
    embedded = model.embedding(batch["tokens"], batch["positions"], batch["keys"])
    torch.testing.assert_close(hidden_states(model, batch), embedded)
