"""Compile Triton kernels for NVIDIA GPUs on a machine without one."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 89, 90)
"""A100, RTX 4090, H100."""
_INTEGER = re.compile(r"^(?:@\S+ )?(?:SHF|LOP3|VIADD|IADD3|LEA|ISETP)\b")
_JUMP = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")
MOST_SHARED = {80: 166912, 89: 101376, 90: 232448}
"""Bytes of shared memory that one program may have, by architecture."""


def compiled(kernel, signature, constants, architecture, **options):
    """Return a kernel compiled for an architecture, given the types of its arguments by name, such as ``*bf16``.

    Pointers and strides are promised to be multiples of 16, as Triton's launcher finds them for whole tensors.
    """
    names = list(kernel.arg_names)
    types = {name: "constexpr" if name in constants else signature[name] for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in names
        if types[name][0] == "*" or name.endswith("stride")
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=fixed, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def local_bytes(binary) -> int:
    """Return the bytes of registers that a compiled kernel spills to memory, according to ptxas."""
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(binary.asm["ptx"])
        target = re.search(r"\.target (\w+)", binary.asm["ptx"]).group(1)
        command = [ptxas, "-v", f"--gpu-name={target}", path, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))


def loop_instructions(binary) -> tuple[int, int, int]:
    """Return how many instructions a compiled kernel has in its innermost loop that multiplies, or in its longest loop.

    The first number is that of a pass that skips the longest detour, the second that of the detour, and the third how
    many of the first are integer ones, multiplications excepted.
    """
    nvdisasm = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        listing = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    lines, labels = [], {}
    for label, instruction in re.findall(r"^\s*(?:(\.L_x_\d+):|/\*[0-9a-f]+\*/\s+(.*?);)", listing, re.MULTILINE):
        if label:
            labels[label] = len(lines)
        else:
            lines.append(instruction)
    jumps = [(at, labels[found.group(1)]) for at, line in enumerate(lines) if (found := _JUMP.search(line))]
    loops = [(to, at + 1) for at, to in jumps if to <= at]
    multiply = [(begin, end) for begin, end in loops if any("HGMMA" in line for line in lines[begin:end])]
    begin, end = sorted(multiply or loops, key=lambda loop: loop[1] - loop[0])[0 if multiply else -1]
    detour = max((to - at - 1 for at, to in jumps if begin <= at < to < end), default=0)
    integer = sum(bool(_INTEGER.search(line)) for line in lines[begin:end])
    return end - begin - detour, detour, integer
