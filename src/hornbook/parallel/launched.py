"""What ``torchrun`` tells a process about itself, read without torch: ``hornbook train --processes`` says the same."""

import os


def is_rank() -> bool:
    """Tell whether this process is a rank that ``torchrun`` or ``--processes`` started."""
    return os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def rank() -> int:
    """Return the number of this rank; 0 for a process on its own."""
    return int(os.environ["RANK"]) if is_rank() else 0


def num_ranks() -> int:
    """Return the number of ranks; 1 for a process on its own."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1
