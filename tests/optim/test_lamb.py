"""LAMB's trust ratio: what it is, what has one, and what a whole step of it is."""

import pytest
import torch
from plain_updates import make_slots

from hornbook.config import LambConfig
from hornbook.optim.adam import adam_directions
from hornbook.optim.slots import Slot
from hornbook.optim.updates import lamb, trust_ratios


def step_sizes(config: LambConfig) -> list[tuple[str, list[float]]]:
    """For each slot its role, and for each of its parts ‖change‖ / (rate · ‖weights‖)."""
    slots = make_slots()
    before = [slot.parameter.clone() for slot in slots]
    lamb(slots, config, learning_rate=0.01, count=1)
    sizes = []
    for slot, old in zip(slots, before, strict=True):
        pairs = zip(slot.parameter.chunk(slot.num_parts), old.chunk(slot.num_parts), strict=True)
        sizes.append((slot.role, [float((new - w).norm() / w.norm()) / 0.01 for new, w in pairs]))
    return sizes


def test_a_step_is_the_rate_times_the_weights_tensor_by_tensor_and_third_by_third():
    for role, sizes in step_sizes(LambConfig()):
        if role != "bias":
            assert sizes == pytest.approx([1.0] * len(sizes), rel=1e-3)


def test_biases_have_no_ratio_unless_all_are_alike():
    exempt = [sizes for role, sizes in step_sizes(LambConfig()) if role == "bias"]
    assert all(size != pytest.approx(1.0, rel=1e-3) for sizes in exempt for size in sizes)
    for _, sizes in step_sizes(LambConfig(exempt_vectors=False)):
        assert sizes == pytest.approx([1.0] * len(sizes), rel=1e-3)


def test_a_scalar_has_a_ratio():
    slot = Slot(name="scale", parameter=torch.tensor(2.0), gradient=torch.tensor(0.5), state={}, role="norm")
    for name in ("exp_avg", "exp_avg_sq"):
        slot.state[name] = torch.zeros(())
    lamb([slot], LambConfig(), learning_rate=0.01, count=1)
    assert float(slot.parameter) == pytest.approx(2.0 - 0.01 * 2.0, rel=1e-3)


def test_directions_are_aligned_parts_of_one_tensor():
    directions = adam_directions(make_slots(), LambConfig(), 1)
    assert len({direction.untyped_storage().data_ptr() for direction in directions}) == 1
    assert len({direction.data_ptr() for direction in directions}) == len(directions)
    assert all(direction.storage_offset() % 32 == 0 and direction.is_contiguous() for direction in directions)


def test_a_joint_ratio_moves_the_thirds_of_the_stack_alike():
    """Weights of sizes 0.1, 1 and 10 and directions of one size: the steps have the size of all weights together."""
    (_, sizes), *_ = step_sizes(LambConfig(split_qkv=False, weight_decay=0.0))
    small, middle, large = sizes
    assert small > 5 * middle > 25 * large


def test_a_cap_bounds_the_norm_of_the_weights_not_the_ratio():
    weights, directions = [torch.full((4,), 3.0), torch.full((4,), 0.5)], [torch.full((4,), 0.1)] * 2
    assert trust_ratios(weights, directions, None).tolist() == pytest.approx([30.0, 5.0])
    assert trust_ratios(weights, directions, 2.0).tolist() == pytest.approx([10.0, 5.0])


@pytest.mark.parametrize(("weight", "direction"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_the_ratio_is_one_where_a_norm_is_zero(weight, direction):
    assert trust_ratios([torch.full((3,), weight)], [torch.full((3,), direction)], 1.0).tolist() == [1.0]


def test_one_step_by_hand():
    """g = 1 and 2: m̂ = g, √v̂ = |g|, so u = 1 + decay · w in each place, and the ratio is ‖w‖/‖u‖."""
    slot = make_slots()[2]
    w = torch.tensor([3.0, 4.0])
    hand = type(slot)(
        name="weight",
        parameter=w.clone(),
        gradient=torch.tensor([1.0, 2.0]),
        state={"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)},
    )
    lamb([hand], LambConfig(weight_decay=0.5, epsilon=1e-12), learning_rate=0.1, count=1)
    u = torch.tensor([2.5, 3.0])
    torch.testing.assert_close(hand.parameter, w - 0.1 * 5.0 / (2.5**2 + 3.0**2) ** 0.5 * u)
