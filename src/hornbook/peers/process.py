"""Run a peer's training steps in a separate process, with PyTorch's default allocator and settings.

::

    this process                      python -m hornbook.peers.process
    {recipe, precision, threads}  ->  builds the peer's model and optimizer
    an empty line                 ->  runs a step
    tokens of the step            <-

In this process, peers would use the settings of `hornbook.parallel.device.prepare`, which keeps freed memory and
flushes denormals.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import torch

from hornbook.config import Recipe, recipe_to_dict
from hornbook.config.build import recipe_from_dict
from hornbook.errors import HornbookError, UserError
from hornbook.measure.throughput import Step
from hornbook.parallel.world import World
from hornbook.peers.transformers import transformers_step


@contextmanager
def transformers_step_apart(recipe: Recipe, world: World, *, precision: str) -> Iterator[Step]:
    """Yield a step that runs in a separate process, which ends with the ``with`` block.

    Args:
        recipe: as for ``transformers_step``.
        world: has the device.
        precision: as for ``transformers_step``.

    Raises:
        UserError: the process ended; it has printed the reason.
    """
    reading, writing = os.pipe()  # since libraries may print to standard output
    command = [sys.executable, "-m", "hornbook.peers.process", str(writing)]
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
        status = process.wait()  # which prints its reason after it has closed the pipe
        reason = "for the reason above" if status >= 0 else f"by {signal.Signals(-status).name}"
        raise UserError(
            f"the process of transformers {precision} ended {reason}; to time it only in this process, add "
            "`peer_processes='shared'`"
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
    """Process the requests of ``transformers_step_apart`` from standard input until it ends."""
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
