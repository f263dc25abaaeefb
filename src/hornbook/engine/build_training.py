"""From the sections of a recipe to the parts of a training: each section's dataclass chooses its builder."""

import torch

from hornbook.config import Recipe
from hornbook.engine.loss_scale import build_loss_scale
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig
from hornbook.model import build_model, initialize
from hornbook.objective import build_objective
from hornbook.optim.schedules import build_schedule
from hornbook.optim.updates import build_update, in_groups
from hornbook.parallel.device import compute_dtype
from hornbook.parallel.world import World


def build_training(recipe: Recipe, num_steps: int, world: World) -> tuple[TrainState, StepConfig]:
    """Return the state before the first step, on the world's device, and the fixed parts of a step.

    Args:
        recipe: complete, with a vocabulary.
        num_steps: length of the run, for the schedule.
        world: gives the device.
    """
    with torch.device("meta"):
        model = build_model(recipe.model, compute_dtype(recipe.precision.compute, world.device))
    model.allocate(world.device)
    initialize(model, recipe.training.seed)
    names = [name for name, _ in model.own_parameters()]
    update = in_groups(build_update(recipe.optimizer), recipe.optimizer, names)
    factor, peak = build_schedule(recipe.schedule, num_steps), recipe.optimizer.learning_rate
    config = StepConfig(
        objective=build_objective(recipe.objective),
        update=update,
        schedule=lambda index: peak * factor(index),
        clip_norm=recipe.optimizer.clip_norm,
        clip_scope=getattr(recipe.optimizer, "clip_scope", "global"),  # one's own optimizer may not have it
        loss_scale=build_loss_scale(recipe.precision) if recipe.precision.scales_loss else StepConfig.loss_scale,
        world=world,
    )
    return TrainState.fresh(model, update, world.data), config
