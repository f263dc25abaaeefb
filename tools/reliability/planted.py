"""Faults planted by hand, one at a time, in a copy of the tree: the suite must notice each.

As a control, as many trials of each part also run in a copy without a fault, and must pass.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trials import failures, read_outcomes

ROOT = Path(__file__).resolve().parents[2]
_VERDICTS = "planted.jsonl"
KEPT = "kept"
"""The verdict of a control whose trials all pass."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, the part that must notice it, and how many of its trials run."""

    name: str
    file: str
    old: str
    new: str
    part: str
    trials: int

    @property
    def is_stale(self) -> bool:
        """Whether it can no longer be planted."""
        return (ROOT / "src/hornbook" / self.file).read_text(encoding="utf-8").count(self.old) != 1


def read_faults() -> list[Fault]:
    """Return the faults of ``planted.toml``."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [Fault(**entry) for entry in content["fault"]]


def try_faults(faults: list[Fault], results: Path, commit: str) -> int:
    """Try those without a row in the results at this commit, print all verdicts, and return how many are wrong."""
    known = {row["name"]: row for row in read_verdicts(results) if row["commit"] == commit}
    most = {fault.part: fault for fault in sorted(faults, key=lambda fault: fault.trials)}
    controls = [replace(fault, name=f"nothing, {part}", new=fault.old) for part, fault in most.items()]
    for fault in (*faults, *controls):
        if fault.name not in known:
            start = time.monotonic()
            row = {"name": fault.name, "part": fault.part, "verdict": _verdict(fault), "commit": commit}
            known[fault.name] = row | {"seconds": round(time.monotonic() - start, 1)}
            with (results / _VERDICTS).open("a", encoding="utf-8") as log:
                log.write(json.dumps(known[fault.name]) + "\n")
        print(f"{known[fault.name]['verdict']:<8} {fault.part:<13} {fault.name}", flush=True)
    return sum(known[fault.name]["verdict"] not in ("caught", KEPT) for fault in (*faults, *controls))


def read_verdicts(results: Path) -> list[dict[str, Any]]:
    """Return the last row of each fault in a folder of results."""
    file = results / _VERDICTS
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return list({row["name"]: row for row in rows}.values())


def _verdict(fault: Fault) -> str:
    if fault.is_stale:
        return "stale"
    with tempfile.TemporaryDirectory(prefix="hornbook-planted-") as folder:
        for name in ("src", "tools", "tests/helpers"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder, "src/hornbook", fault.file)
        file.write_text(file.read_text(encoding="utf-8").replace(fault.old, fault.new), encoding="utf-8")
        words = f"tools/reliability {fault.part} --trials {fault.trials} --output results --first-failure".split()
        environment = {**os.environ, "PYTHONPATH": str(Path(folder, "src"))}
        done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
        is_caught = "could not be prepared" in done.stderr or failures(
            read_outcomes(Path(folder, "results", f"{fault.part}.jsonl"))
        )
    if done.returncode not in (0, 1) or bool(is_caught) != bool(done.returncode):
        return f"exit {done.returncode}"  # not even a trial ran
    if fault.new == fault.old:
        return "failed" if is_caught else KEPT
    return "caught" if is_caught else "missed"
