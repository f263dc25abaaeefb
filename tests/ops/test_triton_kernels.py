"""Triton's kernels: cross-entropy, dropout and norms, with its interpreter and compiled for GPUs, which needs none."""

import importlib.util
from pathlib import Path

import pytest
import torch
from cases import mostly_slow
from ranks import python

from hornbook.ops.native import kernels
from hornbook.ops.native.choice import choose
from hornbook.ops.triton import operators, programs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
POINTERS = ("*bf16", *(pytest.param(pointer, marks=pytest.mark.slow) for pointer in ("*fp32", "*fp16")))
OTHERS = ("gelu", "silu", "relu", "relu_squared")
COUNTS = dict.fromkeys(("num_rows", "num_columns", "num_real", "num_ids", "stride", "site", "threshold"), "i32")


@pytest.mark.parametrize(("words", "fewest"), mostly_slow([((), 150), (("all",), 300)]))
def test_results_and_gradients_are_those_of_float64(words, fewest):
    done = python(Path(__file__).parent / "compare_kernels.py", *words, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > fewest


def check(kernel, types, constants, architectures=None, **options):
    """Compile a kernel for all architectures; it must not need more registers than there are."""
    from triton_kernels import ARCHITECTURES, MOST_SHARED, compiled, local_bytes

    for architecture in architectures or ARCHITECTURES:
        binary = compiled(kernel, {**COUNTS, **types}, constants, architecture, **options)
        assert binary.metadata.shared <= MOST_SHARED[architecture]
        assert local_bytes(binary) == 0


@pytest.mark.parametrize("pointer", POINTERS)
def test_cross_entropy_compiles(pointer):
    """Of whole rows, and, in two passes, of rows that are split over ranks."""
    from hornbook.ops.triton.cross_entropy import FIXED, _cross_entropy, _summarize

    types = {"logits": pointer, "targets": "*i64", "predictions": "*i64", "num_parts": "i32", "first": "i32"}
    types |= dict.fromkeys(("bias", "losses", "log_sums", "summary", "summaries"), "*fp32")
    types |= dict.fromkeys(("cap", "z_weight"), "fp32")
    for is_split in (False, True):
        fixed, warps = {"has_bias": True, "has_cap": is_split, "width": FIXED["width"]}, FIXED["num_warps"]
        check(_cross_entropy, types, {**fixed, "is_split": is_split, "with_gradient": True}, num_warps=warps)
        check(_summarize, types, fixed, num_warps=warps)


@pytest.mark.parametrize("pointer", POINTERS)
def test_dropout_compiles(pointer):
    from hornbook.ops.triton.dropout import _dropout, tile

    types = {**dict.fromkeys(("x", "residual", "result"), pointer), "keys": "*i64", "factor": "fp32"}
    for width in (128, 768):
        check(_dropout, types, {"adds": width == 768, **tile(width)})


@pytest.mark.parametrize("drops", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pointer", POINTERS)
def test_embedding_compiles(pointer, drops):
    from hornbook.ops.triton.dropout import tile
    from hornbook.ops.triton.embedding import SUMS, _add_parts, _add_rows, _embedding

    types = {**dict.fromkeys(("tokens", "positions", "keys", "order"), "*i64"), "ids": "*i32", "factor": "fp32"}
    types |= dict.fromkeys(("table", "position_table", "total", "parts"), "*fp32")
    types |= dict.fromkeys(("gradient", "result"), pointer)
    check(_embedding, types, {"has_positions": True, "drops": drops, **tile(768)})
    check(_add_rows, types, {"drops": drops, **SUMS})
    check(_add_parts, types, SUMS)


@pytest.mark.parametrize("narrow", ["bfloat16", pytest.param(None, marks=pytest.mark.slow)])
def test_adamw_compiles_with_loads_of_16_bytes(narrow):
    import triton.language as tl
    from triton_kernels import compiled

    from hornbook.ops.triton.adamw import CHUNK, _adamw

    floats = ("step", "keep", "added", "beta1", "rest1", "beta2", "rest2", "unbiased", "epsilon", "factor")
    types = {**dict.fromkeys(floats, "fp32"), "table": "*i64", "num_tensors": "i32"}
    constants = {"narrow": narrow and getattr(tl, narrow), "most_tensors": 256, "size": CHUNK}
    check(_adamw, types, constants)
    code = compiled(_adamw, {**COUNTS, **types}, constants, 90).asm["ptx"]
    assert "ld.global.v4.b32" in code and "st.global.v4.b32" in code


@pytest.mark.parametrize("width", [768, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pointer", POINTERS)
def test_norms_compile(pointer, width):
    from hornbook.ops.triton.norms import _norm, _norm_gradients, size

    fixed = size(width)
    warps = fixed.pop("num_warps")
    pointers = ("x", "residual", "added", "result", "gradient", "beside", "of_x", "of_dropped")
    types = {**dict.fromkeys(pointers, pointer), "keys": "*i64", **dict.fromkeys(("epsilon", "factor"), "fp32")}
    types |= dict.fromkeys(("gain", "bias", "means", "rates", "of_gain", "of_bias", "row_sums"), "*fp32")
    for joins in (False, True):  # a layer norm behind a dropout and an addition
        has = {"centered": joins, "has_gain": True, "drops": joins}
        check(_norm, types, {**has, "has_bias": joins, "adds": joins, **fixed}, num_warps=warps)
        check(_norm_gradients, types, {**has, "has_beside": True, **fixed}, num_warps=warps)


@pytest.mark.parametrize("activation", ["gelu_tanh", *OTHERS, None])
@pytest.mark.parametrize("pointer", POINTERS)
def test_summed_gradients_of_activations_and_dropout_compile(pointer, activation):
    from hornbook.ops.triton.dropout import tile
    from hornbook.ops.triton.summed_gradients import _summed_gradient

    types = {**dict.fromkeys(("gradient", "beside", "result"), pointer), "sums": "*fp32", "factor": "fp32"}
    types |= {} if activation else {"beside": "*i64"}
    check(_summed_gradient, types, {"activation": activation, **tile(768)})


@pytest.mark.parametrize("activation", ["gelu_tanh", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
@pytest.mark.parametrize("pointer", POINTERS[::2])
@pytest.mark.parametrize("architecture", mostly_slow([90, 80, 89]))
def test_products_with_activations_compile(architecture, pointer, activation):
    from hornbook.ops.triton.activated_product import _activated_gradient, _activated_linear, tile

    types = dict.fromkeys(("x", "weight", "before", "result", "gradient"), pointer)
    types |= dict.fromkeys(("bias", "sums"), "*fp32")
    for kernel, has in ((_activated_linear, {"has_bias": True}), (_activated_gradient, {})):
        fixed = tile(architecture, is_gradient=not has)
        options = {name: fixed.pop(name) for name in ("num_warps", "num_stages")}
        constants = {"num_columns": 3072, "depth": 768, "activation": activation, "widens": False, **has, **fixed}
        check(kernel, types, constants, (architecture,), **options)


def test_a_run_on_a_gpu_takes_them_and_says_so(monkeypatch):
    gpu, x = torch.device("cuda"), torch.empty(0)
    chosen = choose("auto", gpu, torch.bfloat16)
    assert str(chosen) == ("Triton: cross_entropy, dropout, layer_norm, linear, attention, embedding, adamw (CUDA)")
    assert chosen.record == dict.fromkeys(operators.KERNELS, "triton")
    assert not choose("torch", gpu, torch.bfloat16).forms
    assert not choose("auto", gpu, torch.bfloat16, earlier={}).forms
    with kernels.using(chosen):
        assert not operators.chosen("triton_dropout", x)
    monkeypatch.setattr(programs, "why_not", lambda device: "Triton is not installed")
    assert str(choose("auto", gpu, torch.bfloat16)) == "torch (Triton is not installed)"
