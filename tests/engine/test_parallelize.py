"""What is applied to a model from outside, in one process; tests/parallel/test_layouts.py has the rest."""

import pytest
import tiny_layouts
import torch
from ranks import python
from tiny_layouts import recipe_of

from hornbook.config import load_recipe
from hornbook.engine.build_training import build_training
from hornbook.parallel.world import World

COMPILED = "--training.compile=blocks"
pytestmark = pytest.mark.filterwarnings("default")
"""PyTorch's compiler does what PyTorch warns of."""


def test_compiled_blocks_keep_their_names_and_weights():
    """Nothing is compiled before the first forward pass."""
    words = [f"--{word}" for word in tiny_layouts.SIZES.split()]
    states = [
        build_training(load_recipe("gpt2-small", [*words, *more]).recipe, 4, World())[0] for more in ([], [COMPILED])
    ]
    plain, compiled = (dict(state.model.named_parameters()) for state in states)
    assert plain.keys() == compiled.keys()
    assert all(torch.equal(plain[name], compiled[name]) for name in plain)
    assert [hasattr(block.forward, "_torchdynamo_orig_callable") for block in states[1].model.blocks] == [True] * 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "bert packed"])
def test_compiled_blocks_learn_the_same(model, monkeypatch):
    """With dropout and clipping, to the same 1e-6 as on several ranks."""
    expected = tiny_layouts.train(recipe_of(model, "adamw"), World(), steps=4)
    monkeypatch.setattr(tiny_layouts, "SIZES", f"{tiny_layouts.SIZES} {COMPILED.removeprefix('--')}")
    found = tiny_layouts.train(recipe_of(model, "adamw"), World(), steps=4)
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    assert found.norms == pytest.approx(expected.norms, rel=1e-6)


@pytest.mark.slow
def test_compiled_blocks_recompute_to_the_same_bits(monkeypatch):
    def trained(*words):
        monkeypatch.setattr(tiny_layouts, "SIZES", " ".join([sizes, COMPILED.removeprefix("--"), *words]))
        return tiny_layouts.train(recipe_of("gpt", "adamw"), World(), steps=4)

    sizes = tiny_layouts.SIZES
    expected, found = trained(), trained("memory.recompute=all")
    assert (found.losses, found.norms) == (expected.losses, expected.norms)


@pytest.mark.slow
def test_a_compiled_run_resumes_bit_for_bit(tmp_path):
    words = [f"--{word}" for word in tiny_layouts.SIZES.split()]
    command = ["verify", "resume", "gpt2-small", *words, COMPILED, "--output", tmp_path / "runs", "--json"]
    done = python("-m", "hornbook", *command)
    assert done.returncode == 0, done.stderr
