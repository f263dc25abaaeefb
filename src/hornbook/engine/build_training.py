"""From the sections of a recipe to the parts of a training: each section's dataclass chooses its builder."""

import torch

from hornbook.config import Recipe
from hornbook.engine.loss_scale import build_loss_scale
from hornbook.engine.parallelize import parallelize
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig
from hornbook.errors import UserError
from hornbook.model import build_model, initialize
from hornbook.model.forward import forward_cut, forward_resident
from hornbook.objective import OBJECTIVES, build_objective
from hornbook.optim.schedules import build_schedule
from hornbook.optim.updates import UPDATES, build_update, in_groups
from hornbook.parallel.device import compute_dtype
from hornbook.parallel.world import World


def build_training(recipe: Recipe, num_steps: int, world: World) -> tuple[TrainState, StepConfig]:
    """Return the state before the first step, on the world's device, and the fixed parts of a step.

    Args:
        recipe: complete, with a vocabulary.
        num_steps: length of the run, for the schedule.
        world: gives the device and the axes over which the model is cut.

    Raises:
        UserError: the model cannot be cut so, or the sizes in ``[parallel]`` are not those of the world.
    """
    _refuse_layout(recipe, world)
    with torch.device("meta"):
        model = build_model(recipe.model, compute_dtype(recipe.precision.compute, world.device))
    if world.mesh is not None:
        parallelize(model, world)
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
        forward=forward_resident if world.mesh is None else forward_cut,
    )
    return TrainState.fresh(model, update, world), config


def _refuse_layout(recipe: Recipe, world: World) -> None:
    """Refuse a layout that is not that of the world, or that a part of one's own cannot be trusted to support."""
    parallel = recipe.parallel
    parallel.sizes(world.size)  # a benchmark has a world of one process
    if world.is_sharded and type(recipe.objective) not in OBJECTIVES:
        raise UserError(
            f"parallel.data_parallel = {parallel.data_parallel!r} needs all of the model in each micro-batch, and "
            f"{type(recipe.objective).__name__} may skip a part: set it to replicate"
        )
    if world.mesh is not None and type(recipe.optimizer) not in UPDATES:
        raise UserError(
            f"{type(recipe.optimizer).__name__} may need whole weights, and [parallel] gives each rank parts of them: "
            'set data_parallel to "replicate" and tensor_parallel to 1'
        )
