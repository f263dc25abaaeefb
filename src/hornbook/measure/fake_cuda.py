"""A CUDA device that computes nothing, for builds of PyTorch without CUDA (``fake_cuda.cpp``).

Tensors without values (`torch._subclasses.FakeTensorMode`) can then be on a GPU, backward passes included.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from hornbook.ops.native.build import find_compiler, run_program
from hornbook.ops.native.cache import default_cache, make_private

_SOURCE = Path(__file__).with_suffix(".cpp")


def load_device() -> None:
    """Give a build of PyTorch without CUDA a CUDA device that computes nothing; call it before PyTorch is imported.

    Raises:
        BuildError: there is no C++ compiler, or it fails.
        RuntimeError: PyTorch is imported already.
    """
    if "+cpu" not in importlib.metadata.version("torch"):
        return
    if "torch" in sys.modules:
        raise RuntimeError("load_device() must be called before PyTorch is imported")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "hornbook requires it"
    folder = Path(spec.origin).parent
    (compiler, version), text = find_compiler(), _SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256(f"{text}{version}{importlib.metadata.version('torch')}{folder}".encode()).hexdigest()[:24]
    cache = default_cache() / f"fake-cuda-{key}"
    make_private(cache)
    library = cache / "fake_cuda.so"
    if not library.exists():
        flags = ["-shared", "-fPIC", "-std=c++20", "-O1", f"-I{folder}/include"]
        links = ["-Wl,--no-as-needed", f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib", "-lc10", "-ltorch_cpu"]
        made = library.with_suffix(".tmp")
        run_program([*compiler, *flags, str(_SOURCE), "-o", str(made), *links], temporary=cache)
        made.replace(library)
    ctypes.CDLL(str(library))
