"""The rendezvous of ranks in a shared store: they wait for each other, compare recipes and report errors.

::

    rank 0..n-1 --"here 3": its recipe--> store      all wait for all, and then compare
    rank 3      --"error": its line-----> store      the first rank that fails prints its error; the others are silent

The store is in the launcher of the ranks (``torchrun``, ``hornbook train --processes``), or in rank 0 if there is none,
as with ``srun python``.
"""

import json
import os
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from hornbook.errors import HornbookError, RankError, UserError

ARRIVAL = timedelta(minutes=5)
"""Maximum time to wait for the other ranks."""
LAUNCHER = -1
"""The rank number of the process that started the ranks."""
_ERROR = "error"


def launcher_has_store() -> bool:
    """Return whether the store is in the launcher rather than in rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_address() -> str:
    """Return ``host:port`` of the store of the ranks."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def open_store(rank: int, size: int) -> Store:
    """Connect to the store as one of ``size`` ranks, and return the part for this start.

    Raises:
        HornbookError: the store does not answer within ``ARRIVAL``.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    in_launcher = launcher_has_store()
    try:
        store = TCPStore(
            address,
            port,
            size,
            is_master=rank == 0 and not in_launcher,
            timeout=ARRIVAL,
            wait_for_workers=False,
            multi_tenant=not in_launcher,
        )
    except dist.DistError as error:
        raise HornbookError(
            f"rank {rank} cannot reach the other ranks at {store_address()} within "
            f"{ARRIVAL.total_seconds():.0f} s: check that rank 0 has started and that its port is open"
        ) from error
    return start_of(store, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def start_of(store: Store, restart: str) -> Store:
    """Return the part of a store for one start, so that a restart does not see entries of earlier ranks."""
    return PrefixStore(f"start {restart}", store)


def meet(store: Store, rank: int, size: int, recipe: Mapping[str, object]) -> None:
    """Wait for all ranks, and raise on all of them if one has a different recipe than rank 0.

    Raises:
        RankError: a rank did not connect within ``ARRIVAL``, or has a different recipe.
    """
    _arrive(store, rank, size, "here", json.dumps(recipe))
    other = _difference(json.loads(store.get("here 0")), dict(recipe))
    _arrive(store, rank, size, "compared", other)
    problems = [str(store.get(f"compared {number}"), "utf-8") for number in range(size)]
    different = next((number for number, problem in enumerate(problems) if problem), None)
    if different is not None:
        if rank == 0:  # which may hold the store, so it leaves last
            store.wait([f"compared all {number}" for number in range(1, size)], ARRIVAL)
        else:
            store.set(f"compared all {rank}", "")
        line = (
            f"rank {different} of {size} has a different recipe than rank 0: {problems[different]}; start all ranks "
            "with the same command and the same files"
        )
        raise RankError(line, UserError.exit_code, is_reported=rank != different)


def _arrive(store: Store, rank: int, size: int, key: str, value: str) -> None:
    store.set(f"{key} {rank}", value)
    try:
        store.wait([f"{key} {number}" for number in range(size)], ARRIVAL)
    except dist.DistError as error:
        missing = [number for number in range(size) if not store.check([f"{key} {number}"])]
        line = (
            f"{named(missing, size)} did not connect within {ARRIVAL.total_seconds():.0f} s: check that all nodes run "
            "the same command and reach each other"
        )
        raise report(store, rank, line, HornbookError.exit_code) from error


def _difference(first: Mapping[str, object], own: Mapping[str, object]) -> str:
    """Return the first difference between the recipes of this rank and rank 0, or "".

    Paths of data may differ, since nodes may have local copies; the data are compared later.
    """
    for section in sorted({*first, *own}):
        theirs, mine = first.get(section), own.get(section)
        if not (isinstance(theirs, dict) and isinstance(mine, dict)):
            theirs, mine = {"": theirs}, {"": mine}
        for key in sorted({*theirs, *mine}):
            name = f"{section}.{key}".rstrip(".")
            # compared as JSON, since tuples have become lists
            if name not in _LOCAL and json.dumps(theirs.get(key)) != json.dumps(mine.get(key)):
                return f"{name} is {json.dumps(mine.get(key))} instead of {json.dumps(theirs.get(key))}"
    return ""


_LOCAL = ("data.train", "data.validation", "data.tokenizer", "data.cache")


def report(store: Store, rank: int, line: str, exit_code: int) -> RankError:
    """Report an error to all ranks and return the one to raise: ``line``, or that of the first rank that reported."""
    error = json.dumps({"rank": rank, "line": line, "exit_code": exit_code})
    first = json.loads(store.compare_set(_ERROR, "", error))
    return RankError(first["line"], first["exit_code"], is_reported=first["rank"] != rank)


def reported(store: Store, rank: int) -> RankError | None:
    """Return the error that a rank reported, if any; ``rank`` prints it if that was its own."""
    if not store.check([_ERROR]):
        return None
    error = json.loads(store.get(_ERROR))
    return RankError(error["line"], error["exit_code"], is_reported=error["rank"] != rank)


def named(ranks: list[int], size: int) -> str:
    """Return the ranks as text: ``rank 1 of 4``, ``ranks 1, 2 of 4``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} of {size}"
