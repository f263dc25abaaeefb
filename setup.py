"""The optional part of an installation: the native operators, where a C++ compiler is at hand; see docs/cpu.md.

pip wheel .     hornbook-0.1.0-py3-none-manylinux_2_28_x86_64.whl     with native operators
                hornbook-0.1.0-py3-none-any.whl                       without a compiler
"""

import platform
import re
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "src"))
from hornbook.errors import StorageError
from hornbook.ops.native.build import INSTALLED, build_into
from hornbook.ops.native.cache import LIBRARY, BuildError

NEWEST_SYMBOLS = {b"GLIBC": (2, 28), b"GLIBCXX": (3, 4, 24), b"CXXABI": (1, 3, 11)}
"""What a library may require of glibc 2.28 and the libstdc++ beside it, as PEP 600 and auditwheel's policy have it."""


class BuildNative(build_ext):
    """Compiles the native operators into the package, or says why they will be compiled when they are first needed."""

    def initialize_options(self) -> None:
        """Start without files, also for an editable installation, which asks for the outputs before it runs this."""
        super().initialize_options()
        self.built: list[str] = []

    def run(self) -> None:
        """Compile them, unless the installation is editable: its sources change."""
        if self.inplace or self.editable_mode:
            return
        folder = Path(self.build_lib) / "hornbook/ops/native" / INSTALLED.name
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier version: setuptools keeps what it once made
        try:
            self.built += map(str, sorted(build_into(folder).parent.iterdir()))
        except (BuildError, StorageError, OSError) as error:
            self.warn(f"native operators are not part of this installation: {error}")

    def get_outputs(self) -> list[str]:
        """Return the files that were compiled."""
        return self.built

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: no file of the source tree stands for one of the installation."""
        return {}


class Wheel(bdist_wheel):
    """Names the systems that the wheel is for: no part of it depends on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its ABI and the system."""
        libraries = [path for path in self.get_finalized_command("build_ext").get_outputs() if path.endswith(LIBRARY)]
        if not libraries:
            return "py3", "none", "any"
        if sys.platform == "linux" and all(is_for_old_systems(Path(path).read_bytes()) for path in libraries):
            return "py3", "none", f"manylinux_2_28_{platform.machine()}"
        return "py3", "none", super().get_tag()[2]


def is_for_old_systems(library: bytes) -> bool:
    """Return whether all versions of symbols that a library names are in the oldest supported system."""
    found = re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_([\d.]+)(?=\0)", library)
    return all(tuple(map(int, version.split(b"."))) <= NEWEST_SYMBOLS[name] for name, version in found)


# The extension makes setuptools run the command.
setup(
    cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel},
    ext_modules=[Extension("hornbook.ops.native.libhornbook", [])],
)
