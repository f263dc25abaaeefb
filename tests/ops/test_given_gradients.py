"""The gradients are those of ``backward(gradient)``, bit for bit."""

import pytest
import torch

from hornbook.ops.given_gradients import scalar_with_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_as_a_given_gradient(dtype):
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (torch.randn(5, 5, generator=generator).to(dtype) for _ in range(3))

    def product() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.clone().requires_grad_()
        return leaf, (leaf @ weight).tanh()

    ours, y = product()
    scalar_with_gradient(y, gradient).backward()
    theirs, y = product()
    y.backward(gradient)
    assert torch.equal(ours.grad, theirs.grad)
