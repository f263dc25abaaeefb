"""Runs of system A's decoder: cut vocabulary, beginnings of documents, weighted loss, sparse maps."""

from pathlib import Path

import pytest
import tiny_runs
import torch
from ranks import train_on_ranks
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.cli.main import main
from hornbook.config import load_recipe
from hornbook.errors import RecipeError, StoppedBySignal, UserError
from hornbook.run.launch import train
from hornbook.track.metrics import read

SIZES = [
    "--model.num-layers=2",
    "--model.hidden-size=32",
    "--model.num-heads=2",
    "--model.head-size=8",
    "--model.feed-forward-size=64",
    "--model.embedding-size=16",
    "--model.vocab-size=200",
    "--sparsity.block-size=8",
    "--sparsity.density=0.3",
    "--sparsity.update-interval=2",
    "--data.sequence-length=12",
    "--objective.unscored-tokens=4",
    "--training.steps=8",
    "--training.global-batch-size=4",
    "--training.micro-batch-size=2",
    "--schedule.warmup-steps=3",
    "--optimizer.learning-rate=1e-2",
    "--precision.compute=fp32",
    "--checkpoint.every-steps=3",
    "--tracking.log-every-steps=1",
    "--evaluation.every-steps=4",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    build_tiny(folder / "corpus")
    return folder / "corpus"


def run_sparse_gpt(corpus: Path, output: Path, *more: str) -> None:
    resolved = load_recipe("sparse-gpt", [*SIZES, f"--data.train={corpus}", *more])
    train(resolved, output=output / "run", device="cpu", threads=1)


def test_the_recipe_runs_resumes_and_writes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sparse_gpt(corpus, tmp_path / "whole")
    rows = read(tmp_path / "whole/run/metrics.jsonl")
    for row in (row for row in rows if row["kind"] in ("step", "validation")):
        assert row["loss"] == pytest.approx(row["recurrence_weighted"]) and row["causal_lm"] >= row["loss"]
        if row["kind"] == "validation":
            assert row["tokens"] % 8 == 0 and row["bits_per_byte"] is None
    assert any(row["kind"] == "topology" and row["layer"] == "head.projection" for row in rows)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 3)
        with pytest.raises(StoppedBySignal):
            run_sparse_gpt(corpus, tmp_path / "parts")
    run_sparse_gpt(corpus, tmp_path / "parts")
    assert tiny_runs.digest(tmp_path / "parts", 8) == tiny_runs.digest(tmp_path / "whole", 8)

    capsys.readouterr()
    run = str(tmp_path / "whole/run")
    assert main(["generate", run, "--prompt", "The quick", "--output-length", "20", "--device", "cpu"]) == 0
    assert "whole window" not in capsys.readouterr().err
    assert main(["checkpoint", "export", run, "--output", str(tmp_path / "exported")]) == 2
    assert "family 'factorized_gpt' cannot be exported" in capsys.readouterr().err
    assert main(["evaluate", run, "--tasks", "bits_per_byte", "--data", str(corpus), "--device", "cpu"]) == 2
    assert "cut to 200 of" in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_learn_what_one_process_learns(corpus: Path, tmp_path: Path) -> None:
    """A pipeline's numbers are equal bit for bit; data-parallel ranks add up the tied table in another order."""
    table = "--sparsity.embedding-block-size=1"
    run_sparse_gpt(corpus, tmp_path / "one")
    run_sparse_gpt(corpus, tmp_path / "one-table", table)
    words = ["sparse-gpt", *SIZES, f"--data.train={corpus}"]
    pipeline = [*words, "--parallel.pipeline-parallel=2"]
    train_on_ranks(2, {tmp_path / "data": [*words, table], tmp_path / "pipeline": pipeline})
    for expected, ranks in (("one/run", "pipeline"), ("one-table/run", "data")):
        theirs, ours = (
            checkpoint.load(checkpoint.folder_of(tmp_path / folder / "checkpoints", 8)).tensors["model"]
            for folder in (expected, ranks)
        )
        for name, tensor in theirs.items():
            if ranks == "data" and tensor.is_floating_point():
                torch.testing.assert_close(ours[name], tensor, rtol=1e-2, atol=1e-3)
            else:
                assert torch.equal(ours[name], tensor), name


def test_phased_execution_learns_the_same(tmp_path: Path) -> None:
    sizes = ("--model.family=factorized_gpt", "--model.embedding-size=16", "--model.attention-dropout=0.1")
    losses = []
    for execution in ("resident", "phased"):
        tiny_runs.run_tiny(tmp_path / execution, *sizes, f"--memory.execution={execution}")
        rows = read(tmp_path / execution / "run/metrics.jsonl")
        losses.append([row["loss"] for row in rows if row["kind"] == "train"])
    assert len(losses[0]) == 8 and losses[0] == losses[1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--parallel.tensor-parallel=2", "this model does not support tensor parallelism"),
        ("--objective.unscored-tokens=12", "leaves no token to predict in sequences of 12 tokens"),
        ("--model.norm-groups=3", "norm_groups must divide hidden_size, which is 32"),
        ("--model.embedding-size=15", "needs an even embedding_size"),
        ("--model.vocab-size=none", "clamp_tokens requires vocab_size"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(option: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("sparse-gpt", [*SIZES, "--data.train=corpus", option])
    assert any(message in problem for problem in caught.value.problems)
    assert all("\n" not in problem for problem in caught.value.problems)


def test_a_document_mask_does_not_go_with_attention_in_blocks() -> None:
    options = ["--data.train=corpus", "--model.attention-block-size=4", "--data.document-mask"]
    with pytest.raises(RecipeError, match="attention_block_size does not support document_mask"):
        load_recipe("sparse-gpt", [*SIZES, *options])


def test_tokens_beyond_the_vocabulary_are_an_error_unless_they_are_clamped(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.vocab_size is 200, but the training data"):
        run_sparse_gpt(corpus, tmp_path, "--model.clamp-tokens=false")
