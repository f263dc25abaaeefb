"""What is in memory in a step, against tensors of known sizes."""

from pathlib import Path

import pytest
import tiny_runs
import torch

from hornbook.engine.build_training import build_samples, build_training
from hornbook.engine.step import train_step
from hornbook.measure.memory_timeline import MemoryTimeline
from hornbook.parallel.world import World
from hornbook.samples.batches import Loader
from hornbook.samples.sources import complete, open_sources

EXTRA = 64 << 20


@pytest.fixture
def training(tmp_path: Path):
    """A tiny training after two steps, and its batches."""
    recipe = tiny_runs.tiny_recipe(tmp_path).recipe
    sources, world = open_sources(recipe), World(device=torch.device("cpu"))
    recipe = complete(recipe, sources)
    state, config = build_training(recipe, 100, world)
    with Loader(
        build_samples(recipe, sources, on_cpu=True).maker,
        global_batch_size=4,
        micro_batch_size=2,
        rank=0,
        world_size=1,
        start_sample=0,
    ) as batches:
        for _ in range(2):
            train_step(state, next(batches), config)
        yield state, config, batches


def held_at_peak(training) -> tuple[list[tuple[float, int]], dict[tuple[str, str], int]]:
    state, config, batches = training
    timeline = MemoryTimeline(state.model, state.home)
    batch = next(batches)
    with timeline:
        train_step(state, batch, config, on_gradients=timeline.note_gradients)
    return timeline.points(), {(held.kind, held.where): held.bytes for held in timeline.at_peak()}


def bytes_of_weights(state) -> int:
    return sum(parameter.numel() * 4 for _, parameter in state.model.own_parameters())


def test_the_state_of_the_training_is_there_throughout(training) -> None:
    points, held = held_at_peak(training)
    weights = bytes_of_weights(training[0])
    assert held["weights", "all"] == weights
    assert held["optimizer state", "all"] == 2 * weights
    assert points[0] == (0.0, 3 * weights)
    assert points[-1] == pytest.approx((1.0, 3 * weights), abs=2000)  # all the rest is freed, but for a few sums
    assert sum(held.values()) == max(size for _, size in points)


def test_a_large_tensor_is_found_where_it_was_made(training) -> None:
    """It lives while the second block computes."""
    block = training[0].model.blocks[1]
    whole = block.feed_forward.forward

    def with_ballast(x_BTD, *more):
        ballast = torch.zeros(EXTRA // 4)
        result = whole(x_BTD, *more)
        del ballast
        return result

    block.feed_forward.forward = with_ballast
    _, held = held_at_peak(training)
    assert held["activations", "blocks.1.feed_forward"] >= EXTRA
    del block.feed_forward.forward
    _, held = held_at_peak(training)
    assert held.get(("activations", "blocks.1.feed_forward"), 0) < EXTRA


def test_gradients_are_named_where_they_are_the_peak(training) -> None:
    """With ballast in the update, the peak is there, and all gradients exist."""
    state, config, _ = training
    apply = config.update.apply

    def with_ballast(slots, learning_rate, count):
        ballast = torch.zeros(EXTRA // 4)
        apply(slots, learning_rate, count)
        del ballast

    object.__setattr__(config.update, "apply", with_ballast)
    try:
        _, held = held_at_peak(training)
    finally:
        object.__setattr__(config.update, "apply", apply)
    assert held["gradients", "all"] == bytes_of_weights(state)
    assert held["temporary", "update: zeros"] >= EXTRA or held["temporary", "update: empty"] >= EXTRA


def test_hooks_are_removed_afterwards(training) -> None:
    held_at_peak(training)
    assert not any(module._forward_pre_hooks for module in training[0].model.modules())


def test_a_storage_that_is_emptied_and_filled_again(training) -> None:
    """As shards do with the weights that they gather."""
    before = torch.UntypedStorage.resize_
    with MemoryTimeline(training[0].model, training[0].home) as timeline:
        storage = torch.zeros(EXTRA // 4).untyped_storage()
        storage.resize_(0)
        gone = torch.zeros(EXTRA // 8)
        del gone
        storage.resize_(EXTRA)
        del storage
    weights = bytes_of_weights(training[0])
    sizes = [size - 3 * weights for _, size in timeline.points()]
    assert max(sizes) == EXTRA  # never both
    assert sizes[-1] == 0
    assert torch.UntypedStorage.resize_ is before
