"""Triton's kernels through its interpreter, on a CPU, in a process of their own: Triton reads the setting once.

And compiled for GPUs, which needs none.
"""

import importlib.util
import re
from itertools import product

import pytest
import torch
from ranks import python

from hornbook.errors import UserError
from hornbook.ops.block_sparse import choose_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

COMPARE = """
import torch
from hornbook.ops.block_pattern import Pattern
from hornbook.ops.block_sparse import block_sparse_linear, choose_kernel

assert choose_kernel("triton", 16, 0.1, torch.device("cpu"), torch.float32) == ("triton", "as asked")
random = torch.Generator().manual_seed(0)
compared = 0
for size in (16, 128):
    for positions in ([], [0, 2, 5, 7, 8], [11]):
        chosen = torch.tensor(positions, dtype=torch.int64)
        pattern = Pattern.of(chosen // 4, chosen % 4, 3, 4)
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2), (torch.float16, 1e-2)):
            for num_tokens in (0, 1, 75):
                x = torch.randn(4 * size, num_tokens, generator=random).to(dtype).t()  # not contiguous
                values = torch.randn(len(positions), size, size, generator=random).to(dtype)
                upstream = torch.randn(num_tokens, 3 * size, generator=random).to(dtype)
                found = []
                for kernel, kind in (("triton", dtype), ("reference", torch.float64)):
                    leaves = [tensor.to(kind).clone().requires_grad_() for tensor in (x, values)]
                    y = block_sparse_linear(*leaves, pattern, kernel)
                    assert y.dtype == kind
                    y.backward(upstream.to(kind))
                    found.append([y.detach(), *(leaf.grad for leaf in leaves)])
                for ours, exact in zip(*found, strict=True):
                    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * 3)
                    compared += 1
print(compared)
"""


@pytest.mark.slow
@needs_triton
def test_products_and_gradients_are_those_of_the_reference() -> None:
    done = python("-c", COMPARE, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * 3 * 3 * 3 * 3


def test_a_cpu_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r'"triton" cannot compute here: Triton is .*; set it to "auto"$'):
        choose_kernel("triton", 16, 0.1, torch.device("cpu"), torch.float32)


def test_a_gpu_gets_triton_where_it_is_probably_faster_than_dense_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.ops.block_sparse.why_not_triton", lambda device: None)
    gpu = torch.device("cuda")
    for dtype, (size, density) in product(DTYPES, ((16, 0.1), (32, 0.1), (64, 0.25), (128, 0.25))):
        assert choose_kernel("auto", size, density, gpu, dtype).kernel == "triton"
    assert choose_kernel("auto", 16, 0.5, gpu, torch.bfloat16).kernel == "reference"
    assert choose_kernel("auto", 8, 0.05, gpu, torch.bfloat16).kernel == "reference"
    monkeypatch.setattr("hornbook.ops.block_sparse.why_not_triton", lambda device: "Triton is not installed")
    assert choose_kernel("auto", 16, 0.1, gpu, torch.bfloat16) == ("reference", "Triton is not installed")


@needs_triton
@pytest.mark.parametrize("size", [64, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 32, 128))])
def test_they_compile_for_gpus_with_64_bit_offsets(size: int) -> None:
    from triton_kernels import ARCHITECTURES, MOST_SHARED, compiled, local_bytes

    from hornbook.ops.triton import block_sparse

    widths = dict.fromkeys(("num_tokens", "x_width", "y_width"), "i32")
    positions = dict.fromkeys(("starts", "rows", "columns"), "*i64")
    for dtype, architecture in product(DTYPES, ARCHITECTURES):
        pointer = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}[dtype]
        types = {**widths, **positions, **dict.fromkeys(("x", "y", "values", "gradient", "of_values"), pointer)}
        for kernel, with_depth in ((block_sparse._product, True), (block_sparse._weight_gradient, False)):
            constants = block_sparse.constants(torch.empty(0, dtype=dtype), size, with_depth=with_depth)
            options = {name: constants.pop(name) for name in ("num_stages", "num_warps")}
            binary = compiled(kernel, types, constants, architecture, **options)
            assert binary.metadata.shared <= MOST_SHARED[architecture]
            assert not local_bytes(binary)
            offsets = re.findall(r"tt.addptr .*, tensor<[\dx]+x(i\d+)>", binary.asm["ttir"])
            assert len(offsets) >= 3
            assert set(offsets) == {"i64"}
