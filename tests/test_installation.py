"""What the Makefile installs: PyTorch's CPU build where pip reaches it, and for the tests the versions of the lock."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TORCH = re.search(r"^TORCH_VERSION \?= (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
LOCKED = re.compile(
    r"^(?P<requirement>[^\s#][^\\\n]*?) \\\n(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)", re.MULTILINE
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required() -> list[Requirement]:
    """What hornbook and the tests require, and what builds hornbook; PyTorch is installed apart."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    lines = [Requirement(line) for line in (*table["build-system"]["requires"], *project["dependencies"])]
    extras = ["dev"]
    for extra in extras:  # grows
        wanted = [Requirement(line) for line in project["optional-dependencies"][extra]]
        extras += [name for requirement in wanted if requirement.name == "hornbook" for name in requirement.extras]
        lines += wanted
    return [wanted for wanted in lines if wanted.name not in ("hornbook", "torch")]


def locked() -> dict[str, list[Requirement]]:
    """The lines of the lock by name: several where versions of Python need different ones."""
    found: dict[str, list[Requirement]] = {}
    for match in LOCKED.finditer((ROOT / "requirements.lock").read_text(encoding="utf-8")):
        assert match["hashes"], match["requirement"]
        requirement = Requirement(match["requirement"])
        found.setdefault(canonical(requirement.name), []).append(requirement)
    return found


def test_the_lock_has_all_that_the_tests_require_but_pytorch() -> None:
    pins = locked()
    assert "torch" not in pins
    assert not [name for name in pins if name.startswith("nvidia")]
    for wanted in required():
        versions = [str(pin.specifier).removeprefix("==") for pin in pins.get(canonical(wanted.name), [])]
        assert versions, f"{wanted} is not locked: make lock"
        assert all(wanted.specifier.contains(version) for version in versions), (
            f"{wanted}, locked {versions}: make lock"
        )


def write_index(folder: Path, version: str) -> str:
    """An index of packages that has an empty torch of this version."""
    name, files = f"torch-{version}", folder / "torch"
    files.mkdir(parents=True)
    with zipfile.ZipFile(files / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    (files / "index.html").write_text(
        f'<a href="{name.replace("+", "%2B")}-py3-none-any.whl">{name}-py3-none-any.whl</a>'
    )
    return folder.as_uri()


@pytest.mark.slow
def test_pip_decides_where_pytorch_comes_from(tmp_path: Path) -> None:
    """Where PyTorch's index does not answer, the reason is printed and the ordinary index has to do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    ordinary = write_index(tmp_path / "ordinary", TORCH)
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": ordinary}

    def install(folder: str, index: str) -> tuple[str, list[str]]:
        """What was said on standard error, and the torch that is installed."""
        (tmp_path / folder).mkdir()
        words = [
            "make",
            "-f",
            str(ROOT / "Makefile"),
            f"PYTHON={sys.executable}",
            f"TORCH_CPU_INDEX={index}",
            ".venv/base",
        ]
        options = {"cwd": tmp_path / folder, "env": environment, "check": True, "timeout": 120}
        finished = subprocess.run(words, capture_output=True, text=True, **options)
        return finished.stderr, [path.name for path in (tmp_path / folder).glob(".venv/lib/*/site-packages/torch-*")]

    said, installed = install("near", write_index(tmp_path / "cpu", f"{TORCH}+cpu"))
    assert installed == [f"torch-{TORCH}+cpu.dist-info"]
    assert "CUDA" not in said
    nowhere = "http://127.0.0.1:9/whl"
    said, installed = install("far", nowhere)
    assert installed == [f"torch-{TORCH}.dist-info"]
    assert "Connection refused" in said
    assert f"hornbook: pip found no torch at {nowhere}, for the reason above; PyPI's build follows" in said


def test_ci_without_git_says_what_to_install(tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    words = [str(tmp_path / "bash"), str(ROOT / ".ci" / "run")]
    finished = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 1
    assert finished.stderr == "hornbook: .ci/run clones with git, which is not here: apt install git\n"
