"""examples/lion.py against the formula in float64, and in training, plan and doctor."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hornbook import extend
from hornbook.config import options

RECIPE = str(Path(__file__).parents[2] / "examples" / "lion.toml")
SIZES = (
    "--data.synthetic --model.vocab-size 70 --model.num-layers 2 --model.hidden-size 32 --model.num-heads 2 "
    "--model.max-positions 16 --training.steps 4 --training.global-batch-size 8 --training.micro-batch-size 8 "
    "--schedule.warmup-steps 1 --precision.compute fp32 --tracking.log-every-steps 1 --threads 1"
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_updates_are_those_of_the_formula(example) -> None:
    config = example("lion").LionConfig(weight_decay=0.5)
    update = extend.build_update(config)
    slots, expected = [], []
    for name, shape in {"blocks.0.feed_forward.up.weight": (6, 4), "head.norm.bias": (5,)}.items():
        state = {key: torch.zeros(size) for key, size in config.states(name, shape).items()}
        role = extend.role_of(name, shape)
        slots.append(
            extend.Slot(name=name, parameter=drawn(*shape), gradient=drawn(*shape, seed=1), state=state, role=role)
        )
        expected.append((slots[-1].parameter.double().clone(), torch.zeros(shape, dtype=torch.float64)))
    for count in (1, 2, 3):
        for slot, (weight, momentum) in zip(slots, expected, strict=True):
            slot.gradient.copy_(drawn(*slot.gradient.shape, seed=count))
            gradient = slot.gradient.double()
            direction = torch.sign(0.9 * momentum + 0.1 * gradient)
            weight -= 0.01 * (direction + (0.5 * weight if slot.decay else 0.0))
            momentum.mul_(0.99).add_(gradient, alpha=0.01)
        update.apply(slots, 0.01, count)
    for slot, (weight, momentum) in zip(slots, expected, strict=True):
        torch.testing.assert_close(slot.parameter.double(), weight, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(slot.state["momentum"].double(), momentum, rtol=1e-6, atol=1e-6)


def train(folder: Path, *words: str) -> list[float]:
    assert extend.main(["train", RECIPE, *SIZES.split(), "--output", str(folder), *words]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_micro_batches_and_a_resume_do_not_change_the_losses(example, tmp_path: Path) -> None:
    example("lion")
    whole = train(tmp_path / "whole")
    assert len(set(whole)) == 4, "the weights change"
    assert train(tmp_path / "parts", "--training.micro-batch-size", "2") == pytest.approx(whole, rel=1e-4)
    constant = ["--schedule.name", "constant"]
    straight = train(tmp_path / "straight", *constant)
    train(tmp_path / "resumed", *constant, "--training.steps", "2")
    assert train(tmp_path / "resumed", *constant) == straight, "the momentum is saved and restored"


def test_plan_dry_run_and_doctor_count_the_state_that_it_declares(example, tmp_path: Path, capsys) -> None:
    """12 bytes a parameter, where AdamW has 16."""
    example("lion")
    moments = {}
    for words in ([], ["--optimizer.name", "adamw"]):
        assert extend.main(["plan", RECIPE, *SIZES.split()[:-2], *words, "--json"]) == 0
        (plan,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()[-1:]]
        moments[len(words)] = find(plan, "moments")
    assert moments[0] > 0 and moments[2] == pytest.approx(2 * moments[0])
    assert extend.main(["train", RECIPE, *SIZES.split(), "--dry-run", "--output", str(tmp_path / "dry")]) == 0
    assert extend.main(["doctor", RECIPE, *SIZES.split()[:-2]]) == 0


def find(document: object, key: str) -> float:
    """The first value of a key at any depth."""
    if isinstance(document, dict):
        if key in document:
            return float(document[key])
        document = list(document.values())
    found = [find(value, key) for value in document] if isinstance(document, list) else []
    return next((value for value in found if value), 0.0)


def test_weights_serve_another_run_without_the_script(
    example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("lion")
    train(tmp_path / "first")
    options._CHOICES["optimizer"].pop("lion")
    start = ["train", "demo", *SIZES.split(), "--data.sequence-length", "16", "--init-from", str(tmp_path / "first")]
    assert extend.main([*start, "--output", str(tmp_path / "next")]) == 0
    capsys.readouterr()
    assert extend.main([*start, "--init-optimizer", "keep", "--output", str(tmp_path / "kept")]) == 2
    told = capsys.readouterr().err
    assert 'made with the optimizer "lion", which hornbook does not have' in told and "examples/lion.py" in told
