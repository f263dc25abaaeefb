"""examples/muon.py against the singular value decomposition, and in training."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hornbook import extend
from hornbook.config import options

RECIPE = str(Path(__file__).parents[2] / "examples" / "muon.toml")
SIZES = (
    "--data.synthetic --model.vocab-size 70 --model.num-layers 2 --model.hidden-size 32 --model.num-heads 2 "
    "--model.max-positions 16 --training.steps 4 --training.global-batch-size 8 --training.micro-batch-size 8 "
    "--schedule.warmup-steps 1 --precision.compute fp32 --tracking.log-every-steps 1 --threads 1"
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spread(values: Tensor, num_steps: int = 5) -> Tensor:
    """What the iterations make of singular values: a polynomial of each alone."""
    for _ in range(num_steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


@pytest.mark.parametrize("shape", [(24, 24), (40, 16), (16, 40)])
def test_the_orthogonal_factor_within_the_error_of_newton_and_schulz(example, shape) -> None:
    matrix = drawn(*shape)
    found = example("muon").orthogonalize(matrix, 5).double()
    u, values, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    torch.testing.assert_close(found, u @ spread(values / values.norm()).diag() @ vt, rtol=0, atol=1e-4)
    inner = u.T @ found @ vt.T
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-4, "the singular vectors are those of U Vᵀ"
    assert inner.diagonal().min() > 0.65 and inner.diagonal().max() < 1.25, "the singular values are nearly 1"


def slot_of(name: str, parameter: Tensor, names: tuple[str, ...], **changes) -> extend.Slot:
    role = extend.role_of(name, parameter)
    state = {key: torch.zeros_like(parameter) for key in names}
    gradient = drawn(*parameter.shape, seed=1)
    return extend.Slot(name=name, parameter=parameter, gradient=gradient, state=state, role=role, **changes)


def test_updates_are_those_of_the_formula(example) -> None:
    """Two updates of stacked query, key and value, a tall matrix and, by AdamW, a table and a gain."""
    module = example("muon")
    config = module.MuonConfig(learning_rate=0.1, adamw_learning_rate=0.01, weight_decay=0.2)
    update = extend.build_update(config)
    shapes = {
        "blocks.0.attention.qkv.weight": (3, 8, 12),
        "blocks.0.feed_forward.up.weight": (24, 12),
        "embedding.tokens": (20, 12),
        "blocks.0.attention_norm.weight": (12,),
    }
    slots = []
    for name, shape in shapes.items():
        parameter = drawn(*shape)
        names = update.further_names(name, parameter)
        assert names == (("momentum",) if name.endswith(("qkv.weight", "up.weight")) else ("exp_avg", "exp_avg_sq"))
        slots.append(slot_of(name, parameter, names, num_parts=3 if "qkv" in name else 1))
    expected = [slot.parameter.double().clone() for slot in slots]
    for weight, slot in zip(expected[:2], slots[:2], strict=True):
        momentum = torch.zeros_like(weight)
        for _ in range(2):
            momentum = 0.95 * momentum + 0.05 * slot.gradient.double()
            direction = 0.05 * slot.gradient.double() + 0.95 * momentum
            u, values, vt = torch.linalg.svd(direction, full_matrices=False)
            norms = values.norm(dim=-1, keepdim=True)
            factor = 2**0.5 if slot is slots[1] else 1.0
            weight *= 1 - 0.1 * 0.2
            weight -= 0.1 * factor * (u * spread(values / norms).unsqueeze(-2)) @ vt
    adamw = torch.optim.AdamW(
        [
            {"params": [nn.Parameter(expected[2])], "weight_decay": 0.2},
            {"params": [nn.Parameter(expected[3])], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    for group, slot in zip(adamw.param_groups, slots[2:], strict=True):
        group["params"][0].grad = slot.gradient.double()
    for count in (1, 2):
        update.apply(slots, 0.1, count)
        adamw.step()
    for weight, slot in zip(expected, slots, strict=True):
        torch.testing.assert_close(slot.parameter.double(), weight, rtol=1e-4, atol=1e-5)


def train(folder: Path, *words: str) -> list[float]:
    assert extend.main(["train", RECIPE, *SIZES.split(), "--output", str(folder), *words]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_micro_batches_and_a_resume_do_not_change_the_losses(example, tmp_path: Path) -> None:
    example("muon")
    whole = train(tmp_path / "whole")
    assert len(set(whole)) == 4, "the weights change"
    assert train(tmp_path / "parts", "--training.micro-batch-size", "2") == pytest.approx(whole, rel=1e-6)
    constant = ["--schedule.name", "constant"]
    straight = train(tmp_path / "straight", *constant)
    train(tmp_path / "resumed", *constant, "--training.steps", "2")
    assert train(tmp_path / "resumed", *constant) == straight, "the momentum is saved and restored"


def test_weights_serve_another_run_without_the_script(
    example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("muon")
    train(tmp_path / "first")
    options._CHOICES["optimizer"].pop("muon")
    start = ["train", "demo", *SIZES.split(), "--data.sequence-length", "16", "--init-from", str(tmp_path / "first")]
    assert extend.main([*start, "--output", str(tmp_path / "next")]) == 0
    capsys.readouterr()
    assert extend.main([*start, "--init-optimizer", "keep", "--output", str(tmp_path / "kept")]) == 2
    message = capsys.readouterr().err
    assert 'made with the optimizer "muon", which hornbook does not have' in message and "examples/muon.py" in message
