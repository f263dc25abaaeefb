"""Triton's attention: with its interpreter, in models, and compiled for GPUs, which needs none."""

import importlib.util
from itertools import product
from pathlib import Path

import pytest
from ranks import python

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
FOLDER = Path(__file__).parent
BYTES = {"*bf16": 2, "*fp16": 2, "*fp32": 4}
NUMBERS = (
    *("num_tokens", "q_stride", "k_stride", "v_stride", "of_stride", "of_k_stride", "of_v_stride"),
    *("sums_stride", "k_sums_stride", "v_sums_stride"),
    *("per_group", "window", "num_words", "first_head", "site", "below", "golden", "one"),
)
HAS = ("causal", "has_window", "has_cap", "drops", "whole")
RECIPES = {
    "bert": (False, False, False, True, False),
    "gpt": (True, False, False, True, True),
    "windows": (True, True, True, False, True),
}


@pytest.mark.parametrize("number", [0, pytest.param(60, marks=pytest.mark.slow)])
def test_attention_and_gradients_are_those_of_float64(number):
    done = python(FOLDER / "compare_attention.py", number, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8 + 2 * number


@pytest.mark.slow
def test_models_with_spans_are_those_without():
    done = python(FOLDER / "compare_span_models.py", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gpt", "decoder", "bert", "groupbert", "modernbert"]


TYPES = {
    **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(("log_sums", "deltas", "sums", "k_sums", "v_sums"), "*fp32"),
    "keys": "*i64",
    **dict.fromkeys(("spans", "dropped"), "*i32"), **dict.fromkeys(("scale", "cap", "factor"), "fp32"),
}  # fmt: skip


def check(kernel, types, constants, architecture, **options):
    """Compile a kernel; it must not need more registers than there are."""
    from triton_kernels import MOST_SHARED, compiled, local_bytes

    binary = compiled(kernel, types, constants, architecture, **options)
    assert binary.metadata.shared <= MOST_SHARED[architecture]
    assert local_bytes(binary) == 0, (kernel, architecture)


def arguments(kernel, pointer, size, recipe, architecture):
    """Return the types and constants of one of the three kernels, and the options of its compilation."""
    from hornbook.ops.triton import attention

    types = TYPES | dict.fromkeys(("q", "k", "v", "y", "gradient", "of_q", "of_k", "of_v"), pointer)
    has = dict(zip(HAS, recipe, strict=True))
    tiles = attention.tiles(kernel, size, BYTES[pointer], architecture)
    options = {name: tiles.pop(name) for name in ("num_stages", "num_warps")}
    return types, {**has, "size": size, "width": 1 << (size - 1).bit_length(), "widens": False, **tiles}, options


def compile_and_check(pointer, size, recipe):
    """Compile the three kernels for all architectures."""
    from triton_kernels import ARCHITECTURES

    from hornbook.ops.triton import attention

    for architecture, kernel in product(ARCHITECTURES, ("forward", "of_queries", "of_keys")):
        types, constants, options = arguments(kernel, pointer, size, RECIPES[recipe], architecture)
        check(getattr(attention, f"_{kernel}"), types, constants, architecture, **options)


@pytest.mark.slow
def test_the_roofline_counts_the_instructions_of_compiled_kernels():
    """Of the main loops on an H100, bf16, heads of 64, causal; those that look at hidden pairs on their own."""
    from triton_kernels import compiled, loop_instructions

    from hornbook.measure.kernel_launches import _HASHED, _INSTRUCTIONS, _OF_A_MASK, _OF_AN_END
    from hornbook.ops.triton import attention

    of_an_end = {True: (0.0, 0.0), False: _OF_AN_END}
    for whole in (True, False):
        found, expected, masks = [], [], []
        for (kernel, counted), drops in product(_INSTRUCTIONS.items(), (False, True)):
            types, constants, options = arguments(kernel, "*bf16", 64, (True, False, False, drops, whole), 90)
            binary = compiled(getattr(attention, f"_{kernel}"), types, constants, 90, **options)
            weights = constants["tile"] * constants["step"] / (32 * options["num_warps"])  # of a thread
            loop, mask, _ = loop_instructions(binary)
            found.append(loop / weights)
            expected.append(counted[drops] + of_an_end[whole][0])
            masks.append(mask / weights)
        assert sum(found) == pytest.approx(sum(expected), abs=0.3)
        assert not whole or found == pytest.approx(expected, abs=0.1)
        assert sum(masks) / len(masks) == pytest.approx(_OF_A_MASK + of_an_end[whole][1], abs=0.1)
    constants = {"causal": True, "has_window": False, "tile": attention.HASHED["tile"]}
    binary = compiled(attention._hash_dropped, TYPES, constants, 90, num_warps=attention.HASHED["num_warps"])
    hashed, _, integer = (number / 32 for number in loop_instructions(binary))
    assert (hashed, integer) == pytest.approx(_HASHED, abs=0.1)


@pytest.mark.parametrize(("causal", "has_window"), [(False, False), (True, True)])
def test_the_hash_of_dropout_compiles(causal, has_window):
    from triton_kernels import ARCHITECTURES

    from hornbook.ops.triton.attention import HASHED
    from hornbook.ops.triton.attention_bits import _hash_dropped

    constants = {"causal": causal, "has_window": has_window, "tile": HASHED["tile"]}
    for architecture in ARCHITECTURES:
        check(_hash_dropped, TYPES, constants, architecture, num_warps=HASHED["num_warps"])


@pytest.mark.parametrize(
    ("pointer", "size", "recipe"),
    [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            *product(("*bf16", "*fp16", "*fp32"), (64,), ("bert", "gpt")),
            *product(("*bf16", "*fp16"), (80, 128), ("gpt", "windows")),
            *product(("*bf16", "*fp16"), (256,), ("windows",)),
        )
    ],
)
def test_attention_of_recipes_compiles(pointer, size, recipe):
    compile_and_check(pointer, size, recipe)
