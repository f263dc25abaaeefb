"""What phased execution is predicted to store and to move, beside what its files count in a real step."""

import math

import pytest
import torch

from hornbook.config import load_recipe
from hornbook.config.rank_part import RankPart
from hornbook.engine.build_training import build_training
from hornbook.engine.step import train_step
from hornbook.measure.throughput import synthetic_loader
from hornbook.parallel.world import World
from hornbook.plan.devices import DEVICES
from hornbook.plan.phased import transfer_of
from hornbook.plan.planner import Machine, make_plan, with_options
from hornbook.plan.search import search_layouts
from hornbook.plan.stand_ins import shrunk, with_vocabulary

GIB = 1 << 30


def recipe_of(name, *options):
    return with_vocabulary(load_recipe(name, ["--memory.execution=phased", *options], require_data=False).recipe)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("demo", []),
        ("bert-tiny", ["--precision.weights=bf16", "--precision.gradients=bf16", "--precision.first_moment=bf16"]),
    ],
)
def test_a_step_moves_and_stores_the_bytes_of_the_formulas(name, options):
    recipe = shrunk(recipe_of(name, "--precision.compute=fp32", "--precision.kernels=torch", *options))
    world = World(device=torch.device("cpu"))
    state, config = build_training(recipe, 1, world)
    micro_batches = next(synthetic_loader(recipe, world))
    train_step(state, micro_batches, config)
    tokens = sum(batch["tokens"].numel() for batch in micro_batches)
    transfer = transfer_of(recipe, RankPart.of(recipe, 1, 0), tokens, itemsize=4)
    assert transfer.passes.read + transfer.update.read == state.home.traffic["bytes_read"]
    assert transfer.passes.written + transfer.update.written == state.home.traffic["bytes_written"]
    stored = sum(math.prod(extent.shape) * extent.dtype.itemsize for extent in state.home._extents.values())
    rows = (recipe.model.num_layers + 2) * tokens * recipe.model.hidden_size * 4
    assert transfer.size == pytest.approx(stored + rows, rel=1e-4), "tensors begin at multiples of 64 bytes"


def test_a_step_takes_a_forward_pass_more_or_the_time_of_its_transfers():
    machine = Machine(device=DEVICES["h100"], efficiency=0.5)
    many, resident = recipe_of("gpt2-small"), {"execution": "resident"}
    phased = make_plan(many, machine).speed
    assert phased.products == pytest.approx(
        make_plan(with_options(many, memory=resident), machine).speed.products * 4 / 3
    )
    assert phased.offload < phased.products / 10, "512 sequences hide the transfers of the weights"
    few = recipe_of("gpt2-small", "--training.global_batch_size=1", "--training.micro_batch_size=1")
    plan = make_plan(few, machine)
    (memory,) = plan.stages.values()
    moved = max(memory.transfer.passes) + max(memory.transfer.update)
    assert plan.speed.seconds == pytest.approx(moved / 50e9, rel=0.01), "one sequence waits for its transfers"
    on_disk = make_plan(with_options(few, memory={"scratch": "/nvme"}), machine).speed
    assert on_disk.offload > 10 * plan.speed.offload


def test_a_model_larger_than_the_device_is_advised_and_found_phased():
    machine = Machine(device=DEVICES["4090"], memory=16 * GIB)
    recipe = recipe_of("gpt3-2.7b", "--memory.execution=resident", "--training.global_batch_size=4")
    plan = make_plan(recipe, machine)
    assert plan.advice == "`memory.execution=phased`"
    layouts = search_layouts(recipe, machine)
    assert {layout.plan.recipe.memory.execution for layout in layouts} == {"phased"}
    assert layouts[0].words.startswith("`memory.execution=phased`")
    (memory,) = layouts[0].plan.stages.values()
    table = 50304 * 2560 * 4
    assert 3 * table < memory.peak < 6 * table, "weights, gradients and the new gradients of the table, and logits"
