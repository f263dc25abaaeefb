"""The build of the native library: found again, anew after a change, once for processes that start together."""

import bisect
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny_native import TINY, num_links, use_tiny_sources

from hornbook.ops.native import build
from hornbook.ops.native.build import build_into, find_compiler, library, missing_forms
from hornbook.ops.native.cache import BuildError, find_flaw
from hornbook.ops.native.kernels import _RUNTIME, _works, load, openmp_runtime

try:
    find_compiler()
except BuildError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def tiny_sources(tmp_path, monkeypatch):
    """Sources that compile at once, and a compiler that counts how often it runs."""
    return use_tiny_sources(tmp_path, monkeypatch)


def test_a_build_is_reused_and_repeated_after_a_change(tiny_sources, tmp_path, monkeypatch, caplog):
    cache = tmp_path / "cache"
    first = library(cache)
    assert library(cache) == first
    assert num_links(tmp_path) == 1
    assert caplog.messages == ["compiling native operators, once on this machine (about a minute of processor time)"]
    (tiny_sources / "cpu.cpp").write_text(TINY + "\n// changed\n")
    second = library(cache)
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))
    assert len({first, second, library(cache)}) == 3
    assert num_links(tmp_path) == 3
    assert sorted(path.name for path in first.parent.iterdir()) == [
        "forms.json",
        "libhornbook.so",
        "libhornbook.so.sha256",
        "lock",
    ]


def test_processes_that_start_together_build_once(tiny_sources, tmp_path):
    program = (
        "import sys; from pathlib import Path; from hornbook.ops.native import build; "
        "build.SOURCES = Path(sys.argv[1]); print(build.library(Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(tiny_sources), str(tmp_path / "cache")]
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: subprocess.check_output(command, text=True, env=os.environ), range(3)))
    assert len(set(paths)) == 1
    assert num_links(tmp_path) == 1


def test_the_build_of_the_installation_is_used_until_the_sources_change(tiny_sources, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "INSTALLED", tmp_path / "built")
    installed, cache = build_into(tmp_path / "built"), tmp_path / "cache"
    assert library(cache) == installed
    with monkeypatch.context() as bare:
        bare.delenv("CXX")
        bare.setenv("PATH", str(tmp_path / "nowhere"))
        assert library(cache) == installed, "it needs no compiler"
        whole = installed.read_bytes()
        installed.write_bytes(whole[:-1])
        with pytest.raises(BuildError, match=r"damaged: its SHA-256 .* there is no C\+\+ compiler"):
            library(cache)
    assert library(cache).is_relative_to(cache), "that of the installation is damaged"
    installed.write_bytes(whole)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.0"))
    assert library(cache) == installed, "any version of the C library that can load it will do"
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    assert library(cache).is_relative_to(cache), "it is that of another system"


