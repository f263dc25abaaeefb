"""A native library that compiles at once, by a compiler that counts how often it runs."""

import shlex
from pathlib import Path

import pytest

from hornbook.ops.native import build
from hornbook.ops.native.build import find_compiler

TINY = """
#include "isa.h"
extern "C" __attribute__((visibility("default"))) int hb_instruction_sets() { return 0; }
"""


def use_tiny_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build from tiny sources in ``folder``, which are returned, with a compiler that logs its arguments."""
    sources = folder / "csrc"
    sources.mkdir()
    (sources / "isa.h").write_bytes((build.SOURCES / "isa.h").read_bytes())
    (sources / "cpu.cpp").write_text(TINY)
    monkeypatch.setattr(build, "SOURCES", sources)
    compiler = folder / "compiler"
    command = shlex.join(find_compiler()[0])
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(folder / "log"))}\nexec {command} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.quote(str(compiler)))
    return sources


def num_links(folder: Path) -> int:
    """Return how often the compiler in ``folder`` has linked a library."""
    return (folder / "log").read_text().count("-shared")
