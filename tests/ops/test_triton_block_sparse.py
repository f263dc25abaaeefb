"""Triton's kernels through its interpreter, on a CPU, in a process of their own: Triton reads the setting once.

And compiled for GPUs, which needs none.
"""

import importlib.util
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from ranks import python

from hornbook.errors import UserError
from hornbook.ops.block_sparse import choose_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.parametrize("examples", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_products_and_gradients_are_those_of_float64(examples: int) -> None:
    done = python(Path(__file__).parent / "compare_block_sparse.py", str(examples), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3 * examples


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
@pytest.mark.parametrize("size", [32, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 64, 128))])
def test_all_tiles_compile_for_an_h100(size: int) -> None:
    check_tiles(size, torch.bfloat16, 90)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("architecture", [80, 89, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_tiles_of_all_sizes_compile_for_gpus(dtype: torch.dtype, architecture: int) -> None:
    for size in (16, 32, 64, 128):
        check_tiles(size, dtype, architecture)


def check_tiles(size: int, dtype: torch.dtype, architecture: int) -> None:
    """Compile without spills, with transfers of 16 bytes, instructions of tensor cores and 64-bit offsets."""
    from triton_kernels import MOST_SHARED, compiled, local_bytes

    from hornbook.ops.triton import block_sparse, programs

    pointer = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}[dtype]
    types = dict.fromkeys(("x", "y", "values", "gradient", "of_values"), pointer)
    types |= dict.fromkeys(("num_tokens", "range_tokens", "x_blocks", "y_blocks"), "i32")
    types |= dict.fromkeys(("starts", "order", "sources", "columns"), "*i64")
    kernels = ((block_sparse._product, True), (block_sparse._product, False), (block_sparse._weight_gradient, None))
    for kernel, is_turned in kernels:
        x, turns = torch.empty(0, dtype=dtype), {} if is_turned is None else {"is_turned": is_turned}
        tiles = block_sparse.tiles_of(kernel.configs, {"x": x}, size=size)
        if dtype != torch.float32:
            assert max(max(tile.kwargs.values()) for tile in tiles) == programs.SPARSE_TILES[size]
        for number, tile in enumerate(tiles):
            options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
            constants = {**block_sparse.constants(x, size), **turns, **tile.kwargs}
            binary = compiled(kernel.fn, types, constants, architecture, **options)
            # the tuner passes over a tile that does not fit
            assert number > 0 or binary.metadata.shared <= MOST_SHARED[architecture]
            assert not local_bytes(binary)
            assert "cp.async.cg.shared.global" in binary.asm["ptx"] or "ld.global.v4" in binary.asm["ptx"]
            if dtype != torch.float32:
                assert ("wgmma.mma_async" if architecture == 90 else "mma.sync") in binary.asm["ptx"]
            offsets = re.findall(r"tt.addptr .*, tensor<[\dx]+x(i\d+)>", binary.asm["ttir"])
            assert len(offsets) >= 3
            assert set(offsets) == {"i64"}
