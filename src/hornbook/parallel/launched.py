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


def launcher_has_store() -> bool:
    """Tell whether the store of the ranks lies in the process that started them, and not in rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_address() -> str:
    """Return ``host:port`` of the store of the ranks."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
