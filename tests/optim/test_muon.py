"""Muon against PyTorch's optimizer and, for what PyTorch lacks, the formulas in float64."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from hornbook.config import MuonConfig, load_recipe
from hornbook.config.description import description_of
from hornbook.config.optimizers import role_of
from hornbook.errors import UserError
from hornbook.ops.block_pattern import Pattern
from hornbook.optim.muon import muon, orthogonalize
from hornbook.optim.slots import Slot, num_parts_of
from hornbook.optim.updates import Update, with_heads

SHAPES = {
    "embedding.tokens": (20, 12),
    "blocks.0.attention.qkv.weight": (3, 8, 12),
    "blocks.0.attention.qkv.bias": (24,),
    "blocks.0.attention.out.weight": (12, 8),
    "blocks.0.feed_forward.up.weight": (24, 12),
    "blocks.0.feed_forward_norm.weight": (12,),
    "head.table": (20, 12),
}
KINDS = {
    "embedding.tokens": "table",
    "blocks.0.attention.qkv.bias": "vector",
    "blocks.0.feed_forward_norm.weight": "vector",
    "head.table": "head",
}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_slots() -> list[Slot]:
    slots = []
    for number, (name, shape) in enumerate(SHAPES.items()):
        weight = drawn(*shape, seed=number)
        role = role_of(name, shape)
        state = {key: torch.zeros(size) for key, size in MuonConfig(row_moments=True).states(name, shape).items()}
        gradient = torch.zeros(shape)
        slots.append(
            Slot(name=name, parameter=weight, gradient=gradient, state=state, role=role, num_parts=num_parts_of(name))
        )
    return slots


def give_gradients(slots: list[Slot], step: int) -> None:
    for number, slot in enumerate(slots):
        slot.gradient.copy_(drawn(*slot.gradient.shape, seed=100 * step + number))


def matrices_of(slot: Slot, tensor: Tensor) -> list[Tensor]:
    return list(tensor) if tensor.dim() == 3 else [tensor]


def test_kinds_follow_place_and_shape() -> None:
    found = {name: MuonConfig().kind_of(name, role_of(name, shape)) for name, shape in SHAPES.items()}
    assert found == {name: KINDS.get(name, "hidden") for name in SHAPES}
    assert MuonConfig().kind_of("blocks.1.attention.out.values", "matrix") == "hidden"
    assert MuonConfig().kind_of("blocks.1.convolution.filter_weight", "matrix") == "vector"


@pytest.mark.parametrize("scale", ["spectral", "rms"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_pytorchs_muon_and_adamw_make_the_same_updates(scale, nesterov) -> None:
    config = MuonConfig(
        learning_rate=0.05,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=nesterov,
        polynomials="newton_schulz",
        products="bf16",
        scale=scale,
        vector_learning_rate=0.01,
        table_learning_rate=0.02,
        head_learning_rate=0.004,
        table_beta1=0.7,
        head_beta2=0.99,
    )
    slots = make_slots()
    twins = {slot.name: [nn.Parameter(part.clone()) for part in matrices_of(slot, slot.parameter)] for slot in slots}
    hidden = [part for name, parts in twins.items() if name not in KINDS for part in parts]
    adjust = {"spectral": "original", "rms": "match_rms_adamw"}[scale]
    own = torch.optim.Muon(hidden, lr=0.05, weight_decay=0.1, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust)
    rates = {"vector": (0.01, 0.8, 0.95), "table": (0.02, 0.7, 0.95), "head": (0.004, 0.8, 0.99)}
    groups = []
    for name, kind in KINDS.items():
        rate, *betas = rates[kind]
        decay = 0.1 if kind != "vector" else 0.0
        groups.append({"params": twins[name], "lr": rate, "betas": tuple(betas), "weight_decay": decay, "eps": 1e-10})
    others = torch.optim.AdamW(groups)
    for count in (1, 2, 3):
        give_gradients(slots, count)
        for slot in slots:
            for twin, gradient in zip(twins[slot.name], matrices_of(slot, slot.gradient), strict=True):
                twin.grad = gradient.clone()
        muon(slots, config, learning_rate=0.05, count=count)
        own.step()
        others.step()
    for slot in slots:
        for twin, weight in zip(twins[slot.name], matrices_of(slot, slot.parameter), strict=True):
            # bf16 rounds the batched and the single products of the iteration differently
            tolerance = 5e-6 if slot.name in KINDS else 3 * 0.05 * 0.02
            torch.testing.assert_close(weight, twin.detach(), rtol=0, atol=tolerance)


def test_row_moments_and_cautious_decay_follow_their_formulas() -> None:
    config = MuonConfig(
        learning_rate=0.1, weight_decay=0.5, row_moments=True, row_beta=0.8, cautious_decay=True, products="fp32"
    )
    slots = [slot for slot in make_slots() if slot.name.endswith("up.weight")]
    weight, momentum = slots[0].parameter.double(), torch.zeros(24, 12, dtype=torch.float64)
    rows = torch.zeros(24, 1, dtype=torch.float64)
    for count in (1, 2, 3):
        give_gradients(slots, count)
        gradient = slots[0].gradient.double()
        momentum = 0.95 * momentum + 0.05 * gradient
        (move,) = orthogonalize([0.05 * gradient + 0.95 * momentum], "polar_express")
        rows = 0.8 * rows + 0.2 * move.square().mean(-1, keepdim=True)
        even = move / rows.sqrt()
        even = even * move.norm() / even.norm()
        weight = weight - 0.1 * 0.5 * weight * (weight * even > 0) - 0.1 * 2**0.5 * even
        muon(slots, config, learning_rate=0.1, count=count)
    torch.testing.assert_close(slots[0].parameter.double(), weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head_size", [None, 4])
@pytest.mark.parametrize("scale", ["spectral", "rms"])
def test_blocks_take_their_part_of_the_orthogonal_matrix_at_its_root_mean_square(
    scale: Literal["spectral", "rms"], head_size: int | None
) -> None:
    """Three stacked matrices of 8 x 12, with five blocks of 4 of six; float64."""
    config = MuonConfig(learning_rate=0.1, weight_decay=0.5, scale=scale, products="fp32")
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5])
    columns = torch.tensor([0, 1, 2, 0, 2, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1])
    pattern = Pattern.of(rows, columns, 6, 3)
    name, shape = "blocks.0.attention.qkv.values", (3, 5, 4, 4)
    weight = drawn(*shape, seed=1)
    state = {key: torch.zeros(size) for key, size in config.states(name, shape).items()}
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == {"momentum": shape}
    slot = Slot(name=name, parameter=weight, gradient=drawn(*shape, seed=2), state=state, num_parts=3)
    slot = replace(slot, pattern=pattern, head_size=head_size, rate_scale=2.0)
    expected = weight.double()
    dense = torch.zeros(3, 8, 12, dtype=torch.float64)
    for number, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        part, top = divmod(4 * row, 8)
        dense[part, top : top + 4, 4 * column : 4 * column + 4] = slot.gradient.flatten(0, 1)[number].double()
    (whole,) = orthogonalize([0.05 * (1 + 0.95) * dense.view(-1, head_size or 8, 12)], "polar_express")
    whole = whole.view(3, 8, 12)
    for part in range(3):
        kept = torch.stack([
            whole[part, 4 * row - 8 * part : 4 * row - 8 * part + 4, 4 * column : 4 * column + 4]
            for row, column in zip(rows.tolist()[5 * part :][:5], columns.tolist()[5 * part :][:5], strict=True)
        ])  # fmt: skip
        kept = kept / kept.square().mean().sqrt() / 12**0.5
        factor = 1.0 if scale == "spectral" else 0.2 * 12**0.5
        expected[part] = expected[part] * (1 - 2 * 0.1 * 0.5) - 2 * 0.1 * factor * kept
    muon([slot], config, learning_rate=0.1, count=1)
    torch.testing.assert_close(slot.parameter.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", ["spectral", "rms"])
def test_per_head_each_head_is_a_matrix_of_its_own(scale: str) -> None:
    """The update of stacked heads is that of their matrices, one slot each."""
    config = MuonConfig(learning_rate=0.05, scale=scale, row_moments=True, per_head=True, products="fp32")
    name, shape = "blocks.0.attention.qkv.weight", SHAPES["blocks.0.attention.qkv.weight"]
    (whole,) = (slot for slot in make_slots() if slot.name == name)
    whole = replace(whole, head_size=2)
    single = [
        replace(whole, head_size=None, parameter=head.clone(), state={
            key: torch.zeros(size) for key, size in config.states(name, tuple(head.shape)).items()
        })
        for head in whole.parameter.view(-1, 2, 12)
    ]  # fmt: skip
    for count in (1, 2):
        gradient = drawn(*shape, seed=count)
        whole.gradient.copy_(gradient)
        single = [
            replace(slot, gradient=part.clone()) for slot, part in zip(single, gradient.view(-1, 2, 12), strict=True)
        ]
        muon([whole], config, learning_rate=0.05, count=count)
        muon(single, config, learning_rate=0.05, count=count)
    torch.testing.assert_close(whole.parameter.view(-1, 2, 12), torch.stack([slot.parameter for slot in single]))


def test_only_query_key_and_value_have_heads() -> None:
    seen: list[Slot] = []
    update = Update(states=lambda name, shape: {}, apply=lambda slots, rate, count: seen.extend(slots))
    description = description_of(load_recipe("demo", require_data=False).recipe.model)
    with_heads(update, description).apply(make_slots(), 0.1, 1)
    assert {slot.name for slot in seen if slot.head_size == 64} == {"blocks.0.attention.qkv.weight"}
    with pytest.raises(UserError, match=r"optimizer\.per_head needs a model with a description"):
        with_heads(update, None)


def test_the_schedule_scales_all_rates_alike() -> None:
    config = MuonConfig(learning_rate=0.02, weight_decay=0.0, products="fp32")
    whole, half = make_slots(), make_slots()
    starts = [slot.parameter.clone() for slot in whole]
    for slots, rate in ((whole, 0.02), (half, 0.01)):
        give_gradients(slots, 1)
        muon(slots, config, learning_rate=rate, count=1)
    for start, one, other in zip(starts, whole, half, strict=True):
        torch.testing.assert_close((one.parameter - start) / 2, other.parameter - start, rtol=1e-3, atol=1e-6)


def test_no_slots_are_no_work() -> None:
    muon([], MuonConfig(), learning_rate=0.1, count=1)
