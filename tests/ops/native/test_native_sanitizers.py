"""The operator tests once more, on a library that stops at a bad address or at undefined behavior."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.ops.native.build import INSTRUCTION_SETS, SOURCES, find_compiler
from hornbook.ops.native.cache import BuildError

TESTS = Path(__file__).parent
OPERATORS = ("linear", "attention", "layer_norm", "cross_entropy", "block_sparse", "dropout", "token_block")
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g"


def sanitizer_runtimes() -> list[str]:
    """The files to preload, or a skip where the compiler has none."""
    try:
        compiler = find_compiler()[0][0]
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
    wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD= exec {shlex.join(find_compiler()[0])} "$@" {FLAGS}\n')
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
    options = ["-x", "-p", "no:cacheprovider", "--capture=no", "-k", "not opcheck"]  # else a finding's message is lost
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 60])
def test_sanitizers_find_a_write_beyond_the_end(tmp_path, size):
    """Dropout of 64 columns, alone in a library, into room for as many or for less."""
    runs, isa, target = environment(tmp_path), INSTRUCTION_SETS["avx2"], tmp_path / "libhornbook.so"
    sources = [str(SOURCES / name) for name in ("cpu.cpp", "dropout.cpp")]
    command = [runs["CXX"], "-std=c++17", "-fPIC", "-DHB_ISA=avx2", *isa, "-shared", *sources, "-o", str(target)]
    subprocess.run(command, check=True)
    program = f"""
import ctypes, torch
from pathlib import Path
from hornbook.ops.native.kernels import open_library
keys, factor = torch.zeros(1, dtype=torch.int64), torch.ones(1)
arguments = (torch.ones(64), None, keys, 1, 64, 0, 0, factor, torch.empty({size}), 1)
words = (each.data_ptr() if isinstance(each, torch.Tensor) else each or 0 for each in arguments)
open_library(Path({str(target)!r})).hb_avx2_dropout_f32(*map(ctypes.c_int64, words))
"""
    done = subprocess.run([sys.executable, "-c", program], env=runs, capture_output=True, text=True)
    is_found = "ERROR: AddressSanitizer" in done.stderr and "WRITE of size" in done.stderr
    assert (done.returncode != 0, is_found) == (size < 64,) * 2, done.stderr
