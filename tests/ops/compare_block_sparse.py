"""Compare Triton's block-sparse products, run by its interpreter, with float64; for test_triton_block_sparse.py."""

import sys
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.ops.block_pattern import Pattern
from hornbook.ops.block_sparse import block_sparse_linear, choose_kernel
from hornbook.ops.triton import block_sparse

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
COMPARED = 0


@st.composite
def cases(draw):
    size, dtype = draw(st.sampled_from((16, 32, 64, 128))), draw(st.sampled_from([*TOLERANCES]))
    num_rows, num_columns = draw(st.integers(1, 3)), draw(st.integers(1, 128 // size + 1))
    positions = draw(st.sets(st.integers(0, num_rows * num_columns - 1)))
    chosen = torch.tensor(sorted(positions), dtype=torch.int64)
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    return size, dtype, pattern, draw(st.sampled_from((0, 1, 63, 150))), draw(st.integers(0, 9))


def compare(case):
    global COMPARED
    size, dtype, pattern, num_tokens, number = case
    random = torch.Generator().manual_seed(number)
    x = torch.randn(pattern.num_columns * size, num_tokens, generator=random).to(dtype).t()  # not contiguous
    values = torch.randn(len(pattern.rows), size, size, generator=random).to(dtype)
    upstream = torch.randn(num_tokens, pattern.num_rows * size, generator=random).to(dtype)
    all_tiles = block_sparse.tiles_of

    def one(configs, tensors, **constants):
        fit = all_tiles(configs, tensors, **constants)
        return [fit[number % len(fit)]]

    found = []
    # several ranges of tokens where there are two blocks or fewer
    with patch.object(block_sparse, "tiles_of", one), patch.object(block_sparse, "RANGE", 64):
        for kernel, kind in (("triton", dtype), ("reference", torch.float64)):
            leaves = [tensor.to(kind).clone().requires_grad_() for tensor in (x, values)]
            y = block_sparse_linear(*leaves, pattern, kernel)
            assert y.dtype == kind
            y.backward(upstream.to(kind))
            found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for ours, exact in zip(*found, strict=True):
        scale = TOLERANCES[dtype]
        torch.testing.assert_close(ours.double(), exact, rtol=scale, atol=scale * 3)
        COMPARED += 1


def main() -> None:
    assert choose_kernel("triton", 16, 0.1, torch.device("cpu"), torch.float32) == ("triton", "as asked")
    torch.set_num_threads(1)
    check = settings(
        max_examples=int(sys.argv[1]), deadline=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    check(given(cases())(compare))()
    sys.stdout.write(f"{COMPARED}\n")


if __name__ == "__main__":
    sys.exit(main())
