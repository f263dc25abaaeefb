"""Operators of the dispatcher: changes in place are known, no backward pass of a backward pass, given gradients."""

import subprocess
import sys

import pytest
import torch

from hornbook.ops.native.kernels import instruction_sets
from hornbook.ops.native.linear import linear_input_gradient, linear_weight_gradient
from hornbook.ops.operators import scalar_with_gradient


@pytest.fixture(scope="module")
def isa():
    """The newest form, or a skip where nothing can be built."""
    if not instruction_sets():
        pytest.skip("no native form")
    return instruction_sets()[0]


def test_changes_in_place_are_counted(isa):
    gradient, x, of_weight, of_bias = torch.ones(3, 4), torch.ones(3, 5), torch.zeros(4, 5), torch.zeros(4)
    linear_weight_gradient(gradient, x, of_weight, of_bias, isa, True)
    linear_weight_gradient(gradient, x, of_weight, None, isa, True)
    assert (gradient._version, x._version, of_weight._version, of_bias._version) == (0, 0, 2, 1)
    assert (of_weight == 6).all()


def test_a_second_derivative_is_an_error(isa):
    gradient = torch.ones(3, 4, requires_grad=True)
    of_x = linear_input_gradient(gradient, torch.ones(4, 5), isa)
    with pytest.raises(RuntimeError, match="is a backward pass"):
        of_x.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "from hornbook.ops.native.linear import linear; linear(torch.ones(3, 4), torch.ones(5, 4), None, {isa!r})",
        "from hornbook.ops.block_sparse import block_sparse_product as product, Pattern; at = torch.zeros(1).long();"
        "product(torch.ones(3, 4), torch.ones(1, 4, 4), None, Pattern.of(at, at, 1, 1), 'reference')",
    ],
    ids=["dense", "block-sparse"],
)
def test_no_call_imports_dynamo(isa, call):
    program = f"import sys, torch; {call.format(isa=isa)}; raise SystemExit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_given_gradient_gives_the_bits_of_pytorch(dtype):
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
