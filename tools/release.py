"""Build the source distribution and, from it, the wheel; check the wheel, and test both. See docs/internals/release.md.

    dist/hornbook-0.1.0.tar.gz
    dist/hornbook-0.1.0-py3-none-manylinux_2_28_x86_64.whl

Each is installed in a new virtual environment and used there, with a PATH without a compiler and an empty cache. The
environment takes hornbook's dependencies from the one that runs this program, so nothing is downloaded but auditwheel.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
POLICY = "manylinux_2_28_x86_64"
_PIP = ["-m", "pip", "--disable-pip-version-check", "--quiet"]


def main() -> int:
    """Build and test; the exit code is 1 if a distribution is not as it should be."""
    os.chdir(ROOT)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _python(["-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(dist)!r})"])
    (source,) = dist.glob("*.tar.gz")
    _python([*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist), str(source)])
    (wheel,) = dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        problems = [*_of_wheel(wheel, Path(scratch)), *_of_use(wheel, Path(scratch) / "wheel", has_forms=True)]
        problems += _of_use(source, Path(scratch) / "source", has_forms=False)
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if not problems:
        print(f"{source.name} and {wheel.name} are ready in dist/: twine upload dist/*")
    return 1 if problems else 0


def _of_wheel(wheel: Path, scratch: Path) -> list[str]:
    """Return what is wrong with the wheel's tag, also according to auditwheel."""
    if not wheel.name.endswith(f"-py3-none-{POLICY}.whl"):
        return [f"{wheel.name} is not for {POLICY}: was there a compiler, and which symbols does the library need?"]
    _python(["-m", "venv", str(scratch / "audit")])
    _python([*_PIP, "install", "auditwheel"], scratch / "audit")
    shown = " ".join(_python(["-m", "auditwheel", "show", str(wheel)], scratch / "audit").split())
    print(shown)
    oldest = shown.partition('is consistent with the following platform tag: "')[2].partition('"')[0]
    numbers = [int(number) for number in oldest.split("_")[1:3] if number.isdigit()]
    return [] if oldest.startswith("manylinux_") and numbers <= [2, 28] else [f"auditwheel says of it: {shown}"]


def _of_use(distribution: Path, folder: Path, *, has_forms: bool) -> list[str]:
    """Return what is wrong after an installation in a new environment without a compiler."""
    _python(["-m", "venv", "--without-pip", str(folder)])  # its own setuptools would be older than ours
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # .pth files in there do not count
    bare = {"PATH": str(folder / "bin"), "HOME": str(folder), "LANG": "C.UTF-8"}
    _python([*_PIP, "install", "--no-deps", "--no-index", "--no-build-isolation", str(distribution)], folder, bare)
    hornbook = [str(folder / "bin/hornbook")]
    facts = json.loads(_run([*hornbook, "doctor", "--device", "cpu", "--json"], bare).splitlines()[-1])
    states = facts["operators"]["form_states"]
    print(f"{distribution.name}: compiler {facts['compiler']}, forms {states or facts['operators']['kernels']}")
    sizes = [
        "--model.num-layers",
        "2",
        "--model.hidden-size",
        "64",
        "--model.num-heads",
        "2",
        "--model.vocab-size",
        "512",
    ]
    words = [*hornbook, "bench", "step", "demo", *sizes, "--device", "cpu", "--threads", "1"]
    print(_run([*words, "--precision.kernels", "native"], bare).strip().splitlines()[-1])
    uncompiled = [isa for isa, state in states.items() if state.startswith("not compiled")]
    if has_forms and (not states or uncompiled):
        return [f"{distribution.name} has no forms for {', '.join(uncompiled) or 'any instruction set'}"]
    return [] if facts["compiler"] is None else ["the environment is not without a compiler"]


def _python(words: list[str], environment: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    interpreter = sys.executable if environment is None else str(environment / "bin/python")
    return _run([interpreter, *words], variables)


def _run(command: list[str], variables: Mapping[str, str] | None = None) -> str:
    """Return the output of a command; its errors appear as they are, and end the program."""
    variables = variables or {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"release: {' '.join(command)} fails:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
