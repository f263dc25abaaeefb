"""Ranks wait for each other at the start: one that does not connect is named, one with another recipe refused."""

import socket
import subprocess
import sys

import pytest
from ranks import environment
from torch._C._distributed_c10d import TCPStore

from hornbook.parallel.rendezvous import report, reported

SCRIPT = """
import sys
from datetime import timedelta
from hornbook.errors import RankError
from hornbook.parallel import launched, rendezvous
rendezvous.ARRIVAL = timedelta(seconds=float(sys.argv[2]))
try:
    place = launched.rank(), launched.num_ranks()
    recipe = {"training": {"seed": int(sys.argv[1])}, "data": {"train": [sys.argv[1]]}}
    rendezvous.meet(rendezvous.open_store(*place), *place, recipe)
except RankError as error:
    print(error.exit_code, error.is_reported, error)
"""


def meet(size, seeds, seconds):
    """Let ranks with these seeds meet; return what each printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(seed), str(seconds)],
            env=environment(RANK=str(rank), **variables),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, seed in enumerate(seeds)
    ]
    return [process.communicate(timeout=600)[0].strip() for process in processes]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named():
    (said,) = meet(2, [1], 2)
    assert said.startswith("1 False rank 1 of 2 did not connect within 2 s: ")


@pytest.mark.slow
def test_a_rank_with_another_recipe_is_refused_by_all_and_named_by_itself():
    """Paths of data may differ; the data themselves are compared once they are open."""
    first, second = meet(2, [1, 2], 60)
    line = "rank 1 of 2 has a different recipe than rank 0: training.seed is 2 instead of 1; start all ranks with"
    assert first.startswith(f"2 True {line}") and second.startswith(f"2 False {line}")


@pytest.mark.slow
def test_ranks_with_one_recipe_meet():
    assert meet(2, [1, 1], 60) == ["", ""]


def test_a_rank_prints_the_error_that_it_reported_however_often_it_asks():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert reported(store, 1) is None
    report(store, 1, "lost rank 0 of 2", 1)
    assert not reported(store, 1).is_reported
    assert reported(store, 0).is_reported
