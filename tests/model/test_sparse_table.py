"""Block-sparse token tables: look-ups, logits, gradients and scores beside those of the dense table."""

from dataclasses import replace

import pytest
import torch
from test_sparse_layers import CONFIGS, dense_twin, sparse_model
from tiny import random_batch, randomize
from tiny_encoders import lay_out, make_samples

from hornbook.config import (
    AdamWConfig,
    CausalLMConfig,
    FactorizedGPTConfig,
    PrecisionConfig,
    PretrainingConfig,
    Recipe,
    SparsityConfig,
    TrainingConfig,
)
from hornbook.config.optimizers import ConstantConfig
from hornbook.engine.build_training import build_objective, build_training
from hornbook.engine.step import train_step
from hornbook.generate.decoder import PlainDecoder, make_decoder
from hornbook.model import LanguageModel
from hornbook.model.sparse_layers import TABLE, sparse_layers
from hornbook.ops.block_sparse import Scores
from hornbook.parallel.world import World

NARROW = FactorizedGPTConfig(
    num_layers=1, hidden_size=16, num_heads=2, vocab_size=70, embedding_size=8, max_positions=24, clamp_tokens=True
)
MODELS = {"gpt": CONFIGS["gpt"], "factorized_gpt": NARROW, "bert": CONFIGS["bert"]}


def recipe_of(family: str, size: int = 4, **changes) -> Recipe:
    sparsity = SparsityConfig(**{"density": 0.3, "embedding_block_size": size, **changes})
    objective = PretrainingConfig() if family == "bert" else CausalLMConfig()
    return replace(Recipe(), model=MODELS[family], objective=objective, sparsity=sparsity)


def models_of(recipe: Recipe) -> tuple[LanguageModel, LanguageModel]:
    model = sparse_model(recipe)
    randomize(model)
    twin = dense_twin(recipe, model)
    twin.embedding.tokens.data[70:] = 0.0
    return model, twin


def loss_with(model: LanguageModel, recipe: Recipe, seed: int) -> torch.Tensor:
    is_bert = recipe.model.family == "bert"
    batch = lay_out(make_samples([5, 9, 3], seed=seed), "packed") if is_bert else random_batch(2, 9, seed=seed)
    objective = build_objective(recipe.objective)
    sums = model(objective.sums, batch)
    return torch.stack([sums[name] for name in objective.weights]).sum()


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("family", MODELS)
def test_losses_gradients_and_scores_are_those_of_the_dense_table(family: str, size: int) -> None:
    recipe = recipe_of(family, size)
    model, twin = models_of(recipe)
    (table,) = sparse_layers(model).values()
    table.scores = Scores(table.pattern, "sum")
    expected = torch.zeros(table.grid_shape, dtype=torch.float64)
    for seed in (0, 1):
        losses = [loss_with(each, recipe, seed) for each in (model, twin)]
        torch.testing.assert_close(*losses)
        twin.zero_grad()
        for loss in losses:
            loss.backward()
        twin.fold_tied_gradients()
        gradient = twin.embedding.tokens.grad[: table.num_out]
        grid = gradient.view(table.grid_shape[0], size, -1, size)
        expected += grid.abs().sum((1, 3))
        if seed == 0:
            torch.testing.assert_close(table.values.grad, grid[table.rows.long(), :, table.columns.long()])
    torch.testing.assert_close(table.scores.total, expected, rtol=1e-4, atol=1e-4)


def test_a_gpu_does_not_wait_for_the_number_of_blocks(monkeypatch) -> None:
    """It reads as many for each token, the same rows and gradients."""
    (table,) = sparse_layers(models_of(recipe_of("gpt"))[0]).values()
    tokens, found = torch.arange(70).view(2, 35).flip(0), []
    for is_cuda in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_cuda", is_cuda)
        if is_cuda:
            assert table.pattern.most_in_a_row == table.pattern.row_starts.diff().max()
            monkeypatch.setattr(torch, "repeat_interleave", None)  # whoever calls it fails, or reads a number
            monkeypatch.setattr(torch.Tensor, "__int__", None)
        rows = table.look_up(tokens)
        found.append((rows.detach(), *torch.autograd.grad(rows.sin().sum(), table.values)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("family", ["gpt", "factorized_gpt"])
def test_a_cache_writes_with_a_sparse_table(family: str) -> None:
    model, twin = models_of(recipe_of(family, linears=("blocks.*",), block_size=4))
    cached, plain, dense = make_decoder(model), PlainDecoder(model), PlainDecoder(twin)
    assert not isinstance(cached, PlainDecoder)
    prompts = [[5, 9, 3], [7]]
    expected = dense.start(prompts, 10)
    for decoder in (cached, plain):
        torch.testing.assert_close(decoder.start(prompts, 10), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cached.advance([1, 69]), dense.advance([1, 69]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("size", [1, 4])
def test_parameters_and_operations_are_counted_for_the_blocks(family: str, size: int) -> None:
    recipe = recipe_of(family, size)
    model = sparse_model(recipe)
    kept = sparse_layers(model)[TABLE].values.numel()
    assert recipe.num_parameters() == model.num_parameters
    dense = replace(recipe, sparsity=SparsityConfig())
    rows, width = 70, model.embedding.sparse_tokens.num_in
    assert dense.num_parameters() - recipe.num_parameters() == rows * width - kept
    scored = getattr(recipe.objective, "scored_share", 1.0)
    saved = dense.flops_per_token(8) - recipe.flops_per_token(8)
    assert saved == pytest.approx(6 * scored * (rows * width - kept))


@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_training_moves_the_blocks_of_the_table(stored: str) -> None:
    precision = PrecisionConfig(compute="fp32", weights=stored)
    recipe = replace(
        recipe_of("gpt", 1, update="rigl", update_interval=2),
        training=TrainingConfig(steps=20, seed=5),
        optimizer=AdamWConfig(learning_rate=1e-2),
        schedule=ConstantConfig(warmup_steps=0),
        precision=precision,
    )
    state, config = build_training(recipe, 20, World())
    state.model.train()
    (table,) = sparse_layers(state.model).values()
    before, losses = table.rows.clone(), []
    for _ in range(4):
        result = train_step(state, [random_batch(2, 8), random_batch(2, 8, seed=1)], config)
        losses.append(result.loss)
    assert [row["layer"] for row in result.rewired] == [TABLE]
    assert len(table.rows) == len(before) and {0, 2, 4} == set(table.grown_at.tolist())
    assert losses[-1] < losses[0]
    assert sum(tensor.numel() for tensor in state.home.moments[f"{TABLE}.values"].values()) == 2 * len(before)
