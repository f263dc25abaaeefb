"""A peer's training step in a process of its own, as a user would start it: with PyTorch's allocator and settings.

::

    this process                      python -m hornbook.measure.peer_process
    {recipe, precision, threads}  ->  builds the peer's model and optimizer
    an empty line                 ->  makes a step
    tokens of the step            <-

In this process, peers have what `hornbook.parallel.device.prepare` gives: freed memory is kept, denormals are zero.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import torch

from hornbook.config import Recipe, recipe_to_dict
from hornbook.config.build import recipe_from_dict
from hornbook.errors import HornbookError, UserError
from hornbook.measure.peers import transformers_step
from hornbook.measure.throughput import Step
from hornbook.parallel.world import World


@contextmanager
def transformers_step_apart(recipe: Recipe, world: World, *, precision: str) -> Iterator[Step]:
    """Give a step that a process of its own makes; it ends with the block.

    Args:
        recipe: as for ``transformers_step``.
        world: gives the device.
        precision: as for ``transformers_step``.

    Raises:
        UserError: the process ended; what it said is above.
    """
    reading, writing = os.pipe()  # standard output may hold what libraries print
    command = [sys.executable, "-m", "hornbook.measure.peer_process", str(writing)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[writing], text=True)
    os.close(writing)
    assert process.stdin is not None

    def ask(line: str) -> int:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        if answer := answers.readline():
            return int(answer)
        raise UserError(
            f"transformers {precision} ended in a process of its own, for the reason above; to time it in this process "
            "alone, add --peer-processes shared"
        )

    settings = {"precision": precision, "threads": torch.get_num_threads(), "device": str(world.device)}
    try:
        with os.fdopen(reading, encoding="ascii") as answers:
            ask(json.dumps({"recipe": recipe_to_dict(recipe), **settings}))
            yield lambda: ask("")
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


def serve(answers: TextIO) -> None:
    """Answer the requests of ``transformers_step_apart`` from standard input until it ends."""
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    world = World(device=torch.device(given["device"]))
    step = transformers_step(recipe_from_dict(given["recipe"]), world, precision=given["precision"])
    answers.write("0\n")
    while sys.stdin.readline():
        answers.write(f"{step()}\n")


if __name__ == "__main__":
    try:
        with os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="ascii") as pipe:
            serve(pipe)
    except HornbookError as error:
        sys.exit(str(error))
