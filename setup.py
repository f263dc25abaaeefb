"""The optional part of an installation: the native operators, where a C++ compiler is at hand; see docs/cpu.md."""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "src"))
from hornbook.errors import StorageError
from hornbook.ops.native.build import INSTALLED, build_into
from hornbook.ops.native.cache import BuildError


class BuildNative(build_ext):
    """Compiles the native operators into the package, or says why they will be compiled when they are first needed."""

    def run(self) -> None:
        """Compile them, unless the installation is editable: its sources change."""
        self.built: list[str] = []
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


# The extension makes setuptools run the command, and mark the wheel as one for this platform.
setup(cmdclass={"build_ext": BuildNative}, ext_modules=[Extension("hornbook.ops.native.libhornbook", [])])
