"""Native forms of other processors, in an emulator; docs/internals/cpu-kernels.md has the commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.ops.native.build import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "tests/helpers/check_forms.py"


def lines_of(command: list[str], **variables: str) -> list[list[str]]:
    """The words of each line that the check prints: form, kernel, verdict."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run([*command, str(CHECK)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [line.split() for line in done.stdout.splitlines()]


def assert_all_right(found: list[list[str]], forms: set[str]) -> None:
    assert {isa for isa, *_ in found} == forms
    assert len(found) == 17 * len(forms)
    assert [words for words in found if words[-1] != "right"] == []


@pytest.mark.slow
def test_every_arm_form_is_right(tmp_path):
    python, compiler = os.environ.get("HORNBOOK_ARM_PYTHON"), "aarch64-linux-gnu-g++"
    if python is None or shutil.which(compiler) is None:
        pytest.skip(f"HORNBOOK_ARM_PYTHON names no Python for Arm, or there is no {compiler}")
    path = f"{ROOT / 'src'}:{os.environ.get('HORNBOOK_ARM_PACKAGES', '')}"
    found = lines_of(shlex.split(python), CXX=compiler, PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path))
    assert_all_right(found, set(ARCHITECTURES["aarch64"]))
    (library,) = tmp_path.glob("hornbook/native/*/libhornbook.so")
    assert users_of("bfmmla", library) == {"QuadProduct"}
    assert users_of("bfdot", library) == {"PairProduct"}


def users_of(instruction: str, library: Path) -> set[str]:
    """The kinds of products whose functions have an instruction of Arm; "" of other functions."""
    printed = subprocess.check_output(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", library], text=True)
    functions = [part for part in printed.split("\n\n") if f"\t{instruction}\t" in part]
    return {"".join(re.findall(r"[A-Z][a-z]+Product", part.splitlines()[0])) for part in functions}


@pytest.mark.slow
def test_the_avx2_form_is_right_in_an_emulator():
    """QEMU emulates no AVX-512, so this is also the test of a processor that has AVX2 alone."""
    emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if emulator is None or sys.platform != "linux":
        pytest.skip("there is no qemu-x86_64")
    assert_all_right(lines_of([emulator, "-cpu", "max", sys.executable], PYTHONPATH=str(ROOT / "src")), {"avx2"})
