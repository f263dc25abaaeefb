"""A run that is saved on one layout goes on, on any other one, with the same samples and the same losses."""

import json

import pytest
from pair_ranks import LAYOUTS, NUM_STEPS, main, train
from ranks import PARALLEL, TORCHRUN, python

from hornbook.parallel.world import World
from hornbook.track.metrics import read


def start(num_ranks, folder, *, saving, resuming):
    """Run the layouts of so many ranks."""
    own = [layout for layout, size in LAYOUTS.items() if size == num_ranks]
    parts = [own if saving else [], own if resuming else []]
    if num_ranks == 1:
        main(folder, *parts, World())
        return
    words = [PARALLEL / "pair_ranks.py", folder, *map(json.dumps, parts)]
    done = python(*TORCHRUN, num_ranks, *words)
    assert done.returncode == 0, done.stderr


def samples(folder):
    """The tokens of each step in the order of the global batch, where micro-batches are dealt round robin."""
    ranks = {}
    for path in folder.glob("given-*.json"):
        number, steps = json.loads(path.read_text())
        assert ranks.setdefault(number, steps) == steps, "ranks of one share of the batch see the same"
    by_step = zip(*[ranks[number] for number in sorted(ranks)], strict=True)
    return [
        [sample for dealt in zip(*shares, strict=True) for batch in dealt for sample in batch] for shares in by_step
    ]


def losses(folder):
    return [row["loss"] for row in read(folder / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.slow
def test_every_layout_resumes_what_every_layout_has_saved(tmp_path):
    """Three starts of ranks in all: those of two save and read, so they come between the two of four."""
    train(tmp_path / "whole", "one process", World())
    start(1, tmp_path, saving=True, resuming=False)
    start(4, tmp_path, saving=True, resuming=False)
    start(2, tmp_path, saving=True, resuming=True)
    start(4, tmp_path, saving=False, resuming=True)
    start(1, tmp_path, saving=False, resuming=True)
    expected_samples, expected_losses = samples(tmp_path / "whole"), losses(tmp_path / "whole")
    assert len(expected_samples) == len(expected_losses) == NUM_STEPS
    for source in LAYOUTS:
        assert samples(tmp_path / source) == expected_samples[: NUM_STEPS // 2]
        for layout in LAYOUTS:
            run = tmp_path / f"{source}, then {layout}"
            assert samples(run) == expected_samples[NUM_STEPS // 2 :], run.name
            assert losses(run) == pytest.approx(expected_losses, rel=1e-6), run.name
