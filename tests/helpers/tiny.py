"""Tiny models and batches that the tests share."""

from collections.abc import Mapping
from dataclasses import asdict

import torch

from hornbook.config import AdamWConfig, GPTConfig, Recipe
from hornbook.engine.build_training import home_of
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig
from hornbook.model import LanguageModel, build_model, initialize
from hornbook.objective import CausalLM
from hornbook.optim.updates import Update, build_update
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED


def tiny_config(**changes) -> GPTConfig:
    """Two layers; a vocabulary that is no multiple of 64; sizes that differ from each other."""
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "vocab_size": 70, "max_positions": 24}
    return GPTConfig(**{**sizes, **changes})


def tiny_model(seed: int = 7, compute_dtype: torch.dtype = torch.float32, **changes) -> LanguageModel:
    """An initialized model of ``tiny_config``."""
    model = build_model(tiny_config(**changes), compute_dtype)
    initialize(model, seed)
    return model


def hidden_states(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """What the last block gives, ``[B, T, D]``."""
    x_BTD: torch.Tensor = model(lambda head, x_BTD, batch: x_BTD, batch)
    return x_BTD


def randomize(model: torch.nn.Module, seed: int = 0, scale: float = 0.3) -> None:
    """Add noise to every parameter, so that biases, norms and positions matter; padding rows stay zero."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.own_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draws) * scale)
            parameter[len(model.logical(name, parameter)) :] = 0.0


def random_batch(
    num_samples: int, num_tokens: int, *, vocab_size: int = 70, seed: int = 0, unscored: float = 0.0
) -> Batch:
    """Random tokens and targets, of which a share ``unscored`` is not scored, and the keys of dropout."""
    draws = torch.Generator().manual_seed(seed)
    shape = (num_samples, num_tokens)
    targets = torch.randint(vocab_size, shape, generator=draws)
    targets[torch.rand(shape, generator=draws) < unscored] = NOT_SCORED
    return {
        "tokens": torch.randint(vocab_size, shape, generator=draws),
        "targets": targets,
        "positions": torch.arange(num_tokens).expand(shape).contiguous(),
        "keys": torch.randint(1 << 32, shape, generator=draws),
    }


def split(batch: Batch, size: int) -> list[Batch]:
    """Cut a batch into micro-batches of ``size`` samples."""
    num_samples = len(batch["tokens"])
    return [{name: tensor[at : at + size] for name, tensor in batch.items()} for at in range(0, num_samples, size)]


def tiny_step_config(world: World | None = None, learning_rate: float = 1e-2, **changes) -> StepConfig:
    """AdamW at a constant rate."""
    config = AdamWConfig(learning_rate=learning_rate)
    parts = {
        "objective": CausalLM(),
        "update": build_update(config),
        "schedule": lambda count: learning_rate,
        "clip_norm": 1.0,
        "world": world or World(),
    }
    return StepConfig(**{**parts, **changes})


def tiny_state(seed: int = 7, world: World | None = None, **changes) -> TrainState:
    """A fresh training state of ``tiny_model``."""
    return fresh_state(tiny_model(seed, **changes), build_update(AdamWConfig()), world)


def fresh_state(model: LanguageModel, update: Update, world: World | None = None) -> TrainState:
    """The state before the first step, in memory."""
    return TrainState(model=model, home=home_of(model, update, Recipe(), world or World()))


def tensors_of(state: TrainState) -> dict[str, dict[str, torch.Tensor]]:
    """All weights and moments of a state that lies on one rank, by group and name."""
    files = state.home.tensors()
    return {file: {name: shard.values for name, shard in shards.items()} for file, shards in files.items()}


def snapshot(state: TrainState) -> dict[str, torch.Tensor]:
    """Copies of all weights and moments."""
    return {
        f"{file}/{name}": tensor.clone()
        for file, tensors in tensors_of(state).items()
        for name, tensor in tensors.items()
    }


def progress_of(state: TrainState) -> dict[str, object]:
    """The progress without what depends on the clock."""
    return {name: value for name, value in asdict(state.progress).items() if name != "seconds"}


def distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """L2 norm of the difference of all weights of two snapshots, as a share of the norm of the weights.

    Key biases are left out. A softmax does not change when all its scores move alike, so their gradient is zero but for
    rounding, and AdamW divides rounding by rounding: they drift apart at no consequence.
    """
    ours, theirs = _flat_weights(first), _flat_weights(second)
    return float((ours - theirs).norm() / ours.norm())


def gradient_distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """L2 norm of the difference of all gradients, as a share of theirs; of snapshots after AdamW's first step.

    The moment ``exp_avg`` is a tenth of the clipped gradient then.
    """
    names = [name for name in first if name.endswith(".exp_avg")]
    ours, theirs = (torch.cat([side[name].double().flatten() for name in names]) for side in (first, second))
    return float((ours - theirs).norm() / ours.norm())


def _flat_weights(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    weights = {name: tensor.double() for name, tensor in sorted(tensors.items()) if name.startswith("model/")}
    without = {name: tensor.view(3, -1)[[0, 2]] for name, tensor in weights.items() if name.endswith("qkv.bias")}
    return torch.cat([tensor.flatten() for tensor in {**weights, **without}.values()])
