"""Plant known mistakes, one at a time, and see whether the tests find them.

    python tools/mutations.py                  all of mutations.toml: a night
    python tools/mutations.py optim dropout    those whose file's path contains a word
    python tools/mutations.py --list           only whether each can still be planted: a second

::

    caught     optim/schedules.py:57   (step + 1) / warmup_steps   ->  step / warmup_steps       11 s
    survived   text/cuts.py:51         ...

Every mistake is planted in a temporary copy of the working tree, and its tests, which must pass without it, run there.
A survivor shows a rule of the program that no test of its room depends on: write that test. A stale mistake, whose old
text is not in its file exactly once, must be adapted.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_COPIED: Final = ("src", "tests", "docs", "examples", "tools", "benchmarks")
_PASSED, _FAILED = 0, 1
_LONGEST: Final = 1800.0


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A mistake."""

    file: str
    """Below ``src/hornbook``."""
    old: str
    """Text that occurs once in the file."""
    new: str
    tests: str
    """Paths below ``tests``, of which at least one must fail, separated by blanks."""
    timeout: float = _LONGEST
    """Seconds of the tests after which a mistake that makes them hang counts as caught."""

    @property
    def path(self) -> Path:
        """The file, relative to the root of the tree."""
        return Path("src/hornbook", self.file)

    @property
    def text(self) -> str:
        """The content of the file in the working tree; empty without one."""
        return (ROOT / self.path).read_text(encoding="utf-8") if (ROOT / self.path).exists() else ""

    def __str__(self) -> str:
        """Return the place and the first lines that differ."""
        line = self.text[: self.text.find(self.old)].count("\n") + 1 if self.old in self.text else 0
        old, new = ((part.strip().splitlines() or ["nothing"])[0].strip()[:60] for part in (self.old, self.new))
        return f"{self.file}:{line}   {old}  ->  {new}"


class Tree:
    """A copy of the working tree in which the tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "hornbook"
        for name in _COPIED:
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "built"))
        for path in (path for path in ROOT.iterdir() if path.is_file()):
            shutil.copy2(path, self.root)
        if (shared := ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(shared.resolve())
        self._cache = folder / "cache"
        found = self._python("-c", "import hornbook; print(hornbook.__file__)").stdout.strip()
        assert found.startswith(str(self.root)), f"the tests would import {found}, not the copy"
        self.passes = functools.cache(lambda tests: self.test(tests, is_native=False, timeout=_LONGEST) == _PASSED)

    def verdict(self, mutation: Mutation) -> str:
        """Plant a mistake, run its tests, and remove it again."""
        path = self.root / mutation.path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.count(mutation.old) != 1:
            return "stale"
        if not self.passes(mutation.tests):
            return "unclear"
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        try:
            code = self.test(mutation.tests, is_native="csrc" in path.parts, timeout=mutation.timeout)
        finally:
            path.write_text(text, encoding="utf-8")
        return {_PASSED: "survived", _FAILED: "caught"}.get(code, "unclear")

    def test(self, tests: str, *, is_native: bool, timeout: float) -> int:
        """Return pytest's exit code; tests that hang have failed.

        Args:
            tests: paths below ``tests``.
            is_native: whether the native operators are compiled anew, into a cache of their own.
            timeout: in seconds.
        """
        words = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{path}" for path in tests.split()))
        cache = {"XDG_CACHE_HOME": str(self._cache)} if is_native else {}
        try:
            return self._python(*words, timeout=timeout, **cache).returncode
        except subprocess.TimeoutExpired:
            return _FAILED

    def _python(self, *words: str, timeout: float | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        environment: Mapping[str, str] = {
            **os.environ, "PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1", **variables
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, *words], cwd=self.root, env=environment, capture_output=True, text=True, timeout=timeout
        )


def read(words: list[str]) -> list[Mutation]:
    """Return the mistakes of ``mutations.toml``; if there are ``words``, those whose file's path contains one."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    mutations = [Mutation(**entry) for entry in content["mutation"]]
    return [mutation for mutation in mutations if not words or any(word in mutation.file for word in words)]


def main() -> int:
    """Print a line per mistake, and how many there are of each verdict; return 1 unless all were caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a file's path")
    parser.add_argument("--list", action="store_true", help="only find those that can no longer be planted")
    arguments = parser.parse_args()
    mutations, verdicts = read(arguments.words), Counter[str]()
    if arguments.list:
        stale = [each for each in mutations if each.text.count(each.old) != 1]
        for mutation in stale:
            print(f"stale      {mutation}")
        print(f"{len(mutations)} mistakes, {len(stale)} of them stale")
        return 1 if stale else 0
    with tempfile.TemporaryDirectory(prefix="hornbook-mutations-") as folder:
        tree = Tree(Path(folder))
        for mutation in mutations:
            start = time.monotonic()
            verdict = tree.verdict(mutation)
            verdicts[verdict] += 1
            print(f"{verdict:<10} {mutation}   {time.monotonic() - start:.0f} s", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return 0 if set(verdicts) <= {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
