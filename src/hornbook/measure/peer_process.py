"""A peer's training step in a process of its own, as a user would start it: with PyTorch's allocator and settings.

::

    this process                      python -m hornbook.measure.peer_process
    {recipe, precision, threads}  ->  builds the peer's model and optimizer
    an empty line                 ->  makes a step
    tokens of the step            <-

In this process, peers have what `hornbook.parallel.device.prepare` gives: freed memory is kept, denormals are zero.
"""

import json
import subprocess
import sys

import torch

from hornbook.config import Recipe, recipe_to_dict
from hornbook.config.build import recipe_from_dict
from hornbook.errors import HornbookError, UserError
from hornbook.measure.peers import transformers_step
from hornbook.measure.throughput import Step
from hornbook.parallel.world import World


def transformers_step_apart(recipe: Recipe, world: World, *, precision: str) -> Step:
    """Return a step that a process of its own makes; it ends with this one.

    Args:
        recipe: as for ``transformers_step``.
        world: gives the device.
        precision: as for ``transformers_step``.

    Raises:
        UserError: the process ends; what it said stands above.
    """
    command = [sys.executable, "-m", "hornbook.measure.peer_process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def ask(line: str) -> int:
        try:
            requests.write(f"{line}\n")
            requests.flush()
            return int(answers.readline())
        except (BrokenPipeError, ValueError) as error:
            raise UserError(
                f"transformers {precision} ended in a process of its own, as said above; to time it in this one alone, "
                "add --peer-processes shared"
            ) from error

    settings = {"precision": precision, "threads": torch.get_num_threads(), "device": str(world.device)}
    ask(json.dumps({"recipe": recipe_to_dict(recipe), **settings}))
    return lambda: ask("")


def serve() -> None:
    """Answer the requests of ``transformers_step_apart`` from standard input until it ends."""
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    world = World(device=torch.device(given["device"]))
    step = transformers_step(recipe_from_dict(given["recipe"]), world, precision=given["precision"])
    _answer(0)
    while sys.stdin.readline():
        _answer(step())


def _answer(tokens: int) -> None:
    sys.stdout.write(f"{tokens}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        serve()
    except HornbookError as error:
        sys.exit(str(error))
