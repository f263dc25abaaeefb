"""The operator tests once more, on a library that stops at a bad address or at undefined behavior."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.ops.native.build import BuildError, find_compiler

TESTS = Path(__file__).parent
OPERATORS = ("linear", "attention", "layer_norm", "cross_entropy", "block_sparse", "dropout", "token_block")
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g"


def sanitizer_runtimes() -> list[str]:
    """The files to preload, or a skip where the compiler has none."""
    try:
        compiler = find_compiler()[0]
    except BuildError as error:
        pytest.skip(str(error))
    names = ("libasan.so", "libubsan.so")
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    if not all(os.path.isabs(path) and Path(path).exists() for path in found):  # noqa: PTH117
        pytest.skip(f"{compiler} has no sanitizers")
    return [str(Path(path).resolve()) for path in found]


def environment(tmp_path: Path) -> dict[str, str]:
    """A compiler that adds the sanitizers, a cache of its own, and the runtimes in front of all other libraries."""
    runtimes, wrapper = sanitizer_runtimes(), tmp_path / "sanitizing"
    wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD= exec {find_compiler()[0]} "$@" {FLAGS}\n')
    wrapper.chmod(0o755)
    return os.environ | {
        "CXX": str(wrapper),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


@pytest.mark.slow
def test_operators_under_sanitizers(tmp_path):
    files = [str(TESTS / f"test_native_{operator}.py") for operator in OPERATORS]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", "not opcheck", *files]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.slow
def test_sanitizers_find_a_write_beyond_the_end(tmp_path):
    program = """
import torch
from hornbook.ops.native.library import Form, instruction_sets
x = torch.ones(64)
Form(instruction_sets()[0])("activation_gradient_f32", x, x, 64, 3, torch.empty(60), 1)
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
