"""The rate that a plan on this machine assumes."""

import pytest
import torch

from hornbook.config import load_recipe
from hornbook.ops.native.kernels import instruction_sets
from hornbook.run import planning


@pytest.mark.parametrize(("kernels", "rate"), [("torch", 1e9), ("native", 3e9)])
def test_native_operators_multiply_bf16_at_the_faster_rate(monkeypatch, kernels, rate):
    if kernels == "native" and not instruction_sets():
        pytest.skip("this machine has no native operators")
    monkeypatch.setattr(planning, "measure_rates", lambda products, device: [3e9, 1e9])
    words = ["--precision.compute=bf16", f"--precision.kernels={kernels}", "--model.vocab-size=300"]
    recipe = load_recipe("demo", words, require_data=False).recipe
    plan = planning.plan_here(recipe, 1, torch.device("cpu"), timed=True)
    assert plan.machine.device.flops["bf16"] == rate
    assert plan.speed.products == pytest.approx(plan.speed.flops / (0.7 * rate))


@pytest.mark.parametrize(
    ("name", "memory", "rate"),
    [("NVIDIA A100-SXM4-80GB", 2039e9, 312e12), ("NVIDIA L40S", 864e9, 362e12), ("NVIDIA H200 NVL", 4800e9, 835e12)],
)
def test_a_plan_takes_a_card_by_the_words_of_its_name(monkeypatch, name, memory, rate):
    device = _planned_on(monkeypatch, name)
    assert (device.label, device.bandwidth, device.flops["bf16"]) == (name, memory, rate)


def test_a_plan_says_which_card_it_does_not_know(monkeypatch):
    label = "Tesla P100-PCIE-16GB, which is not in the table: times are those of the NVIDIA H100 SXM"
    assert _planned_on(monkeypatch, "Tesla P100-PCIE-16GB").label == label


def _planned_on(monkeypatch, name):
    gib = type("Properties", (), {"total_memory": 80 << 30})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gib)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    recipe = load_recipe("demo", ["--model.vocab-size=300"], require_data=False).recipe
    return planning.plan_here(recipe, 1, torch.device("cuda", 0)).machine.device
