"""A disk that fails on either rank while a checkpoint is saved: both say so together, and what is there is sound."""

import json

import pytest
from ranks import PARALLEL, TORCHRUN, python


@pytest.mark.slow
def test_a_disk_that_fails_on_one_rank_commits_nothing_and_both_leave_together(tmp_path):
    done = python(*TORCHRUN, "2", PARALLEL / "fault_ranks.py", tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert len(ranks[0]) == 16
    for first, second in zip(*ranks, strict=True):
        assert first["sound"] and first["steps"] == second["steps"], first
        errors = [first["error"], second["error"]]
        assert (None in errors) == (errors == [None, None]), (first, second)
        if first["steps"] == []:
            assert sorted(error.partition(":")[0] for error in errors) == ["RankError", "StorageError"], errors
    failed = [(case["way"], case["failing"]) for case in ranks[0] if not case["steps"]]
    assert set(failed) == {(way, rank) for way in ("front", "behind") for rank in range(2)}
