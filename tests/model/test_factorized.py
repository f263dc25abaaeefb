"""The decoder with a narrow token table: system A's model."""

from dataclasses import replace

import pytest
import torch
from tiny import random_batch, randomize

from hornbook.config import FactorizedGPTConfig, Recipe, SparsityConfig
from hornbook.generate.decoder import PlainDecoder, make_decoder
from hornbook.model import LanguageModel, build_model, initialize, model_of
from hornbook.model.layers import GroupNorm, LayerNorm
from hornbook.objective import CausalLM
from hornbook.ops.layers import sinusoidal

CONFIG = FactorizedGPTConfig(
    num_layers=2, hidden_size=32, num_heads=2, head_size=8, vocab_size=70, embedding_size=16, max_positions=24
)
OPTIONS = {
    "plain": {},
    "learned positions": {"positions": "learned"},
    "groups": {"norm_groups": 4},
    "biases": {"qkv_bias": True, "projection_bias": True},
    "blocks": {"attention_block_size": 5, "attention_dropout": 0.3},
    "clamped": {"clamp_tokens": True},
    "Glorot": {"initializer": "glorot_uniform", "activation_dropout": 0.4},
}


def model_with(**changes) -> LanguageModel:
    model = build_model(replace(CONFIG, **changes), torch.float32)
    initialize(model, 7)
    randomize(model)
    return model


def logits_of(model: LanguageModel, batch) -> torch.Tensor:
    found: torch.Tensor = model(lambda head, x_BTD, _: head.logits(x_BTD), batch)
    return found


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_computes_what_system_a_describes(options):
    model = model_with(**options).eval()
    batch = random_batch(2, 9)
    embedding, head = model.embedding, model.head
    rows = embedding.tokens[batch["tokens"]]
    positions = batch["positions"]
    placed = sinusoidal(positions, 16) if embedding.positions is None else embedding.positions[positions]
    x_BTE = embedding.sum_norm(embedding.token_norm(rows) + embedding.position_norm(placed))
    x_BTD = x_BTE @ embedding.projection.weight.T + embedding.projection.bias
    context = model.make_context(batch)
    for block in model.blocks:
        x_BTD = block(x_BTD, context)
    narrow = head.norm(x_BTD) @ head.projection.weight.T + head.projection.bias
    narrow = head.projection_norm(torch.nn.functional.gelu(narrow, approximate="tanh"))
    torch.testing.assert_close(logits_of(model, batch), narrow @ embedding.tokens[:70].T)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_parameters_and_operations_are_counted_as_built(options):
    config = replace(CONFIG, **options)
    model = build_model(config, torch.float32)
    found = {name: model.logical_shape(name, parameter) for name, parameter in model.own_parameters()}
    assert dict(config.shapes()) == found
    assert config.num_parameters() == model.num_parameters
    matrices = [p.numel() for name, p in model.named_parameters() if name.endswith("weight") and p.dim() > 1]
    assert config.flops_per_token(0) == 6 * (sum(matrices) + 70 * 16)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_cache_gives_the_same_logits(options):
    model = model_with(**options).eval()
    cached, plain = make_decoder(model), PlainDecoder(model)
    assert not isinstance(cached, PlainDecoder)
    prompts = [[5, 9, 3], [7]]
    torch.testing.assert_close(cached.start(prompts, 30), plain.start(prompts, 30), rtol=1e-4, atol=1e-4)
    for step in range(25):  # past the last position
        ids = [step % 70, (3 * step) % 70]
        torch.testing.assert_close(cached.advance(ids), plain.advance(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_normalizes_each_group_of_columns(dtype):
    norm = GroupNorm(12, 3, epsilon=1e-5, gain=0.1)
    initialize(norm, 1)
    assert norm.weight.unique().tolist() == [pytest.approx(0.1)]
    x = torch.randn(2, 5, 12, dtype=dtype) * 3 + 1
    y = (norm(x).float() * 10).unflatten(-1, (3, 4))
    assert norm(x).dtype == dtype
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 5, 3), atol=0.05, rtol=0)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(2, 5, 3), atol=0.05, rtol=0)


def test_one_group_is_a_layer_norm():
    kinds = {type(module) for module in model_with().modules() if isinstance(module, LayerNorm)}
    assert kinds == {LayerNorm}
    assert build_model(CONFIG, torch.float32).blocks[0].attention_norm.gain == 0.1


