"""``hornbook profile``: on random tokens and on a corpus, on two ranks, and two profiles side by side."""

import gzip
import json
from pathlib import Path

import pytest
import tiny_runs
from ranks import python
from tiny_text import build_tiny

from hornbook.__main__ import main
from hornbook.track.profile import read_profile

STEPS = ["--steps", "1", "--threads", "1", "--device", "cpu"]


def profile(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, *words: str) -> dict:
    """Profile the tiny recipe with ``--json``."""
    tiny_runs.tiny_recipe(tmp_path)
    command = ["profile", str(tmp_path / "tiny.toml"), "--output", str(tmp_path / name), *STEPS, "--json", *words]
    assert main(command) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def traced(path: Path) -> list[str]:
    """The names of all events of a trace."""
    with gzip.open(path) as trace:
        return [event["name"] for event in json.load(trace)["traceEvents"]]


def test_a_profile_and_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = profile(tmp_path, capsys, "first", "--precision.kernels=torch")
    assert first["step_seconds"] > 0
    assert 0 < first["mfu"] < 1
    assert first["waiting_share"] == 0
    assert first["idle_share"] is None
    names = {module["name"] for module in first["modules"]}
    assert {"embedding", "blocks.0.attention.qkv", "blocks.1.feed_forward.down", "head"} <= names
    assert {"aten::mm", "aten::addmm"} <= {operator["name"] for operator in first["operators"]}
    kept = read_profile(tmp_path / "first")
    weights = next(held.bytes for held in kept.ranks[0].held if held.kind == "weights")
    assert weights >= 4 * (28_224 - 70 * 32)
    ranges = traced(tmp_path / "first" / "trace.json.gz")
    assert {"phase step", "phase data", "phase update"} <= set(ranges)
    assert ranges.count("module embedding") == 2  # two micro-batches
    assert "<!doctype html>" in (tmp_path / "first" / "profile.html").read_text()
    wide = profile(tmp_path, capsys, "wide", "--model.num-layers", "4")
    assert main(["profile", "compare", str(tmp_path / "first"), str(tmp_path / "wide"), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert compared["a"]["step_seconds"] == first["step_seconds"]
    assert compared["b"]["peak_bytes"] == wide["peak_bytes"] > first["peak_bytes"]
    rows = {row["name"]: row for row in compared["modules"]}
    assert rows["blocks.3.attention.qkv"]["a"] == 0 < rows["blocks.3.attention.qkv"]["difference"]


def test_a_corpus_is_read_as_in_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny(tmp_path / "corpus")
    given = ["--data.train", str(tmp_path / "corpus"), "--data.synthetic", "false", "--model.vocab-size", "300"]
    assert profile(tmp_path, capsys, "corpus-profile", *given)["facts"]["data"] == str(tmp_path / "corpus")


def test_ids_beyond_a_cut_vocabulary_are_read_as_in_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny(tmp_path / "corpus")
    words = "--model.num-layers=1 --model.hidden-size=32 --model.num-heads=2 --model.embedding-size=16"
    words += " --model.max-positions=16 --data.sequence-length=16 --model.vocab-size=40 --model.clamp-tokens=true"
    words += " --objective.unscored-tokens=2 --training.global-batch-size=4 --training.micro-batch-size=2"
    words += (
        f" --sparsity.block-size=4 --data.windows=stream --data.train={tmp_path / 'corpus'} --precision.compute=fp32"
    )
    output = ["--steps", "1", "--threads", "1", "--output", str(tmp_path / "cut"), "--json"]
    assert main(["profile", "sparse-gpt", *words.split(), *output]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "only-one"], "takes two profiles; found 1"),
        (["compare", "a", "b"], "a: no profile"),
        (["demo", "more"], "unexpected argument 'more'"),
        (["bert-tiny", "--objective.name", "classification"], "--objective.name mlm"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--parallel.pipeline-parallel=2", "--parallel.data-parallel=shard"])
def test_two_ranks(tmp_path: Path, layout: str) -> None:
    tiny_runs.tiny_recipe(tmp_path)
    words = ("profile", tmp_path / "tiny.toml", "--output", tmp_path / "two", "--steps", 1, "--device", "cpu")
    done = python("-m", "hornbook", *words, "--processes", 2, layout, "--json")
    assert done.returncode == 0, done.stderr
    assert "USDT" not in done.stderr, "PyTorch's profiler logs its start and stop there"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["waiting_share"] > 0
    assert (found["idle_share"] is not None) == ("pipeline" in layout)
    kept = read_profile(tmp_path / "two")
    assert len(kept.ranks) == 2
    for rank in kept.ranks:
        assert {"phase step", "phase update", "waiting for ranks"} <= set(traced(tmp_path / "two" / rank.trace))
    names = [module.name for module in kept.modules]
    assert len(names) == len(set(names))
    assert {"embedding", "blocks.0.attention", "blocks.1.attention", "head"} <= set(names)
