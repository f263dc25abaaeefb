"""Crashes of either rank of two at operations on the disk throughout a save: ``crash_ranks.py FOLDER``.

Each case forks two ranks, of which one dies at the n-th operation of the second save; then two that resume. What became
of each goes to ``FOLDER/cases.json``; see test_saving_ranks.py. The store lies in rank 0, so it may die as well.
"""

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import lost_rank  # noqa: F401  # faster heartbeats
import torch
import torch.distributed.fsdp  # here, so that forked ranks need not
import torch.distributed.pipelining
import torch.distributed.tensor
from uneven_ranks import TINY

from hornbook import checkpoint
from hornbook.config import load_recipe
from hornbook.errors import HornbookError
from hornbook.parallel.world import World
from hornbook.run.launch import open_run
from hornbook.run.loop import train_until_done
from hornbook.run.saving import Saved, Saver, Snapshot
from hornbook.storage import faults

OPTIONS = ("--training.micro-batch-size=1", "--training.steps=4", "--checkpoint.every-steps=2", "--model.num-layers=1")
LAYOUTS = {
    "shard": ("--parallel.data-parallel=shard",),
    "pipeline": ("--parallel.pipeline-parallel=2", "--parallel.layers-per-stage=0,1"),
}
WAYS = {"front": (), "behind": ("--checkpoint.background",)}
EVERY = {("shard", "front"): 1}
"""Which operations are tried, of those that make, sync, rename or remove a file; every eighth otherwise."""


def train(folder: Path, words: tuple[str, ...]) -> None:
    """Train to the end, as one rank."""
    recipe = load_recipe("demo", (*TINY, *OPTIONS, *words)).recipe
    world = World.join(torch.device("cpu"), recipe.parallel)
    with world.session(), open_run(recipe, folder, world) as run:
        train_until_done(run)


def at_second_save(enter: Callable[[], object]) -> None:
    """Let the save of step 4 be inside of the context that ``enter`` returns."""
    save = Saver._save

    def save_inside(self: Saver, snapshot: Snapshot) -> Saved:
        with enter() if snapshot.contents.step == 4 else nullcontext():
            return save(self, snapshot)

    Saver._save = save_inside


def start(folder: Path, words: tuple[str, ...], prepare: Callable[[int], None]) -> tuple[list[int], float]:
    """Fork two ranks; return their exit codes and the seconds between the end of the first and that of the last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = {}
    for rank in range(2):
        child = os.fork()
        if child == 0:
            status = 70
            try:
                own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
                os.environ |= {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}
                prepare(rank)
                train(folder, words)
                status = 0
            except HornbookError as error:
                status = error.exit_code
            finally:
                os._exit(status)
        running[child] = rank
    codes, ends = [0, 0], []
    while running:
        child, status = os.wait()
        codes[running.pop(child)] = os.waitstatus_to_exitcode(status)
        ends.append(time.monotonic())
    return codes, ends[-1] - ends[0]


def weights(folder: Path) -> dict[str, str]:
    path = checkpoint.folder_of(folder / "checkpoints", 4)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.glob("*.safetensors"))}


def count(folder: Path) -> Callable[[int], None]:
    """Prepare ranks that write which operations their second save takes."""

    def prepare(rank: int) -> None:
        save = Saver._save

        def save_and_count(self: Saver, snapshot: Snapshot) -> Saved:
            with faults.count_operations() as operations:
                saved = save(self, snapshot)
            points = [n for n, operation in enumerate(operations, 1) if operation.name != "write"]
            (folder / f"operations-{rank}").write_text(json.dumps(points))
            return saved

        Saver._save = save_and_count

    return prepare


def cases(folder: Path) -> Iterator[dict[str, object]]:
    """Crash, look, resume."""
    for layout, of_layout in LAYOUTS.items():
        for way, of_way in WAYS.items():
            base, words = folder / f"{layout}-{way}", (*of_layout, *of_way)
            base.mkdir()
            assert start(base / "whole", words, count(base))[0] == [0, 0]
            for failing in range(2):
                operations = json.loads((base / f"operations-{failing}").read_text())
                for n in operations[:: EVERY.get((layout, way), 8)]:
                    run = base / f"{failing}-{n}"

                    def prepare(rank: int, failing: int = failing, n: int = n) -> None:
                        if rank == failing:
                            at_second_save(lambda: faults.inject("any", n, "crash-before"))

                    codes, seconds = start(run, words, prepare)
                    steps = checkpoint.steps_in(run / "checkpoints")
                    damaged = [s for s in steps if checkpoint.verify(checkpoint.folder_of(run / "checkpoints", s))]
                    resumed, _ = start(run, words, lambda rank: None)
                    same = weights(run) == weights(base / "whole") != {}
                    yield {
                        "layout": layout,
                        "way": way,
                        "failing": failing,
                        "n": n,
                        "codes": codes,
                        "seconds": seconds,
                        "steps": steps,
                        "damaged": damaged,
                        "weights": weights(base / "whole"),
                        "resumed": resumed,
                        "same": same,
                    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    (place / "cases.json").write_text(json.dumps(list(cases(place))))
