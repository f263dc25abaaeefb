"""The rate that a plan on this machine assumes."""

import pytest
import torch

from hornbook.config import load_recipe
from hornbook.ops.native.library import instruction_sets
from hornbook.run import planning


@pytest.mark.parametrize(("kernels", "rate"), [("torch", 1e9), ("native", 3e9)])
def test_native_operators_multiply_bf16_at_the_faster_rate(monkeypatch, kernels, rate):
    if kernels == "native" and not instruction_sets():
        pytest.skip("this machine has no native operators")
    monkeypatch.setattr(planning, "measure_rates", lambda products, device: [3e9, 1e9])
    words = ["--precision.compute=bf16", f"--precision.kernels={kernels}", "--model.vocab-size=300"]
    recipe = load_recipe("demo", words, require_data=False).recipe
    plan = planning.plan_here(recipe, 1, torch.device("cpu"))
    assert plan.machine.device.flops["bf16"] == rate
    assert plan.speed.products == pytest.approx(plan.speed.flops / (0.7 * rate))
