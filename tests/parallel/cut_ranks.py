"""Split layers as GPUs compute them, and gathered logits, as one of two ranks of a CPU: see test_cut_layers.py."""

from unittest.mock import patch

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.model.head import OutputHead
from hornbook.ops.layers import feed_forward
from hornbook.ops.mixed_linear import mixed_linear, mixed_stack, narrowed
from hornbook.ops.native.kernels import copy_of, weights_unchanged
from hornbook.ops.tensor_parallel import Slices, current, cut_linear
from hornbook.parallel.ranks import local, own_part
from hornbook.parallel.world import World

DIM, INNER, VOCABULARY = 6, 8, 10
RANDOM = torch.Generator().manual_seed(0)


class Operators(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def normal(*shape):
    return torch.randn(shape, generator=RANDOM)


def split(mesh, whole, dimension):
    return torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(dimension)]))


def check_pair(mesh, num_rows, num_tokens, slices):
    """A stack that is split by outputs and a layer that is split by inputs, in two micro-batches of a step.

    Activations have the bits of the operators for CPUs; gradients of weights are those of fp32 products, added in fp32.
    """
    wholes = normal(2, INNER, DIM), normal(2, INNER), normal(DIM, INNER), normal(DIM)
    parameters = [split(mesh, wholes[0], 1), split(mesh, wholes[1], 1), split(mesh, wholes[2], 1)]
    parameters.append(torch.nn.Parameter(wholes[3]))
    exact = [whole.bfloat16().double().requires_grad_() for whole in wholes]
    rows = slices.own if slices else lambda x: x
    for _ in range(2):
        x, upstream = (normal(num_rows, num_tokens, DIM).bfloat16() for _ in range(2))
        found = []
        for mixed in (True, False):
            given = rows(x).detach().requires_grad_()
            with current.having(slices), weights_unchanged(copies={}):
                if mixed:
                    h, gate = mixed_stack(given, *parameters[:2])
                    y = mixed_linear(h * gate, *parameters[2:])
                    y.backward(rows(upstream))
                    assert copy_of(parameters[0], x.dtype) is copy_of(parameters[0], x.dtype)
                else:
                    h, gate = cut_linear(given, *(leaf.detach() for leaf in parameters[:2])).chunk(2, -1)
                    y = cut_linear(h * gate, parameters[2].detach(), parameters[3].detach())
                    (of_x,) = torch.autograd.grad(y, given, rows(upstream))
                found.append((y.detach(), given.grad if mixed else of_x))
        assert torch.equal(found[0][0], found[1][0])
        of_x, expected = (gradient.double() for _, gradient in found)  # the first, rounded after each of two summands
        assert (of_x - expected).norm() < 0.02 * expected.norm()
        h, gate = torch.einsum("btd,pod->pbto", x.double(), exact[0]) + exact[1][:, None, None]
        (((h * gate) @ exact[2].t() + exact[3]) * upstream.double()).sum().backward()
    begin, half = mesh.get_local_rank() * INNER // 2, INNER // 2
    expected = [leaf.grad.narrow(dim, begin, half) for leaf, dim in zip(exact[:3], (1, 1, 1), strict=True)]
    for parameter, gradient in zip(parameters[:3], expected, strict=True):
        assert local(parameter.grad).dtype == torch.float32
        assert (local(parameter.grad) - gradient).norm() < 0.01 * gradient.norm()