def test_ids_beyond_a_cut_vocabulary_are_its_last():
    model = model_with(clamp_tokens=True).eval()
    batch = random_batch(2, 9, vocab_size=200)
    known = {**batch, "tokens": batch["tokens"].clamp(max=69), "targets": batch["targets"].clamp(max=69)}
    known["targets"][0, 0] = batch["targets"][0, 0] = -100
    loss, same = (model(CausalLM().sums, each)["causal_lm"] for each in (batch, known))
    assert torch.equal(loss, same)
    assert model.num_ids > 200 and model_with().num_ids == 70


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_in_blocks_is_causal_attention(dropout):
    whole, blocked = (model_with(attention_dropout=dropout, attention_block_size=size).train() for size in (None, 5))
    batch = random_batch(2, 13)
    losses = [model(CausalLM().sums, batch)["causal_lm"] for model in (whole, blocked)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    gradients = [dict(model.named_parameters())["blocks.0.attention.qkv.weight"].grad for model in (whole, blocked)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_activations_of_the_feed_forward_are_dropped_before_its_second_map():
    model = model_with(activation_dropout=0.4).train()
    batch, (first, second) = random_batch(2, 9), model.blocks
    seen = {}
    for name, block in (("first", first), ("second", second)):
        block.feed_forward.down.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0]}))
    logits = logits_of(model, batch)
    masks = {name: x == 0 for name, x in seen.items()}
    for mask in masks.values():
        assert mask.float().mean().item() == pytest.approx(0.4, abs=0.03)
    assert not torch.equal(masks["first"], masks["second"])
    assert torch.equal(logits_of(model, batch), logits)
    dropped = seen["first"]
    logits_of(model.eval(), batch)
    torch.testing.assert_close(dropped, (seen["first"] / 0.6).masked_fill(masks["first"], 0.0))


@pytest.mark.parametrize("density", [1.0, 0.25])
def test_glorot_initialization_has_the_range_of_all_maps_inputs_and_outputs(density):
    """Over √density, where blocks are few: the limit of Graphcore's dynamic_sparsity."""
    config = replace(CONFIG, hidden_size=64, embedding_size=32, vocab_size=500, initializer="glorot_uniform")
    patterns = () if density == 1.0 else ("*",)
    sparsity = SparsityConfig(linears=patterns, density=density, block_size=4) if patterns else SparsityConfig()
    model = build_model(config, torch.float32)
    if patterns:
        with torch.device("meta"):
            model = model_of(Recipe(model=config, sparsity=sparsity), torch.float32)
        model.allocate(torch.device("cpu"))
    initialize(model, 3)
    attention, kind = model.blocks[0].attention, "weight" if density == 1.0 else "values"
    weights = {"qkv": attention.qkv, "out": attention.out, "projection": model.embedding.projection}
    sizes = {"qkv": 64 + 3 * 16, "out": 16 + 64, "projection": 32 + 64}
    for name, size in sizes.items():
        limit, drawn = (6 / (size * density)) ** 0.5, getattr(weights[name], kind).detach()
        assert 0.97 * limit < drawn.abs().max() <= limit and drawn.std().item() == pytest.approx(
            limit / 3**0.5, rel=0.1
        )
    assert model.embedding.tokens[:500].std().item() == pytest.approx(32**-0.5, rel=0.02)


def test_all_linear_maps_can_be_sparse():
    sparsity = SparsityConfig(linears=("*",), density=0.25, block_size=8)
    recipe = Recipe(model=CONFIG, sparsity=sparsity)
    with torch.device("meta"):
        model = model_of(recipe, torch.float32)
    assert recipe.num_parameters() == model.num_parameters
    sparse = {name.removesuffix(".values") for name, _ in model.named_parameters() if name.endswith(".values")}
    assert {"embedding.projection", "head.projection", "blocks.1.feed_forward.down"} < sparse
    blocks = sum(p.numel() for name, p in model.named_parameters() if name.endswith(".values"))
    flops = CONFIG.flops_per_token(0) - sparsity.flops_saved(CONFIG, 1.0)
    assert flops == 6 * (blocks + 70 * 16)
