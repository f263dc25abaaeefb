"""Histograms of weights and gradients: right, equal on several ranks, and without an effect on the training."""

import json
from pathlib import Path

import pytest
import tiny_runs
import torch
from cases import mostly_slow
from ranks import TORCHRUN, python
from recording_tracker import OPENED
from safetensors.torch import load_file
from tiny_text import build_tiny

from hornbook.errors import RecipeError
from hornbook.run.histograms import NUM_BINS

TRACKED = ("--tracking.trackers=recording", "--tracking.histogram-every-steps=3")


@pytest.mark.parametrize(
    "options",
    mostly_slow(
        [
            (("--memory.execution=phased",),),
            (("--precision.weights=bf16", "--precision.second-moment=fp16"),),
            ((),),
        ]
    ),
)
def test_histograms_change_no_number(tmp_path: Path, options: tuple[str, ...]) -> None:
    tiny_runs.run_tiny(tmp_path / "plain", *options)
    tiny_runs.run_tiny(tmp_path / "tracked", *options, *TRACKED)
    assert tiny_runs.digest(tmp_path / "tracked", 8) == tiny_runs.digest(tmp_path / "plain", 8)
    assert sorted(OPENED[-1].of_kind("histograms")) == [3, 6, 8]


def test_histograms_are_those_of_the_weights_before_the_update(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, *TRACKED, "--tracking.histogram-every-steps=7")
    weights = load_file(tmp_path / "run" / "checkpoints" / "step-00000006" / "model-00000.safetensors")
    found = OPENED[-1].of_kind("histograms")[7]
    assert {name.partition("/")[0] for name in found} == {"weight", "gradient"}
    for name, values in weights.items():
        histogram = found[f"weight/{name}"]
        edges = (histogram.edges[0], histogram.edges[-1])
        if values.min() < values.max():
            assert edges == (values.min().item(), values.max().item())
        assert histogram.counts == torch.histc(values.flatten(), NUM_BINS, *edges).long().tolist()
        assert sum(found[f"gradient/{name}"].counts) == values.numel()


def test_a_text_reaches_the_trackers(tmp_path: Path) -> None:
    build_tiny(tmp_path / "corpus")
    given = (f"--data.train={tmp_path / 'corpus'}", "--data.synthetic=false", "--model.vocab-size=300")
    tiny_runs.run_tiny(tmp_path, *given, *TRACKED, "--tracking.sample-every-steps=8")
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert OPENED[-1].of_kind("sample") == {8: row["text"]}


def test_histograms_without_trackers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="histogram_every_steps has no effect without trackers"):
        tiny_runs.tiny_recipe(tmp_path, "--tracking.histogram-every-steps=3")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--parallel.pipeline-parallel=2", "--parallel.data-parallel=shard"])
def test_two_ranks_give_the_histograms_of_one(tmp_path: Path, layout: str) -> None:
    """Rank 0 alone has trackers; it has the counts of both."""
    tiny_runs.tiny_recipe(tmp_path)
    script = tmp_path / "json_tracker.py"
    page = Path(__file__).parents[2] / "docs" / "extend.md"
    script.write_text(page.read_text().partition("`json_tracker.py`:\n\n```python\n")[2].partition("```")[0])
    words = (script, "train", tmp_path / "tiny.toml", "--device", "cpu", "--training.steps=2")
    tracked = ("--tracking.trackers=json", "--tracking.histogram-every-steps=1")
    for name, launcher, more in (("one", (), ()), ("two", (*TORCHRUN, 2), (layout,))):
        done = python(*launcher, *words, *tracked, "--output", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
    one, two = (histograms_in(tmp_path / name / "tracked.jsonl") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, (edges, counts) in one.items():
        if name.startswith("weight"):
            assert two[name] == [edges, counts]
        assert sum(two[name][1]) == sum(counts)
        assert two[name][0] == pytest.approx(edges, rel=1e-4)


def histograms_in(log: Path) -> dict[str, list[list[float]]]:
    """Those of step 1, of the only tracker that wrote."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["event"] for entry in entries].count("opened") == 1
    (found,) = [entry["histograms"] for entry in entries if entry["event"] == "histograms" and entry["step"] == 1]
    return found
