"""Value embeddings, residual scales, smear and shifted keys against their formulas in plain PyTorch."""

import dataclasses

import pytest
import torch
from tiny import random_batch, randomize
from torch.nn import functional

from hornbook.config import DecoderConfig, Recipe, load_recipe
from hornbook.config.optimizers import MuonConfig, role_of
from hornbook.errors import UserError
from hornbook.model import LanguageModel, initialize, model_of

CONFIG = DecoderConfig(
    num_layers=3,
    hidden_size=32,
    num_heads=4,
    vocab_size=70,
    max_positions=24,
    embedding_norm=True,
    norm_gain=False,
    feed_forward="plain",
    activation="relu_squared",
    positions="none",
    tied=False,
    value_embeddings=True,
    residual_scales=True,
    smear=True,
    shifted_keys=True,
)


def shortcut_model(**options) -> LanguageModel:
    model = model_of(Recipe(model=dataclasses.replace(CONFIG, **options)), torch.float32)
    initialize(model, seed=3)
    randomize(model, scale=0.3)
    return model


def rms(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), eps=CONFIG.norm_epsilon)


def logits_of(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The model by its formulas; weights by hornbook's names."""
    batch, length = tokens.shape
    x = rms(weights["embedding.tokens"][tokens])
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    gate = torch.sigmoid(x[..., :24] @ weights["blocks.0.smear.gate"])
    first, x = x, x + (weights["blocks.0.smear.scale"] * gate).unsqueeze(-1) * before
    for layer in range(CONFIG.num_layers):
        own = {name.removeprefix(f"blocks.{layer}."): tensor for name, tensor in weights.items()}
        x = own["state_scale"] * x + own["embedding_scale"] * first
        normed = rms(x)
        q, k, v = (normed @ matrix.T for matrix in own["attention.qkv.weight"])
        for columns in (k[..., part : part + 2] for head in range(4) for part in (8 * head + 2, 8 * head + 6)):
            columns[:, 1:], columns[:, 0] = columns[:, :-1].clone(), 0.0
        if layer != 1:
            gates = 3 * torch.sigmoid(normed[..., :12] @ own["attention.value_embedding.gate"].T)
            v = v + gates.repeat_interleave(8, -1) * own["attention.value_embedding.table"][tokens]
        heads = [part.view(batch, length, 4, 8).transpose(1, 2) for part in (q, k, v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ own["attention.out.weight"].T
        hidden = functional.relu(rms(x) @ own["feed_forward.up.weight"].T).square()
        x = x + hidden @ own["feed_forward.down.weight"].T
    return rms(x) @ weights["head.table"].T


def test_logits_and_gradients_are_those_of_the_formulas() -> None:
    model, batch = shortcut_model(), random_batch(2, 20)
    names = dict(model.own_parameters())
    assert "blocks.1.attention.value_embedding.table" not in names
    assert "blocks.1.smear.gate" not in names
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    loss.backward()
    leaves = {name: model.logical(name, own).detach().clone().requires_grad_() for name, own in names.items()}
    expected = functional.cross_entropy(logits_of(leaves, batch["tokens"]).flatten(0, 1), batch["targets"].flatten())
    expected.backward()
    torch.testing.assert_close(loss / batch["targets"].numel(), expected, rtol=1e-5, atol=0)
    for name, leaf in leaves.items():
        gradient = model.logical(name, names[name].grad) / batch["targets"].numel()
        torch.testing.assert_close(
            gradient, leaf.grad, rtol=1e-4, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_new_model_has_no_smear_and_decreasing_scales() -> None:
    model = model_of(Recipe(model=CONFIG), torch.float32)
    initialize(model, seed=3)
    assert model.blocks[0].smear.scale.item() == 0
    scales = torch.stack([torch.cat((block.state_scale, block.embedding_scale)) for block in model.blocks])
    torch.testing.assert_close(scales, torch.tensor([[1.15, 0.20], [1.10, 0.125], [1.05, 0.05]]))


def test_parameters_are_those_of_the_description() -> None:
    expected = dict(CONFIG.shapes())
    model = shortcut_model()
    assert {name: model.logical_shape(name, own) for name, own in model.own_parameters()} == expected
    assert CONFIG.num_parameters() == model.num_parameters


def test_shifted_keys_do_not_cross_documents() -> None:
    model = shortcut_model(smear=False, positions="rotary")
    documents = torch.tensor([[0] * 7 + [1] * 9])
    tokens = torch.randint(70, (1, 16), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "positions": torch.arange(16)[None], "keys": tokens, "documents": documents}
    both = model(lambda head, x_BTD, _: head.logits(x_BTD), batch)
    other = {**batch, "tokens": torch.cat((69 - tokens[:, :7], tokens[:, 7:]), 1)}
    torch.testing.assert_close(model(lambda head, x_BTD, _: head.logits(x_BTD), other)[:, 7:], both[:, 7:])


def test_muon_updates_only_the_matrices_of_products() -> None:
    kinds = {name: MuonConfig().kind_of(name, role_of(name, shape)) for name, shape in CONFIG.shapes()}
    prefix = "blocks.2.attention."
    assert kinds[f"{prefix}value_embedding.table"] == "table"
    assert (
        kinds[f"{prefix}value_embedding.gate"]
        == kinds["blocks.2.state_scale"]
        == kinds["blocks.0.smear.gate"]
        == "vector"
    )
    assert kinds[f"{prefix}qkv.weight"] == "hidden"


@pytest.mark.parametrize(
    ("option", "layout", "message"),
    [
        ("value-embeddings", "parallel.tensor-parallel=2", "does not support tensor parallelism"),
        ("smear", "parallel.tensor-parallel=2", "does not support tensor parallelism"),
        ("residual-scales", "parallel.pipeline-parallel=2", "a pipeline does not pass on"),
        ("residual-scales", "memory.execution=phased", "phased execution does not keep"),
    ],
)
def test_layouts_that_do_not_pass_them_on_are_refused(option: str, layout: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe("decoder-demo", [f"--model.{option}=true", f"--{layout}"], require_data=False)
