"""Updates of patterns in training steps: what moves, what stays, and the dense oracle beside it."""

from dataclasses import replace

import pytest
import torch
from tiny import random_batch, split, tiny_config
from torch import Tensor

from hornbook.config import AdamWConfig, LambConfig, Recipe, SparsityConfig, TrainingConfig
from hornbook.config.optimizers import ConstantConfig
from hornbook.engine.build_training import build_training
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, StepResult, train_step
from hornbook.model.sparse_layers import sparse_layers
from hornbook.parallel.world import World

UPDATES = ["random", "rigl", "rigl_norm", "rigl_sample"]


def recipe_of(optimizer: object = None, num_steps: int = 20, **changes) -> Recipe:
    defaults = {"linears": ("blocks.*",), "density": 0.3, "block_size": 4, "update": "rigl", "update_interval": 3}
    return replace(
        Recipe(),
        model=tiny_config(),
        training=TrainingConfig(steps=num_steps, seed=5),
        sparsity=SparsityConfig(**{**defaults, **changes}),
        optimizer=optimizer or AdamWConfig(learning_rate=3e-3),
        schedule=ConstantConfig(warmup_steps=0),
    )


def begin(recipe: Recipe) -> tuple[TrainState, StepConfig]:
    state, config = build_training(recipe, recipe.training.steps, World())
    state.model.train()
    return state, config


def step(state: TrainState, config: StepConfig, size: int = 2) -> StepResult:
    return train_step(state, split(random_batch(4, 8, seed=state.progress.step), size), config)


def tensors(state: TrainState) -> dict[str, Tensor]:
    groups = state.home.tensors().values()
    return {name: shard.values.clone() for group in groups for name, shard in group.items()}


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_moves_some_blocks_and_keeps_the_others_bit_for_bit(update: str) -> None:
    state, config = begin(recipe_of(update=update, update_interval=2))
    other, static = begin(recipe_of(update="static"))
    for _ in range(2):
        result = step(state, config)
        step(other, static)
    moved, stayed = tensors(state), tensors(other)
    assert [row["layer"] for row in result.rewired] == list(sparse_layers(state.model))
    for name, layer in sparse_layers(state.model).items():
        for part in range(layer.num_parts):
            def of_part(found: dict[str, Tensor], kind: str, name=name, layer=layer, part=part) -> Tensor:
                tensor = found[f"{name}.{kind}"]
                return tensor[part] if layer.num_parts > 1 else tensor

            places = [
                list(zip(of_part(found, "rows").tolist(), of_part(found, "columns").tolist(), strict=True))
                for found in (moved, stayed)
            ]
            assert len(set(places[0])) == len(places[1]) and places[0] == sorted(places[0])
            grown_at, old = of_part(moved, "grown_at").tolist(), dict(zip(places[1], range(99), strict=False))
            assert 0 < sum(map(bool, grown_at)) < len(grown_at)
            for number, place in enumerate(places[0]):
                for kind in ("values", "values.exp_avg", "values.exp_avg_sq"):
                    now = of_part(moved, kind)[number]
                    if grown_at[number]:
                        assert place not in old and grown_at[number] == 2 and not now.any()
                    else:
                        assert torch.equal(now, of_part(stayed, kind)[old[place]])
    dense = {name for name in moved if not any(name.startswith(f"{layer}.") for layer in sparse_layers(state.model))}
    dense |= {name for name in moved if ".bias" in name}
    assert all(torch.equal(moved[name], stayed[name]) for name in dense)


def test_scores_are_collected_on_steps_that_need_them_alone() -> None:
    state, config = begin(recipe_of(update_interval=3, num_steps=8))  # the pattern stays from step 6 on
    rewired = []
    for _ in range(8):
        rewired.append(bool(step(state, config).rewired))
        assert all(layer.scores is None for layer in sparse_layers(state.model).values())
    assert rewired == [False, False, True, False, False, False, False, False]


