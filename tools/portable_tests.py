"""Run tests as on other processors: with fewer vector instructions, without native operators, on one core.

    python tools/portable_tests.py                               all settings, the tests of numbers and operators
    python tools/portable_tests.py avx2 --pytest tests/model     one setting, other tests

PyTorch and oneDNN read their newest instruction set from environment variables. The native operators have a form for
each instruction set that the compiler knows, so a compiler that refuses some flags makes a library without those forms,
in a cache of its own, which all processes of the tests use. What this cannot show is a processor of another vendor: its
matrix libraries may sum in other orders.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("ops", "model", "optim", "engine", "parity", "generate", "evaluate", "run", "api", "test_objective.py")
"""The tests whose results depend on how sums are rounded, and on which operators there are."""
_COMPILER = """#!/bin/sh
for argument in "$@"; do
  case $argument in
    --version) echo "without {refused}";;
    {refused}) echo "error: $argument is refused" >&2; exit 1;;
  esac
done
exec {compiler} "$@"
"""


@dataclass(frozen=True)
class Setting:
    """What a processor lacks."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the tests."""
    refused: str | None = None
    """The words, as patterns of a shell's ``case``, that the compiler of the native library refuses."""
    cores: int | None = None
    """The number of cores; None: all."""


_NATIVE = "*/ops/native/csrc/*"
SETTINGS = {
    "default": Setting({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}, refused=_NATIVE),
    "avx2": Setting({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, refused="-mavx512*|-mamx*"),
    "avx512": Setting({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, refused="-mavx512bf16|-mamx*"),
    "no-operators": Setting(refused=_NATIVE),
    "one-core": Setting(cores=1),
}
"""``default`` has no AVX2 and no native operators, ``avx512`` no bf16 products."""


def run(setting: Setting, words: Sequence[str]) -> int:
    """Run pytest under a setting and return its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, **setting.variables}
        if setting.refused is not None:
            compiler = Path(scratch) / "compiler"
            found = shlex.quote(os.environ.get("CXX") or "g++")
            compiler.write_text(_COMPILER.format(refused=setting.refused, compiler=found), encoding="utf-8")
            compiler.chmod(0o755)
            variables |= {"CXX": str(compiler), "XDG_CACHE_HOME": f"{scratch}/cache"}
        cores = set(sorted(os.sched_getaffinity(0))[: setting.cores])
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return subprocess.run(
            command, env=variables, cwd=ROOT, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        ).returncode


def main() -> int:
    """Run the settings one after another and tell which of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"{', '.join(SETTINGS)}; by default all")
    parser.add_argument("--pytest", default="", metavar="WORDS", help="further words for pytest, such as tests or -n 2")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.settings) - set(SETTINGS)):
        parser.error(f"no setting {unknown[0]}; there are {', '.join(SETTINGS)}")
    words = shlex.split(arguments.pytest)
    if not any(not word.startswith("-") and (ROOT / word.partition("::")[0]).exists() for word in words):
        words += [f"tests/{name}" for name in TESTS]
    failed = []
    for name in arguments.settings or SETTINGS:
        print(f"=== {name}", flush=True)
        if run(SETTINGS[name], words):
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all settings passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