def check_feed_forward(mesh, num_rows, num_tokens, slices):
    """On a GPU, tokens are neither copied nor put in order for it; the operators are PyTorch's."""
    wholes = normal(INNER, DIM), normal(INNER), normal(DIM, INNER), normal(DIM)
    x, upstream = (slices.own(normal(num_rows, num_tokens, DIM)).contiguous() for _ in range(2))
    found = []
    for is_cuda in (False, True):
        parameters = [split(mesh, whole, dimension) for whole, dimension in zip(wholes[:3], (0, 0, 1), strict=True)]
        parameters.append(torch.nn.Parameter(wholes[3]))
        given = x.detach().requires_grad_()
        with current.having(slices), patch.object(torch.Tensor, "is_cuda", is_cuda), Operators() as operators:
            y = feed_forward(given, parameters[:2], parameters[2:], "gelu")
            y.backward(upstream)
        assert current.slices is None
        found.append([y.detach(), given.grad, *(local(parameter.grad) for parameter in parameters)])
    assert not {"cat", "clone"} & set(operators.names)
    num_own = min(max(num_tokens - slices.rank * slices.width, 0), slices.width)  # the rest is padding
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        if number < 2:
            one, other = one[:, :num_own], other[:, :num_own]
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def check_narrowed(mesh):
    """The gradient in 16 bits is added to what there is, without one in fp32."""
    weight = split(mesh, normal(INNER, DIM), 0)
    with weights_unchanged(copies={}):
        for number in range(2):
            copy = narrowed(weight, torch.bfloat16)
            assert own_part(copy).data_ptr() == copy_of(weight, torch.bfloat16).data_ptr()
            upstream = torch.full((INNER // 2, DIM), 1.5 + number, dtype=torch.bfloat16)
            local(copy).backward(upstream)
    assert local(weight.grad).dtype == torch.float32
    assert torch.equal(local(weight.grad), torch.full((INNER // 2, DIM), 4.0))


def check_tied(mesh):
    """The copy of a tied head's part that the update of the embedding's wrote is taken, until that changes."""
    table, copies, head, taken = split(mesh, normal(VOCABULARY, DIM), 0), {}, OutputHead(DIM, VOCABULARY), []
    head.tie(table)
    for _ in range(3):
        with weights_unchanged(copies):
            taken.append(copy_of(head.table, torch.bfloat16))
        assert torch.equal(taken[-1], own_part(table).bfloat16())
        if len(taken) == 1:
            (copy,) = copies.values()
            copy.values.copy_(own_part(table).add_(1.0))
            copy.updated = own_part(table), own_part(table)._version
        elif len(taken) == 2:
            copy.updated = own_part(table), own_part(table)._version
            own_part(table).add_(1.0)
    assert taken[0] is taken[1] is not taken[2]


def check_logits(mesh):
    """Of no, one and several dimensions of tokens, gathered by one operation and ordered by one copy."""
    table, bias = normal(VOCABULARY, DIM), normal(VOCABULARY - 1)
    cut = split(mesh, table, 0).detach()
    for shape in ((), (3,), (2, 3)):
        for bias_V in (None, bias):
            x = normal(*shape, DIM).bfloat16()
            head = OutputHead(DIM, VOCABULARY - 1)
            head.bias = None if bias_V is None else torch.nn.Parameter(bias_V)
            head.tie(torch.nn.Parameter(table))
            whole = head.logits(x)
            head.tie(torch.nn.Parameter(cut))
            with torch.no_grad(), Operators() as operators:
                logits = head.logits(x)
            assert logits.dtype == torch.float32 and logits.shape == whole.shape
            torch.testing.assert_close(logits, whole, rtol=0.02, atol=0.02)
            names = operators.names
            assert names.count("_allgather_base_") == 1 and "cat" not in names and "allgather_" not in names
            assert names.count("clone") + names.count("copy_") <= 1


def main() -> None:
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    mesh = init_device_mesh("cpu", (2,))
    for num_rows, num_tokens in ((2, 4), (2, 5), (1, 5)):
        slices = Slices(num_tokens, world.rank, 2, mesh.get_group())
        for given in (None, slices, slices._replace(is_ordered=False)):
            check_pair(mesh, num_rows, num_tokens, given)
        check_feed_forward(mesh, num_rows, num_tokens, slices)
    check_narrowed(mesh)
    check_tied(mesh)
    check_logits(mesh)
    world.leave()
