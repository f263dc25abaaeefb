"""A disk that fails on either rank while a checkpoint is saved: both say so together, and what is there is sound."""

import json

import pytest
from ranks import PARALLEL, TORCHRUN, python


@pytest.mark.slow
def test_a_disk_that_fails_on_one_rank_commits_nothing_and_both_leave_together(tmp_path):
    done = python(*TORCHRUN, "2", PARALLEL / "fault_ranks.py", tmp_path)
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


@pytest.mark.slow
def test_a_rank_that_dies_anywhere_in_a_save_leaves_checkpoints_that_a_resume_takes(tmp_path):
    """Either rank, throughout a save, sharded and in a pipeline, in front of the training and behind it."""
    done = python(PARALLEL / "crash_ranks.py", tmp_path, timeout=1500)
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "cases.json").read_text())
    for case in cases:
        codes = case["codes"]
        assert (codes[case["failing"]], codes[1 - case["failing"]]) == (137, 1), case
        assert case["seconds"] < 60 and case["steps"] in ([2], [2, 4]) and not case["damaged"], case
        assert case["resumed"] == [0, 0] and case["same"], case
    for layout in ("shard", "pipeline"):
        written = [case["weights"] for case in cases if case["layout"] == layout]
        assert len(written[0]) == 4 and all(one == written[0] for one in written), "behind the training as in front"
    tried = {(case["layout"], case["way"], case["failing"]) for case in cases}
    assert len(tried) == 8 and len(cases) > 20
    assert {tuple(case["steps"]) for case in cases if case["failing"] == 0} == {(2,), (2, 4)}
