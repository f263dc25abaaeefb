import math

import pytest
import torch

from hornbook.config.optimizers import role_of
from hornbook.optim.slots import Slot, clip, norms_of, num_parts_of


@pytest.mark.parametrize(
    ("name", "shape", "role", "num_parts"),
    [
        ("blocks.0.attention.qkv.weight", (3, 8, 6), "matrix", 3),
        ("blocks.0.attention.qkv.bias", (3, 8), "bias", 3),
        ("blocks.0.attention.out.weight", (6, 8), "matrix", 1),
        ("blocks.0.feed_forward.down.bias", (6,), "bias", 1),
        ("blocks.0.attention_norm.weight", (6,), "norm", 1),
        ("blocks.0.attention_norm.bias", (6,), "bias", 1),
        ("blocks.0.convolution.filter", (6, 16, 7), "matrix", 1),
        ("embedding.tokens", (64, 6), "matrix", 1),
        ("embedding.segments", (2, 6), "matrix", 1),
        ("head.bias", (64,), "bias", 1),
        ("scale", (), "norm", 1),
    ],
)
def test_a_name_and_a_shape_say_what_a_parameter_is(name, shape, role, num_parts):
    assert role_of(name, shape) == role
    assert num_parts_of(name) == num_parts


def test_matrices_are_decayed_and_norms_are_not():
    parameter = torch.arange(18.0).view(3, 3, 2)
    assert Slot(name="weight", parameter=parameter, gradient=parameter, state={}).decay
    assert not Slot(name="weight", parameter=parameter, gradient=parameter, state={}, role="norm").decay


def two_gradients() -> list[torch.Tensor]:
    """Norms 3 and 4, together 5."""
    return [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]


def slots_of(gradients: list[torch.Tensor]) -> list[Slot]:
    return [Slot(name="weight", parameter=gradient.clone(), gradient=gradient, state={}) for gradient in gradients]


def test_the_update_may_clip():
    slots = slots_of(two_gradients())
    clipped = clip(slots, 5.0, 2.0, "global", by_update=True)
    assert [slot.clip for slot in clipped] == [0.4, 0.4]
    assert all(torch.equal(slot.gradient, right) for slot, right in zip(clipped, two_gradients(), strict=True))


@pytest.mark.parametrize(("limit", "clipped"), [(0.5, True), (4.9, True), (5.0, False), (5.1, False)])
def test_the_global_norm_keeps_the_direction_and_the_limit(limit, clipped):
    gradients = two_gradients()
    clip(slots_of(gradients), 5.0, limit, "global")
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm == pytest.approx(limit if clipped else 5.0)
    assert float(gradients[0][0] / gradients[1][0, 0]) == pytest.approx(0.75)
    if not clipped:
        assert gradients[0].tolist() == [3.0, 0.0], "untouched, to the bit"


@pytest.mark.parametrize(("limit", "norms"), [(0.5, [0.5, 0.5]), (3.5, [3.0, 3.5]), (5.0, [3.0, 4.0])])
def test_per_tensor_each_has_the_limit_for_itself(limit, norms):
    gradients = two_gradients()
    clip(slots_of(gradients), 5.0, limit, "per_tensor")
    assert norms_of(gradients).tolist() == pytest.approx(norms)
    assert gradients[0][1] == 0.0


def test_per_tensor_leaves_zeros_alone():
    gradients = [torch.zeros(3), torch.tensor([2.0])]
    clip(slots_of(gradients), 2.0, 1.0, "per_tensor")
    assert [gradient.tolist() for gradient in gradients] == [[0.0] * 3, [1.0]]


@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_without_a_limit_nothing_is_clipped(scope):
    gradients = two_gradients()
    clip(slots_of(gradients), 5.0, None, scope)
    assert all(torch.equal(first, second) for first, second in zip(gradients, two_gradients(), strict=True))


def test_norms_of_large_tensors_are_exact():
    """The CPU's own norm loses 1e-4 here, and 1e-3 in BERT-base's token table."""
    tensor = torch.rand(20_000, 128, generator=torch.Generator().manual_seed(0)) + 0.5
    exact = float(tensor.double().norm())
    assert norms_of([tensor, tensor.view(20_000, 8, 16), tensor[0]]).tolist() == pytest.approx(
        [exact, exact, float(tensor[0].double().norm())], rel=1e-6
    )
