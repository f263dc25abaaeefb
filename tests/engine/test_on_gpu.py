"""A GPU learns what a CPU learns; run with make test-gpu where there is one."""

from dataclasses import replace

import pytest
import tiny_layouts
import torch
from tiny_layouts import recipe_of

from hornbook.parallel.device import prepare
from hornbook.parallel.world import World

MODELS = ["gpt", "bert padded", "bert packed", "deep bert unpadded", "groupbert"]
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
"""PyTorch's compiler does what PyTorch warns of."""


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_phased_execution_learns_what_resident_execution_learns(model, in_files, tmp_path):
    """With the state in pinned memory of the host, or in files."""
    device = prepare("cuda:0", 1)
    recipe = recipe_of(model, "adamw")
    expected = tiny_layouts.train(recipe, World(device=device), steps=5)
    memory = replace(recipe.memory, execution="phased", scratch=str(tmp_path) if in_files else None)
    found = tiny_layouts.train(replace(recipe, memory=memory), World(device=device), steps=5)
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)


def test_partial_sums_in_half_are_further_from_the_product():
    """Of fp16 factors, which a GPU may add up in fp16; a training takes the option to its products."""
    device = prepare("cuda:0", 1)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(64, 1 << 16, generator=generator).half().to(device) for _ in range(2))
    exact, errors, losses = a.double() @ b.double().t(), {}, {}
    recipe = recipe_of("gpt", "adamw")
    for partials in ("fp32", "half", "auto"):
        precision = replace(recipe.precision, compute="fp16", partials=partials)
        losses[partials] = tiny_layouts.train(
            replace(recipe, precision=precision), World(device=device), steps=3
        ).losses
        errors[partials] = float(((a @ b.t()).double() - exact).abs().mean())
    assert errors["fp32"] < errors["half"]
    assert losses["half"] == pytest.approx(losses["fp32"], rel=1e-2)
    assert not torch.backends.cuda.matmul.allow_fp16_accumulation, "the last training asked for PyTorch's own choice"


@pytest.mark.parametrize(("model", "compiled"), [*((model, "none") for model in MODELS), ("gpt", "blocks")])
def test_a_gpu_learns_what_a_cpu_learns(model, compiled):
    """In fp32, from the same weights, with the same dropout; the order of sums is the device's own."""
    device = prepare("cuda:0", 1)
    recipe = recipe_of(model, "adamw")
    expected = tiny_layouts.train(recipe, World(), steps=5)
    recipe = replace(recipe, training=replace(recipe.training, compile=compiled))
    found = tiny_layouts.train(recipe, World(device=device), steps=5)
    assert all(torch.equal(found.initial[name].cpu(), tensor) for name, tensor in expected.initial.items())
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert found.norms == pytest.approx(expected.norms, rel=1e-3)
