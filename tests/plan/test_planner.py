"""The plan of a run: whether it fits, what to change, how long a step takes."""

from dataclasses import replace

import pytest
import torch
from full_loads import load_of

from hornbook.config import load_recipe
from hornbook.config.communication import bytes_sent
from hornbook.errors import UserError
from hornbook.plan.devices import DEVICES, LAUNCH, device_of
from hornbook.plan.planner import Machine, make_plan, with_options
from hornbook.plan.search import search_layouts
from hornbook.plan.stand_ins import with_vocabulary
from hornbook.run.utilization import peak_of

GIB = 1 << 30


def recipe_of(name, *options):
    return with_vocabulary(load_recipe(name, options, require_data=False).recipe)


def test_a_small_run_fits_and_its_micro_batch_may_grow():
    plan = make_plan(recipe_of("gpt2-small"), Machine(device=DEVICES["h100"]))
    assert plan.fits
    assert plan.advice is None
    largest = plan.largest_micro_batch
    at = with_options(plan.recipe, training={"micro_batch_size": largest})
    assert make_plan(at, plan.machine, advises=False).fits
    above = with_options(plan.recipe, training={"micro_batch_size": 2 * largest})
    assert not make_plan(above, plan.machine, advises=False).fits


@pytest.mark.parametrize(("memory", "devices"), [(24, 1), (12, 1), (4, 1), (3, 8)])
def test_what_is_advised_fits(memory, devices):
    machine = Machine(device=DEVICES["a100"], num_ranks=devices, memory=memory * GIB)
    plan = make_plan(recipe_of("gpt2-medium", "--training.micro_batch_size=32"), machine)
    assert not plan.fits
    assert plan.advice is not None
    words = [word.strip("`") for word in plan.advice.split()]
    if words[0].startswith("devices="):
        machine, words = replace(machine, num_ranks=int(words[0].removeprefix("devices="))), words[1:]
    options = [f"--{word}" for word in words]
    assert make_plan(recipe_of("gpt2-medium", "--training.micro_batch_size=32", *options), machine).fits


def test_nothing_is_advised_that_does_not_help():
    plan = make_plan(recipe_of("gpt2-small"), Machine(device=DEVICES["l4"], memory=10 << 20, can_grow=False))
    assert (plan.fits, plan.largest_micro_batch, plan.advice) == (False, None, None)


def test_a_step_takes_the_time_of_its_products_and_more():
    recipe = recipe_of("gpt2-small")
    machine = Machine(device=DEVICES["h100"], efficiency=0.5)
    speed = make_plan(recipe, machine).speed
    tokens = 512 * 1024
    assert speed.flops == recipe.flops_per_token(1024) * tokens
    assert speed.products == pytest.approx(speed.flops / 989e12 / 0.5)
    assert speed.seconds > speed.products
    assert speed.mfu(989e12) == pytest.approx(0.5, rel=0.05)
    again = make_plan(with_options(recipe, memory={"recompute": "all"}), machine).speed
    assert again.products == pytest.approx(speed.products * 4 / 3)


def test_launches_of_products_are_one_forward_and_two_backward_for_each_linear_layer():
    recipe = recipe_of("gpt2-small", "--training.global-batch-size=8", "--training.micro-batch-size=2")
    speed = make_plan(recipe, Machine(device=DEVICES["h100"])).speed
    assert speed.launches == pytest.approx(LAUNCH * 4 * 3 * 4 * 12), "4 micro-batches, 4 layers in each of 12 blocks"
    assert make_plan(recipe, Machine(device=DEVICES["cpu"])).speed.launches == 0


def test_the_bytes_that_are_sent_are_those_of_the_formulas():
    recipe = recipe_of("gpt2-small")
    plan = make_plan(recipe, Machine(device=DEVICES["h100"], num_ranks=4))
    assert plan.speed.bytes_sent == bytes_sent(recipe, 4, 0, load_of(recipe, 4, itemsize=2))


def test_a_pipeline_has_a_bubble_and_a_plan_for_each_stage():
    recipe = recipe_of("gpt2-small-4-stages")
    plan = make_plan(recipe, Machine(device=DEVICES["h100"], num_ranks=8))
    assert [*plan.stages] == [0, 2, 4, 6]
    assert plan.speed.bubble > 0
    assert plan.stages[0].activations["in flight"] > 0
    assert "in flight" not in plan.stages[6].activations


def test_a_price_is_that_of_all_devices():
    recipe = recipe_of("gpt2-small", "--training.steps=1000")
    plan = make_plan(recipe, Machine(device=DEVICES["h100"], num_ranks=2, price=6.0))
    assert plan.step_price == pytest.approx(plan.speed.seconds / 3600 * 12.0)
    assert plan.num_steps == 1000
    listed = make_plan(recipe, replace(plan.machine, price=None))
    assert listed.step_price / plan.step_price == pytest.approx(DEVICES["h100"].price.dollars / 6.0)


@pytest.mark.slow
def test_the_search_finds_what_fits_quickest_first():
    machine = Machine(device=DEVICES["a100"], num_ranks=4, memory=6 * GIB)
    layouts = search_layouts(recipe_of("gpt2-small"), machine)
    seconds = [layout.plan.speed.seconds for layout in layouts]
    assert seconds == sorted(seconds)
    assert all(layout.plan.fits for layout in layouts)
    kinds = {layout.plan.recipe.parallel.sizes(4) for layout in layouts}
    assert {sizes.tensor for sizes in kinds} == {1, 2, 4}
    assert {sizes.pipeline for sizes in kinds} == {1, 2, 4}
    options = [f"--{word.strip('`')}" for word in layouts[0].words.split()]
    again = make_plan(recipe_of("gpt2-small", *options), machine)
    assert again.speed.seconds == seconds[0]


def test_what_cannot_be_planned_is_refused():
    recipe = recipe_of("gpt2-small")
    with pytest.raises(UserError, match="not a multiple of 3 data-parallel ranks"):
        make_plan(recipe, Machine(device=DEVICES["h100"], num_ranks=3))
    own = type("OwnConfig", (type(recipe.model),), {"description": None})
    with pytest.raises(UserError, match="OwnConfig does not describe its layers"):
        make_plan(replace(recipe, model=own(vocab_size=100)), Machine(device=DEVICES["h100"]))


def test_an_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(UserError, match='did you mean "h100"'):
        device_of("h10")


CARDS = {
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "b200": "NVIDIA B200",
    "a100": "NVIDIA A100-SXM4-80GB",
    "l4": "NVIDIA L4",
    "4090": "NVIDIA GeForce RTX 4090",
}


@pytest.mark.parametrize(("name", "card"), CARDS.items())
def test_peaks_are_those_that_runs_report_against(name, card):
    assert DEVICES[name].flops["bf16"] == peak_of(card, torch.bfloat16)
