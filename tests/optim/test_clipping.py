import math

import pytest
import torch

from hornbook.optim.clipping import clip, clip_by_global_norm, norms_of


def two_gradients() -> list[torch.Tensor]:
    """Norms 3 and 4, together 5."""
    return [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]


@pytest.mark.parametrize(("limit", "clipped"), [(0.5, True), (4.9, True), (5.0, False), (5.1, False)])
def test_the_global_norm_keeps_the_direction_and_the_limit(limit, clipped):
    gradients = two_gradients()
    clip_by_global_norm(gradients, 5.0, limit)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm == pytest.approx(limit if clipped else 5.0)
    assert float(gradients[0][0] / gradients[1][0, 0]) == pytest.approx(0.75)
    if not clipped:
        assert gradients[0].tolist() == [3.0, 0.0], "untouched, to the bit"


@pytest.mark.parametrize(("limit", "norms"), [(0.5, [0.5, 0.5]), (3.5, [3.0, 3.5]), (5.0, [3.0, 4.0])])
def test_per_tensor_each_has_the_limit_for_itself(limit, norms):
    gradients = two_gradients()
    clip(gradients, 5.0, limit, "per_tensor")
    assert norms_of(gradients).tolist() == pytest.approx(norms)
    assert gradients[0][1] == 0.0


def test_per_tensor_leaves_zeros_alone():
    gradients = [torch.zeros(3), torch.tensor([2.0])]
    clip(gradients, 2.0, 1.0, "per_tensor")
    assert [gradient.tolist() for gradient in gradients] == [[0.0] * 3, [1.0]]


@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_without_a_limit_nothing_is_clipped(scope):
    gradients = two_gradients()
    clip(gradients, 5.0, None, scope)
    assert all(torch.equal(first, second) for first, second in zip(gradients, two_gradients(), strict=True))


def test_norms_of_large_tensors_are_exact():
    """The CPU's own norm loses 1e-4 here, and 1e-3 in BERT-base's token table."""
    tensor = torch.rand(20_000, 128, generator=torch.Generator().manual_seed(0)) + 0.5
    exact = float(tensor.double().norm())
    assert norms_of([tensor, tensor.view(20_000, 8, 16), tensor[0]]).tolist() == pytest.approx(
        [exact, exact, float(tensor[0].double().norm())], rel=1e-6
    )
