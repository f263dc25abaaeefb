"""What do more workers of a corpus build gain? The same build by 1, 2, ... workers, in turns.

::

    python benchmarks/corpus_workers.py web/*.jsonl --tokenizer tokenizers/mine --folder built -- --min-words 50

A row for each build: the processor time of the parent and of each worker, the time on the clock, and the most memory
of a process. "By CPU" is the processor time of the first build, divided by that of the parent and the busiest worker:
what a build gains in which each process has one core, and which other work on the machine hardly changes. "By clock"
is less where one process already keeps more than one core busy. All corpora must have the same bytes.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from hornbook.storage import remove_tree

_POLL_SECONDS = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """What a build and its processes used.

    Attributes:
        wall: seconds on the clock.
        parent: processor time of the process that was started, in seconds.
        workers: that of each process that it started.
        mib: the most memory that one of the processes held.
    """

    wall: float = 0.0
    parent: float = 0.0
    workers: dict[int, float] = field(default_factory=dict)
    mib: float = 0.0

    @property
    def longest(self) -> float:
        """The processor time of the parent and the busiest worker, in seconds."""
        return self.parent + max(self.workers.values(), default=0.0)

    def look_at(self, parent: int) -> None:
        """Note what a running build and its processes have used so far."""
        for pid in (parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())):
            try:
                values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                peak = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if not peak:  # it has just ended
                continue
            seconds = (int(values[11]) + int(values[12])) / _TICKS
            self.mib = max(self.mib, int(peak[0]) / 1024)
            if pid == parent:
                self.parent = seconds
            else:
                self.workers[pid] = seconds


def measure(words: list[str]) -> Usage:
    """Run a build and return what it used. Raises SystemExit if it failed."""
    usage, start = Usage(), time.monotonic()
    command = [sys.executable, "-m", "hornbook", "corpus", "build", *words, "--json"]
    with TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as build:
            while build.poll() is None:
                usage.look_at(build.pid)
                time.sleep(_POLL_SECONDS)
        if build.returncode:
            errors.seek(0)
            raise SystemExit(f"the build failed: {errors.read().decode().strip()}")
    usage.wall = time.monotonic() - start
    return usage


def digest(folder: Path) -> str:
    """Return a hash of all files of a corpus."""
    hasher = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        hasher.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            hasher.update(hashlib.file_digest(file, "sha256").digest())
    return hasher.hexdigest()


def main() -> None:
    """Build in turns and print a row for each build."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the corpora, which are removed")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="the first is compared with the others")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    given, options = parser.parse_args(own), sys.argv[len(own) + 2 :]
    megabytes, found = sum(Path(name).stat().st_size for name in given.inputs) / 1e6, set()
    print("| workers | CPU s: parent, workers | s on the clock | MB a CPU s | MiB | by CPU | by clock |")
    print("|---|---|---|---|---|---|---|")
    for _ in range(given.rounds):
        first = None
        for workers in given.workers:
            output = given.folder / f"workers-{workers}"
            remove_tree(output)
            shared = ["--tokenizer", given.tokenizer, "--threads", str(max(given.threads, workers))]
            usage = measure([*given.inputs, *shared, "--workers", str(workers), "--output", str(output), *options])
            first = first or usage
            found.add(digest(output))
            remove_tree(output)
            each = [usage.parent, *sorted(usage.workers.values())]
            seconds = ", ".join(f"{value:.1f}" for value in each)
            print(
                f"| {workers} | {seconds} | {usage.wall:.1f} | {megabytes / sum(each):.2f} | {usage.mib:.0f} | "
                f"{first.longest / usage.longest:.2f} | {first.wall / usage.wall:.2f} |",
                flush=True,
            )
    if len(found) > 1:
        raise SystemExit("the corpora differ")
    print(f"\n{megabytes:.1f} MB of files; all corpora have the hash {found.pop()}")


if __name__ == "__main__":
    main()
