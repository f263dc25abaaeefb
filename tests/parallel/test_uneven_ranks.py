"""What happens on one rank of two is agreed upon by both: nobody waits for the other in vain."""

import json

import pytest
import torch
import uneven_ranks
from ranks import fork_ranks
from safetensors.torch import load_file
from tiny import distance

from hornbook.parallel.world import World
from hornbook.track.metrics import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "stderr").write_text(fork_ranks(2, uneven_ranks.main, folder), encoding="utf-8")
    return folder


@pytest.fixture
def ranks(folder):
    """What each of them saw."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_parts_that_a_rank_had_nothing_for_are_trained_as_in_one_process(folder):
    """Also where no rank had anything for them: what has no gradient stays as it is, without decay."""
    alone = uneven_ranks.train_with_gaps(World())
    for step, expected in enumerate(alone):
        first, second = (load_file(folder / f"{rank}-{step}.safetensors") for rank in range(2))
        assert distance(expected, first) < 1e-6
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    _, before, after = (load_file(folder / f"0-{step}.safetensors") for step in range(3))
    unchanged = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert "model/blocks.0.attention.qkv.weight" in unchanged
    assert unchanged == {name for name in before if torch.equal(alone[1][name], alone[2][name])} < set(before)


def test_a_task_whose_data_one_rank_misses_at_the_start_is_refused_by_all(ranks):
    assert [rank["start"] for rank in ranks] == [
        "UserError: the tasks of the recipe cannot be run: rank 1 cannot read the data; all ranks need access to it",
        "StorageError: cannot read the data",
    ]


def test_a_rank_with_other_data_is_refused_by_all_and_named_by_itself(folder, ranks):
    """The same data may lie elsewhere on each rank."""
    line = "rank 1 of 2: the data differ from those of rank 0; start all ranks with the same data"
    assert [rank["other_data"] for rank in ranks] == [
        ["it began", f"2 RankError: {line}"],
        ["it began", f"2 UserError: {line}"],
    ]
    assert [path.name for path in (folder / "other_data").iterdir()] == ["0"]


def test_a_task_whose_data_one_rank_misses_is_left_out_by_all(folder, ranks):
    assert [rank["data"] for rank in ranks] == 2 * [{"step": 8, "error": None}]
    rows = [row for row in read(folder / "data" / "metrics.jsonl") if row["kind"] == "task"]
    assert [(row["step"], row["value"]) for row in rows] == [(6, 2.0), (8, 2.0)]
    said = " ".join((folder / "stderr").read_text().split())
    assert "task together failed, training continues: rank 1 cannot read the data" in said


def test_weights_that_are_not_finite_on_one_rank_end_the_run_on_all(ranks):
    for rank, kind in zip(ranks, ("DivergedError", "RankError"), strict=True):
        assert rank["weights"]["step"] == 6
        assert rank["weights"]["error"].startswith(f"{kind}: weights are not finite after step 6")


def test_ranks_that_verify_a_share_each_agree_on_the_checkpoint_to_resume_from(folder, ranks):
    assert [rank["resumed"] for rank in ranks] == 2 * [{"step": 6, "error": None, "found_by": [0, 1]}]
    said = " ".join((folder / "stderr").read_text().split())
    assert "step-00000008 is damaged and skipped: optimizer-00000.safetensors has 7 bytes" in said


def test_a_start_that_the_first_rank_rejects_is_told_by_that_rank(ranks):
    (kind, line, agreed), second = (rank["extended"] for rank in ranks)
    assert (kind, agreed) == ("UserError", True)
    assert line.startswith("the learning rate was ")
    assert second == ["RankError", "rank 0 rejected this start", True], "printed by nobody"


def test_a_disk_that_stays_full_ends_the_run_on_all_ranks(ranks):
    assert [rank["disk"]["step"] for rank in ranks] == [8, 8]
    assert [rank["disk"]["error"] for rank in ranks] == [
        "StorageError: the disk is full",
        "RankError: rank 0 could not save a checkpoint; see its error",
    ]


def test_a_rank_that_cannot_write_its_part_ends_the_run_on_all_and_leaves_no_checkpoint(folder, ranks):
    assert [rank["second_disk"] for rank in ranks] == [
        {"step": 8, "error": "RankError: rank 1 could not save its part of the checkpoint; see its error"},
        {"step": 8, "error": "StorageError: the disk is full"},
    ]
    assert not list(folder.glob("second_disk/checkpoints/*"))


def test_ranks_wait_for_the_first_longer_than_for_a_sum(ranks):
    assert min(rank["waited"] for rank in ranks) > uneven_ranks.PATIENCE.total_seconds()