def test_a_build_that_cannot_be_loaded_is_replaced(tiny_sources, tmp_path):
    """Such as that of a machine with a newer C library, in a home folder that both share."""
    built = library(tmp_path / "cache")
    source = tmp_path / "newer.cpp"
    source.write_text('void newer(); extern "C" int hb_instruction_sets() { newer(); return 0; }')
    command = [*find_compiler()[0], "-shared", "-fPIC", "-Wl,-z,now", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    built.with_name("libhornbook.so.sha256").write_text(hashlib.sha256(built.read_bytes()).hexdigest())
    assert "cannot be loaded" in str(find_flaw(built))
    assert library(tmp_path / "cache") == built and find_flaw(built) is None
    assert num_links(tmp_path) == 3, "that of this test is one of them"


CRASHING = """#!/bin/sh
echo "$@" >> {folder}/log
case "$*" in *{form}*-c*) echo "compiler: error: frontend command failed with exit code 139" >&2; exit 1;; esac
exec {command} "$@"
"""


@pytest.fixture
def crashing(tiny_sources, tmp_path, monkeypatch):
    """Put the only compilers in a folder: ``g++``, which crashes on one form, and what the test adds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tiny_sources / "form.cpp").write_text('#include "isa.h"\nHB_EXPORT(i64, works)() { return 1; }\n')
    system = os.environ["PATH"]
    real = f"env PATH={system} {shutil.which('g++') or shutil.which('c++')}"

    def add(name: str, form: str) -> None:
        (folder / name).write_text(CRASHING.format(folder=tmp_path, form=form, command=real))
        (folder / name).chmod(0o755)

    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")
    (folder / "env").symlink_to(shutil.which("env", path=system))
    add("g++", "DHB_ISA=avx512bf16")
    return add


def has_form(built: Path, isa: str) -> bool:
    return f"hb_{isa}_works\0".encode() in built.read_bytes()


def test_a_form_that_a_compiler_crashes_on_is_left_out_and_remembered(crashing, tmp_path, caplog):
    built = library(tmp_path / "cache")
    assert has_form(built, "avx2") and has_form(built, "avx512fp16") and not has_form(built, "avx512bf16")
    ((isa, why),) = missing_forms(built.parent).items()
    assert isa == "avx512bf16" and why.endswith(
        "g++ fails: compiler: error: frontend command failed with exit code 139"
    )
    assert [message for message in caplog.messages if "have no avx512bf16 form, since" in message] == caplog.messages[
        1:
    ]
    caplog.clear()
    assert library(tmp_path / "cache") == built
    assert num_links(tmp_path) == 1 and not caplog.messages, "it is said once, and no process compiles again"


def test_the_next_compiler_compiles_what_the_first_one_crashes_on(crashing, tmp_path, caplog):
    library(tmp_path / "cache")
    crashing("clang++", "DHB_ISA=avx2")
    built = library(tmp_path / "cache")
    assert num_links(tmp_path) == 2 and missing_forms(built.parent) == {}
    assert "clang++ of" in caplog.messages[-1] and "may compile its avx512bf16" in caplog.messages[-1]
    assert all(has_form(built, isa) for isa in build.INSTRUCTION_SETS)


def test_a_compiler_that_crashes_on_all_forms_is_an_error(crashing, tmp_path):
    crashing("g++", "DHB_ISA")
    with pytest.raises(BuildError, match=r"g\+\+ fails: compiler: error"):
        library(tmp_path / "cache")


@pytest.mark.parametrize(("body", "runs"), [("return 1;", True), ("return 0;", False), ("__builtin_trap();", False)])
def test_a_form_that_the_processor_refuses_ends_a_process_of_its_own(tmp_path, body, runs):
    source, built = tmp_path / "form.cpp", tmp_path / "form.so"
    source.write_text(
        f'extern "C" long hb_amx_works() {{ {body} }} extern "C" int hb_instruction_sets() {{ return 0; }}'
    )
    subprocess.run([*find_compiler()[0], "-shared", "-fPIC", "-w", str(source), "-o", str(built)], check=True)
    assert _works(built, "amx") == runs


def disassembled(option: str) -> list[str]:
    """Return what objdump prints of the library; skips the test where there is none with a form for tiles."""
    if isinstance(built := load(), BuildError):
        pytest.skip(str(built))
    if shutil.which("objdump") is None or not build._knows(find_compiler()[0], build.INSTRUCTION_SETS[build.TILES]):
        pytest.skip("no objdump, or a compiler that does not know AMX")
    return subprocess.check_output(["objdump", "--no-show-raw-insn", option, str(library())], text=True).splitlines()


def test_the_form_for_tiles_uses_them():
    printed = "\n".join(disassembled("--disassemble=hb_amx_works"))
    used = ["ldtilecfg", "tileloadd", "tileloadd", "tilezero", "tdpbf16ps", "tilestored", "tilerelease"]
    assert re.findall(r"\b(?:ldtilecfg|tile\w+|tdp\w+)", printed) == used


def test_only_the_form_for_tiles_reaches_their_instructions():
    """By direct calls and by functions whose addresses are taken, such as those that other threads run."""
    names, uses, refers = {}, {}, {}
    for line in disassembled("-d"):
        if line.endswith(">:"):
            address, name = line[:-2].split(" <", maxsplit=1)
            function = int(address, 16)
            names[function], uses[function], refers[function] = name, set(), set()
        elif found := re.search(r"\t(ldtilecfg|sttilecfg|tile\w+|tdp\w+)", line):
            uses[function].add(found[1])
        elif line.endswith(">"):
            refers[function].add(int(line.rsplit(" <", maxsplit=1)[0].split()[-1], 16))
    starts = sorted(names)

    def reached(function: int, seen: set[int]) -> set[str]:
        seen.add(function)
        found = set(uses[function])
        for address in refers[function]:
            other = starts[max(bisect.bisect_right(starts, address) - 1, 0)]
            if other not in seen:
                found |= reached(other, seen)
        return found

    of_exports = {name: reached(at, set()) for at, name in names.items() if name.startswith("hb_")}
    products = {"ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"}
    for name in ("linear_product_bf16", "block_sparse_product_bf16", "block_sparse_weight_gradient_bf16"):
        assert of_exports[f"hb_amx_{name}"] == products
        assert not of_exports[f"hb_amx_{name.removesuffix('bf16')}f32"]
    assert not {name for name, found in of_exports.items() if found and not name.startswith("hb_amx_")}


@pytest.mark.parametrize("words", ["{} -O2", "env {}", "'{}'  -O1 '-DA=\"b c\"'"])
def test_a_compiler_with_arguments_is_split_as_a_shell_does(tiny_sources, tmp_path, monkeypatch, words):
    """Such as ``ccache g++``, or ``c++ -O2``; other flags make another build, another program does not."""
    cache, flags = tmp_path / "cache", [word for word in shlex.split(words) if word.startswith("-")]
    first = library(cache)
    monkeypatch.setenv("CXX", words.format(tmp_path / "compiler"))
    second = library(cache)
    assert num_links(tmp_path) == 1 + bool(flags)
    assert (first != second) == bool(flags) and find_flaw(second) is None
    assert find_compiler()[0][1:] == shlex.split(words.format(tmp_path / "compiler"))[1:]
    last = (tmp_path / "log").read_text().splitlines()[-2:]
    assert all(line.startswith(" ".join(flags)) for line in last)


def test_a_compiler_that_a_shell_could_not_split_is_reported(monkeypatch):
    monkeypatch.setenv("CXX", "g++ 'half")
    with pytest.raises(BuildError, match=r"CXX is g\+\+ 'half, which a shell could not split: No closing quotation"):
        find_compiler()


def test_a_compiler_that_is_missing_or_fails_is_reported(tiny_sources, tmp_path, monkeypatch):
    (tiny_sources / "cpu.cpp").write_text("#error out of tune\n")
    with pytest.raises(BuildError, match=r"fails: .*out of tune"):
        library(tmp_path / "cache")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler; install"):
        library(tmp_path / "cache")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(BuildError, match="this is riscv64"):
        library(tmp_path / "cache")


def test_the_process_has_one_pool_of_threads():
    built = load()
    if isinstance(built, BuildError):
        pytest.skip(str(built))
    lines = Path("/proc/self/maps").read_text().splitlines()
    runtimes = {line.split()[5] for line in lines if _RUNTIME.search(line)}
    assert runtimes == {str(openmp_runtime())}


@pytest.mark.slow
def test_every_source_compiles_without_a_warning(tmp_path):
    compiler = find_compiler()[0]
    quiet = {"-w"}  # GCC 12 warns of its own intrinsics (PR 105593)
    flags = [flag for flag in build._FLAGS if flag not in quiet]
    flags += [
        "-Wall",
        "-Wextra",
        "-Wno-maybe-uninitialized",
        "-Wno-uninitialized",
        "-Wno-ignored-attributes",
        "-Werror",
    ]
    for name, source in [(isa, path) for isa in build.INSTRUCTION_SETS for path in build.sources(isa)]:
        isa = [f"-DHB_ISA={name}", f"-DHB_{name.upper()}", *build.INSTRUCTION_SETS[name]]
        subprocess.run([*compiler, *flags, *isa, "-c", str(source), "-o", str(tmp_path / "object.o")], check=True)
