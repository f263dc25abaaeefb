"""The step knows only parts: however a home cuts a model, the weights are the same, bit for bit."""

from dataclasses import replace

import pytest
import torch
from tiny import fresh_state, random_batch, snapshot, split, tiny_model, tiny_state, tiny_step_config
from torch import Tensor

from hornbook.config import AdamWConfig, LambConfig
from hornbook.engine.home import Held, InMemory
from hornbook.engine.loss_scale import StaticScale
from hornbook.engine.state import TrainState
from hornbook.engine.step import train_step
from hornbook.ops.native.kernels import copy_of, weights_unchanged
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World


class CutInMemory(InMemory):
    """The same tensors, updated a block at a time; it notes which parts were opened."""

    opened: list[str]

    def keep_gradients(self, part: str) -> None:
        if part == self.parts[0]:
            super().keep_gradients(part)

    def _gradients(self, part: str) -> list[tuple[Held, Tensor]]:
        self.opened.append(part)
        return [found for found in super()._gradients(part) if found[0].name.startswith(f"{part}.")]


def cut_state(update) -> TrainState:
    model = tiny_model(7, residual_dropout=0.1)
    home = CutInMemory(model, fresh_state(model, update).home.moments, World())
    home.parts = ["embedding", *(f"blocks.{number}" for number in range(len(model.blocks))), "head"]
    home.opened = []
    return TrainState(model=model, home=home)


@pytest.mark.parametrize("config", [AdamWConfig(), LambConfig()], ids=["adamw", "lamb"])
@pytest.mark.parametrize(("scope", "scale"), [("global", 1.0), ("per_tensor", 1.0), ("global", 128.0)])
def test_a_home_of_several_parts_trains_the_same_weights(config, scope, scale):
    update = build_update(config)
    options = {"update": update, "clip_norm": 0.1, "clip_scope": scope, "loss_scale": StaticScale({0: scale})}
    whole = fresh_state(tiny_model(7, residual_dropout=0.1), update)
    cut = cut_state(update)
    for state in (whole, cut):
        results = [
            train_step(state, split(random_batch(4, 8, seed=step), 2), tiny_step_config(**options)) for step in range(3)
        ]
        assert all(result.gradient_norm > 0.1 for result in results), "clipping has to act"
    times = 2 if scale == 1.0 else 3  # a scale divides the gradients first
    assert cut.home.opened == 3 * times * cut.home.parts, "norms first, then updates"
    ours, theirs = snapshot(cut), snapshot(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_home_in_memory_keeps_everything_in_fp32():
    home = tiny_state().home
    assert home.dtypes == dict.fromkeys(("weight", "gradient", "exp_avg", "exp_avg_sq"), torch.float32)
    assert set(home.weights("model")) == {name for name, _ in tiny_model().own_parameters()}


@pytest.mark.parametrize("changes", ["nothing", "weights", "no copy"])
def test_a_step_takes_the_copies_that_the_update_wrote_if_the_weights_are_theirs(changes):
    """A tied head's copy belongs to the embedding's table, which the update knows."""
    state = tiny_state()
    home, table = state.home, state.model.head.table
    state.model.embedding.tokens.grad = torch.zeros_like(table)
    with weights_unchanged(copies=home.copies):
        first = copy_of(table, torch.bfloat16)
        assert copy_of(table, torch.bfloat16) is first
    with home.slots("model", 1) as slots:
        (slot,) = slots
        assert slot.copy.values is first
        slot.parameter.add_(1.0)
        if changes != "no copy":
            first.copy_(slot.parameter)
            slot.copy.updated = slot.parameter, slot.parameter._version
    assert len(home.copies) == (changes != "no copy")
    if changes == "weights":
        home.tensors()["model"]["embedding.tokens"].values.mul_(2.0)
    with weights_unchanged(copies=home.copies):
        second = copy_of(table, torch.bfloat16)
    assert (second is first) == (changes == "nothing")
    assert torch.equal(second, table.to(torch.bfloat16))
    with weights_unchanged(copies=home.copies):
        assert copy_of(table, torch.bfloat16) is not second, "no update has written it since"


@pytest.mark.parametrize("config", [AdamWConfig(), LambConfig()], ids=["adamw", "lamb"])
def test_copies_stay_until_updates_that_write_them_only(config):
    update = build_update(config)
    state = fresh_state(tiny_model(7), update)
    found = []

    def note(slots, rate, count):
        found.extend(slot.copy for slot in slots)

    def executor(state, micro_batches, objective, counts, begin):
        copy_of(state.model.head.table, torch.bfloat16)
        state.model.embedding.tokens.grad = torch.ones_like(state.model.head.table)
        return {name: torch.ones(()) for name in objective.weights}

    config = tiny_step_config(update=replace(update, apply=note), executor=executor)
    train_step(state, split(random_batch(4, 8), 1), config)
    assert [copy is not None for copy in found] == [update.writes_copies]
    assert not state.home.copies
