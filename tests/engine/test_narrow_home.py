"""Storage in 16 bits: bytes as stated, fp32 while open, the same bits after a resume and on any ranks."""

import math
from dataclasses import replace

import pytest
import torch
from cases import mostly_slow
from tiny import random_batch, snapshot, split, tensors_of, tiny_config, tiny_step_config

from hornbook.config import AdamWConfig, MomentumConfig, PrecisionConfig, Recipe, TrainingConfig
from hornbook.engine.build_training import build_training, home_of
from hornbook.engine.home import InMemory
from hornbook.engine.narrow_home import NarrowHome
from hornbook.engine.step import train_step
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World

BF16 = PrecisionConfig(compute="fp32", weights="bf16", gradients="bf16", first_moment="bf16", second_moment="bf16")
FP16 = PrecisionConfig(
    compute="fp32", weights="fp16", gradients="fp16", first_moment="fp16", second_moment="fp16", loss_scale=1024.0
)


def recipe_of(precision: PrecisionConfig, optimizer=None, **sizes) -> Recipe:
    model = tiny_config(residual_dropout=0.1, **sizes)
    training = TrainingConfig(steps=10, seed=7)
    return replace(Recipe(), model=model, training=training, precision=precision, optimizer=optimizer or AdamWConfig())


def trained(precision: PrecisionConfig, steps: int, optimizer=None, learning_rate: float = 1e-2):
    """The state after some steps, and the losses."""
    recipe = recipe_of(precision, optimizer)
    state, config = build_training(recipe, 10, World())
    config = replace(
        tiny_step_config(), update=config.update, loss_scale=config.loss_scale, schedule=lambda _: learning_rate
    )
    return state, [train_step(state, split(random_batch(4, 8, seed=step % 4), 2), config).loss for step in range(steps)]


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        (PrecisionConfig(), AdamWConfig(), 16),
        (PrecisionConfig(first_moment="bf16", second_moment="bf16"), AdamWConfig(), 12),
        (PrecisionConfig(weights="bf16", gradients="bf16"), AdamWConfig(), 12),
        (BF16, AdamWConfig(), 8),
        (FP16, AdamWConfig(), 8),
        (BF16, MomentumConfig(), 6),
    ],
)
def test_bytes_a_parameter_are_those_of_the_tensors(precision, optimizer, expected):
    recipe = recipe_of(replace(precision, compute="fp32"), optimizer)
    assert precision.bytes_per_parameter + sum(size for _, size in recipe.states("up.weight", (2, 3))) == expected
    state, config = build_training(recipe, 10, World())
    config.executor(state, [random_batch(2, 8)], config.objective, {"causal_lm": 16}, lambda number: None)
    held = [parameter for _, parameter in state.model.own_parameters()]
    tensors = [*held, *(parameter.grad for parameter in held)]
    tensors += [tensor for moments in state.home.moments.values() for tensor in moments.values()]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    assert sum(storages.values()) == expected * sum(map(torch.numel, held))
    assert {name: str(dtype) for name, dtype in state.home.dtypes.items()}["weight"] == str(held[0].dtype)


def test_a_plain_recipe_has_the_plain_home():
    recipe = recipe_of(PrecisionConfig())
    state, _ = build_training(recipe, 10, World())
    assert type(state.home) is InMemory
    assert type(home_of(state.model, build_update(recipe.optimizer), recipe_of(BF16), World())) is NarrowHome


def test_moments_of_16_bits_change_little_and_a_home_in_fp32_nothing():
    """The home's parts alone change no bit: the state of a momentum has no second moment that would be narrow."""
    narrow = PrecisionConfig(compute="fp32", second_moment="bf16")
    plain, expected = trained(PrecisionConfig(compute="fp32"), 5, MomentumConfig())
    state, losses = trained(narrow, 5, MomentumConfig())
    assert type(state.home) is NarrowHome
    assert losses == expected
    ours, theirs = snapshot(state), snapshot(plain)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("precision", mostly_slow([BF16, FP16]), ids=["bf16", "fp16"])
def test_narrow_storage_learns(precision):
    """Updates of a hundredth of the distance between two weights add up all the same."""
    _, expected = trained(PrecisionConfig(compute="fp32"), 40)
    state, losses = trained(precision, 40)
    assert losses[-1] == pytest.approx(expected[-1], rel=0.02)
    assert losses[-1] < losses[0] - 0.1
    assert all((tensor[70:] == 0).all() for tensor in state.home.moments["embedding.tokens"].values())
    assert (state.model.embedding.tokens[70:] == 0).all(), "padding stays zero"


@pytest.mark.slow
def test_small_updates_are_not_lost():
    """Of weights of 0.02 in bf16, steps of 1e-6 are a hundredth of the distance to the next one."""
    moved = {}
    for name, precision in (("fp32", PrecisionConfig(compute="fp32")), ("bf16", BF16)):
        start, _ = trained(precision, 0)
        before = {key: value.float() for key, value in snapshot(start).items()}
        state, _ = trained(precision, 30, learning_rate=1e-6)
        after = {key: value.float() for key, value in snapshot(state).items()}
        name_of = "model/blocks.0.feed_forward.up.weight"
        moved[name] = after[name_of] - before[name_of]
    exact, rounded = moved["fp32"].flatten(), moved["bf16"].flatten()
    slope = float((exact * rounded).sum() / exact.square().sum())
    error = float(rounded.norm() / exact.norm()) / math.sqrt(len(exact))
    assert slope == pytest.approx(1.0, abs=6 * error)
    assert slope > 6 * error, "or this test would show nothing"


@pytest.mark.parametrize("precision", mostly_slow([BF16, FP16]), ids=["bf16", "fp16"])
def test_a_resume_changes_no_bit(precision):
    whole, _ = trained(precision, 6)
    first, _ = trained(precision, 4)
    stored = {
        group: {name: tensor.clone() for name, tensor in tensors.items()}
        for group, tensors in tensors_of(first).items()
    }
    second, _ = trained(precision, 0)
    second.load_tensors(stored)
    second.progress = first.progress
    recipe = recipe_of(precision)
    _, config = build_training(recipe, 10, World())
    config = tiny_step_config(update=config.update, loss_scale=config.loss_scale)
    for step in range(4, 6):
        train_step(second, split(random_batch(4, 8, seed=step % 4), 2), config)
    ours, theirs = snapshot(second), snapshot(whole)
    assert {tensor.dtype for tensor in theirs.values()} == {torch.bfloat16 if precision is BF16 else torch.float16}
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_second_moments_in_fp16_are_roots():
    """Squares of gradients of 1e-5 are below what fp16 can hold; their roots are not."""
    precision = PrecisionConfig(compute="fp32", second_moment="fp16")
    state, _ = trained(precision, 3)
    plain, _ = trained(PrecisionConfig(compute="fp32"), 3)
    names = tensors_of(state)["optimizer"].keys()
    assert "blocks.0.attention.out.weight.exp_avg_rms" in names
    assert not any(name.endswith("exp_avg_sq") for name in names)
    root = tensors_of(state)["optimizer"]["blocks.0.attention.out.weight.exp_avg_rms"].float()
    squares = tensors_of(plain)["optimizer"]["blocks.0.attention.out.weight.exp_avg_sq"]
    torch.testing.assert_close(root, squares.sqrt(), rtol=0.02, atol=2e-7)
