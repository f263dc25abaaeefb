"""What ``torchrun`` tells a process about itself, read without torch: ``hornbook train --processes`` says the same."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hornbook.errors import HornbookError, RankError


def is_rank() -> bool:
    """Tell whether this process is a rank that ``torchrun`` or ``--processes`` started."""
    return os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def rank() -> int:
    """Return the number of this rank; 0 for a process on its own."""
    return int(os.environ["RANK"]) if is_rank() else 0


def num_ranks() -> int:
    """Return the number of ranks; 1 for a process on its own."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


@contextmanager
def told_once() -> Iterator[None]:
    """Let one rank alone print an error of the block, which comes before the ranks have met.

    For a store in rank 0 it is too early; each rank then prints its own line.
    """
    try:
        yield
    except HornbookError as error:
        if not is_rank() or isinstance(error, RankError) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise
        from hornbook.parallel.meeting import open_store, tell

        line = f"rank {rank()} of {num_ranks()}: {error}"
        raise tell(open_store(), rank(), line, error.exit_code) from error
