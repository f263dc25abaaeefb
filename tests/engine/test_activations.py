"""Recomputation and offload: the same bits with less kept for the backward pass, dropout included."""

from dataclasses import replace

import pytest
import tiny_layouts
import torch
from cases import mostly_slow
from tiny import random_batch, tiny_model, tiny_state

from hornbook.config import MemoryConfig
from hornbook.engine.activations import counted_bytes, offload_layers, recompute_layers, recomputed
from hornbook.errors import UserError
from hornbook.objective import CausalLM
from hornbook.ops.tensor_parallel import Slices, current
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch

ALL, ATTENTION = MemoryConfig(recompute="all"), MemoryConfig(recompute="attention")
DROPOUTS = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "attention_dropout": 0.1}


@pytest.mark.parametrize("model", mostly_slow(["gpt", "groupbert", "bert padded", "bert packed", "roberta"]))
def test_a_training_that_recomputes_learns_the_same_bits(model):
    recipe = tiny_layouts.recipe_of(model, "adamw")
    expected = tiny_layouts.train(recipe, World(), steps=3)
    for memory in (ALL, ATTENTION, replace(ALL, recompute_layers=(1,)), replace(ALL, recompute_budget=0.3)):
        found = tiny_layouts.train(replace(recipe, memory=memory), World(), steps=3)
        assert found.losses == expected.losses
        assert found.norms == expected.norms
        assert all(torch.equal(found.gradients[name], tensor) for name, tensor in expected.gradients.items())


def kept(batch: Batch, memory: MemoryConfig | None, passes: int = 1) -> int:
    """Bytes that the last of some forward passes of a model of six layers keeps for its backward pass."""
    model = tiny_model(num_layers=6, **DROPOUTS)
    if memory is not None:
        recompute_layers(model, memory)
    for _ in range(passes):
        with counted_bytes() as sizes:
            sums = model(CausalLM().sums, batch)
        sums["causal_lm"].backward()
    return sum(sizes.values())


def test_what_is_kept_shrinks():
    batch = random_batch(4, 24)
    everything = kept(batch, None)
    boundary = 4 * 24 * 16 * 4
    rest = everything - (everything - kept(batch, replace(ALL, recompute_layers=(0,)))) * 6
    layers = everything - rest
    assert kept(batch, ALL) <= rest + 6 * boundary, "of each layer its input at most"
    assert layers > 12 * 6 * boundary, "or this test would show nothing"
    assert kept(batch, ALL) < kept(batch, ATTENTION) < everything
    three = kept(batch, replace(ALL, recompute_layers=(0, 2, 4)))
    assert three == pytest.approx((everything + kept(batch, ALL)) / 2, rel=0.05)


def test_a_budget_keeps_as_many_layers_as_fit():
    batch = random_batch(4, 24)
    everything, nothing = kept(batch, None), kept(batch, ALL)
    a_layer = (everything - nothing) / 6
    for budget, layers in ((0.0, 0), (2.5 * a_layer, 2), (100 * a_layer, 6)):
        memory = replace(ALL, recompute_budget=budget * 1.1 / (1 << 20))
        assert kept(batch, memory, passes=2) == pytest.approx(nothing + layers * a_layer, abs=a_layer / 4)


def test_without_gradients_nothing_is_computed_twice():
    calls, model = [], tiny_model()
    model.blocks[0].feed_forward.register_forward_pre_hook(lambda *_: calls.append(1))
    recompute_layers(model, ALL)
    with torch.no_grad():
        model(CausalLM().sums, random_batch(2, 8))
    assert len(calls) == 1
    sums = model(CausalLM().sums, random_batch(2, 8))
    sums["causal_lm"].backward()
    assert len(calls) == 3


def test_the_second_pass_sees_the_slices_of_the_first():
    """Hooks of a block set them, and are no part of what is computed again."""
    slices, seen = Slices(num_tokens=8, rank=0, size=2, group=None), []

    def compute(x):
        seen.append(current.slices)
        return x.exp()

    with current.having(slices):
        result = recomputed(compute)(torch.ones(2, requires_grad=True))
    result.sum().backward()
    assert seen == [slices, slices]


def test_names_and_parameters_stay():
    state = tiny_state()
    before = list(state.home.tensors()["model"])
    recompute_layers(state.model, ALL)
    assert list(state.home.tensors()["model"]) == before == list(state.model.saved_tensors())


def test_a_layer_without_attention_cannot_recompute_it():
    model = tiny_model()
    model.blocks[1] = torch.nn.Identity()
    with pytest.raises(UserError, match=r"layer 1 does not use hornbook's self-attention"):
        recompute_layers(model, ATTENTION)


def test_offloaded_activations_are_copies_elsewhere_and_weights_are_not():
    """On a CPU the copies are no gain, and that they are equal shows all the same."""
    plain, offloaded = (tiny_model(**DROPOUTS) for _ in range(2))
    offload_layers(offloaded)
    recompute_layers(offloaded, replace(ALL, recompute_layers=(1,)))
    for model in (plain, offloaded):
        sums = model(CausalLM().sums, random_batch(2, 8))
        sums["causal_lm"].backward()
    gradients = dict(plain.named_parameters())
    assert all(torch.equal(value.grad, gradients[name].grad) for name, value in offloaded.named_parameters())
    with torch.autograd.graph.saved_tensors_hooks(lambda _: pytest.fail("kept on the device"), lambda kept: kept):
        x_BTD, batch = torch.zeros(2, 8, 16, requires_grad=True), random_batch(2, 8)
        offloaded.blocks[0](x_BTD, offloaded.make_context(batch))