def test_rigl_grows_where_the_dense_gradient_is_largest() -> None:
    recipe = recipe_of(update_interval=1, num_steps=20, kernel="torch")
    state, config = begin(recipe)
    dense, static = begin(replace(recipe, sparsity=replace(recipe.sparsity, density=1.0, update="static")))
    name = "blocks.1.feed_forward.up"
    layers = sparse_layers(state.model)
    with torch.no_grad():  # the same function, with all blocks in memory
        for own, whole in zip(layers.values(), sparse_layers(dense.model).values(), strict=True):
            grid = own.to_dense().view(-1, own.block_size, own.grid_shape[1], own.block_size).transpose(1, 2)
            whole.values.copy_(grid.reshape(whole.values.shape))
        for (key, own), whole in zip(state.model.own_parameters(), dense.model.parameters(), strict=False):
            if not key.endswith(".values"):
                whole.copy_(own)
    layer, whole = layers[name], sparse_layers(dense.model)[name]
    before = {*zip(layer.rows.tolist(), layer.columns.tolist(), strict=True)}
    batch = random_batch(4, 8, seed=0)
    train_step(state, [batch], config)
    gradients: list[Tensor] = []
    whole.values.register_post_accumulate_grad_hook(lambda values: gradients.append(values.grad.abs().sum((1, 2))))
    train_step(dense, [batch], static)
    scores = gradients[0].view(layer.grid_shape)
    ranked = sorted((-score.item(), divmod(at, layer.grid_shape[1])) for at, score in enumerate(scores.flatten()))
    grown = {
        place
        for place, age in zip(zip(layer.rows.tolist(), layer.columns.tolist(), strict=True), layer.grown_at, strict=True)
        if age
    }
    candidates = [place for _, place in ranked if place not in before]
    assert grown and grown == set(candidates[: len(grown)])


@pytest.mark.parametrize("optimizer", [AdamWConfig(learning_rate=3e-3, weight_decay=0.0, clip_norm=None)])
def test_the_first_step_of_a_grown_block_is_no_larger_than_the_learning_rate(optimizer: AdamWConfig) -> None:
    state, config = begin(recipe_of(optimizer, update_interval=10, num_steps=40, learning_rate_scale=1.0))
    for _ in range(10):
        step(state, config)
    layer = sparse_layers(state.model)["blocks.0.feed_forward.up"]
    is_new = layer.grown_at > 0
    assert is_new.any()
    step(state, config)
    moves = layer.values.detach()[is_new].abs()
    assert 0.0 < moves.max() <= 3e-3 * (1 + 1e-4)


def masked_oracle(recipe: Recipe, num_steps: int, size: int) -> list[float]:
    """Train by hand: dense matrices, torch's own products, masks, and Adam with a count for each block."""
    state, config = begin(replace(recipe, sparsity=replace(recipe.sparsity, kernel="reference")))
    return [float(step(state, config, size).loss or 0.0) for _ in range(num_steps)]


@pytest.mark.parametrize("update", ["static", "rigl", "random"])
def test_blocks_learn_what_masked_dense_matrices_learn(update: str) -> None:
    recipe = recipe_of(update=update, num_steps=50, update_interval=10, kernel="torch")
    state, config = begin(recipe)
    losses = [step(state, config).loss for _ in range(50)]
    assert losses == pytest.approx(masked_oracle(recipe, 50, 2), rel=1e-5)
    assert losses[-1] is not None and losses[0] is not None and losses[-1] < losses[0]


def test_lamb_and_accumulation_take_blocks() -> None:
    found = []
    for size in (4, 2):
        state, config = begin(recipe_of(LambConfig(learning_rate=1e-2), update="random"))
        found.append([step(state, config, size).loss for _ in range(8)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_skipped_step_changes_no_pattern() -> None:
    state, config = begin(recipe_of(update_interval=1))
    before = {name: tensor for name, tensor in tensors(state).items() if name.endswith((".rows", ".columns"))}
    with torch.no_grad():
        state.model.head.norm.weight[0] = float("nan")
    result = step(state, config)
    after = tensors(state)
    assert result.skipped and not result.rewired
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
