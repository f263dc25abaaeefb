"""Errors that come before the ranks have met, printed once although all ranks find them."""

from collections.abc import Iterator
from contextlib import contextmanager

from hornbook.errors import HornbookError, RankError
from hornbook.parallel.launched import is_rank, launcher_has_store, num_ranks, rank


@contextmanager
def told_once() -> Iterator[None]:
    """Let one rank alone print an error of the block, which comes before the ranks have met.

    For a store in rank 0 it is too early; each rank then prints its own line.
    """
    try:
        yield
    except HornbookError as error:
        if not is_rank() or isinstance(error, RankError) or not launcher_has_store():
            raise
        from hornbook.parallel.meeting import open_store, tell  # imports torch

        line = f"rank {rank()} of {num_ranks()}: {error}"
        raise tell(open_store(), rank(), line, error.exit_code) from error
