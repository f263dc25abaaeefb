"""Runs with block-sparse linear maps: resumes, ranks, and what one does with a trained model."""

import json
import re
from pathlib import Path

import pytest
import tiny_runs
import torch
from ranks import train_on_ranks
from tiny_encoder_runs import build_sentences, encoder, on_corpus
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.cli.main import main
from hornbook.errors import CheckpointError, StoppedBySignal, UserError
from hornbook.exchange.restore import load_model
from hornbook.model.sparse_layers import sparse_layers
from hornbook.ops.native.block_sparse import newest_form
from hornbook.ops.native.cache import BuildError
from hornbook.ops.native.kernels import BLOCKS, PYTORCH, Form, load
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train
from hornbook.storage.json_files import read_json
from hornbook.track.metrics import read

SPARSE = ("--sparsity.linears=blocks.*", "--sparsity.density=0.3", "--sparsity.block-size=8")
MOVING = (*SPARSE, "--sparsity.update=rigl", "--sparsity.update-interval=2", "--sparsity.stop-fraction=0.9")
CPU = torch.device("cpu")


def tensors(folder: Path, step: int = 8) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint of the run in ``folder``."""
    contents = checkpoint.load(checkpoint.folder_of(folder / "checkpoints", step))
    return {f"{group}/{name}": tensor for group, found in contents.tensors.items() for name, tensor in found.items()}


@pytest.mark.parametrize(
    ("update", "table", "optimizer"),
    [
        ("rigl_sample", "4", "adamw"),
        ("rigl", "4", "muon"),
        pytest.param("rigl", "none", "adamw", marks=pytest.mark.slow),
        pytest.param("random", "none", "adamw", marks=pytest.mark.slow),
    ],
)
def test_a_resume_across_an_update_of_the_pattern_is_bit_equal(
    update: str, table: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = (*MOVING, f"--sparsity.update={update}", f"--sparsity.embedding-block-size={table}")
    overrides += (f"--optimizer.name={optimizer}",)
    tiny_runs.run_tiny(tmp_path / "whole", *overrides)
    for step in (3, 4):  # before and after the second update
        with monkeypatch.context() as patch:
            tiny_runs.stop_after(patch, step)
            with pytest.raises(StoppedBySignal):
                tiny_runs.run_tiny(tmp_path / "parts", *overrides)
    tiny_runs.run_tiny(tmp_path / "parts", *overrides)
    assert tiny_runs.digest(tmp_path / "parts", 8) == tiny_runs.digest(tmp_path / "whole", 8)
    rows = tiny_runs.metrics_without_time(tmp_path / "whole")
    assert tiny_runs.metrics_without_time(tmp_path / "parts") == rows
    assert "Block-sparse patterns" in (tmp_path / "whole" / "run" / "report.html").read_text()
    logged = [row for row in rows if row["kind"] == "topology"]
    started, moved = ([row for row in logged if (row["step"] > 0) == late] for late in (False, True))
    assert {row["layer"] for row in started} == {row["layer"] for row in moved}
    assert all(row["tried"] == row["density"] and row["pruned"] == 0 and row["pattern"] for row in started)
    assert {row["step"] for row in moved} == {2, 4, 6} and len({row["layer"] for row in moved}) == 8 + (table != "none")
    for row in moved:
        assert len(row["pattern"]) <= 32 and any(set(line) - {"0"} for line in row["pattern"])
        assert row["tried"] > row["density"] and row["pruned"] > 0
        assert ("score_mean" in row) == (update != "random")


BF16 = (*MOVING, "--precision.compute=bf16")
ON_TWO_RANKS = {
    "data": MOVING,
    "pipeline": (*MOVING, "--parallel.pipeline-parallel=2"),
    "bf16 auto": (*BF16, "--sparsity.kernel=auto"),
    "bf16 torch": (*BF16, "--sparsity.kernel=torch"),
}


def fixed() -> str:
    """The operators of runs that are compared, since ``auto`` takes what it measured to be faster."""
    return f"--precision.kernels={'torch' if isinstance(load(), BuildError) else 'native'}"


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of two ranks, ``ON_TWO_RANKS``, which are started once."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_runs.tiny_recipe(folder)
    runs = {folder / name: (folder / "tiny.toml", *options, fixed()) for name, options in ON_TWO_RANKS.items()}
    train_on_ranks(2, runs)
    return folder


@pytest.mark.parametrize("layout", ["data", "pipeline"])
def test_ranks_choose_the_pattern_that_one_process_chooses(layout: str, on_two_ranks: Path, tmp_path: Path) -> None:
    """A pipeline's numbers are equal bit for bit; data-parallel ranks add up the tied table in another order."""
    tiny_runs.run_tiny(tmp_path / "one", *MOVING, fixed())
    two = on_two_ranks / layout
    found, expected = tensors(two), tensors(tmp_path / "one" / "run")
    assert found.keys() == expected.keys() and any(name.endswith("grown_at") for name in found)
    for name, tensor in expected.items():
        if layout == "pipeline" or not tensor.is_floating_point():
            assert torch.equal(found[name], tensor), name
        else:
            torch.testing.assert_close(found[name], tensor, rtol=1e-2, atol=1e-3)
    logs = [
        [row for row in read(path / "metrics.jsonl") if row["kind"] == "topology"]
        for path in (two, tmp_path / "one" / "run")
    ]
    assert logs[1] and [row.keys() for row in logs[0]] == [row.keys() for row in logs[1]]
    for ours, theirs in zip(*logs, strict=True):
        assert ours == {
            key: pytest.approx(value, rel=1e-4) if isinstance(value, float) else value for key, value in theirs.items()
        }


def test_commands_take_a_sparse_model_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus"
    build_tiny(corpus)
    words = """--data.synthetic=false --model.vocab-size=none --tracking.sample-every-steps=4
        --data.max-samples=40 --training.steps=4 --sparsity.kernel=torch"""
    run = tmp_path / "run"
    tiny_runs.run_tiny(tmp_path, *MOVING, *words.split(), f"--data.train={corpus}", f"--data.validation={corpus}")
    said = capsys.readouterr()
    assert re.search(
        r"blocks +8 linear layers, 3\d\.\d% of 24,576 weights in blocks of 8; kernel torch: as asked",
        said.err + said.out,
    )

    assert main(["generate", str(run), "--prompt", "The", "--output-length", "5", "--device", "cpu", "--json"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "export", str(run), "--output", str(tmp_path / "exported")]) == 0
    ours, theirs = (load_model(path, CPU, compute="fp32").model for path in (run, tmp_path / "exported"))
    assert len(sparse_layers(ours)) == 8 and not sparse_layers(theirs)
    batch = {name: torch.arange(8).view(1, 8) for name in ("tokens", "positions", "keys")}
    with torch.no_grad():
        logits = [model(lambda head, x_BTD, batch: head.logits(x_BTD), batch) for model in (ours, theirs)]
    torch.testing.assert_close(logits[0], logits[1])


def test_another_block_size_is_refused_in_one_line(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, *SPARSE)
    with pytest.raises(UserError, match=r"sparsity\.block_size was 8 and is now 4") as caught:
        tiny_runs.run_tiny(tmp_path, *SPARSE, "--sparsity.block-size=4")
    assert "\n" not in str(caught.value)
    resolved = tiny_runs.tiny_recipe(tmp_path, *SPARSE, "--sparsity.block-size=4")
    with pytest.raises(CheckpointError, match=r"sparsity\.block_size 8 there and 4 here") as other:
        train(
            resolved, output=tmp_path / "new", device="cpu", threads=1, init_from=InitFrom(source=str(tmp_path / "run"))
        )
    assert "\n" not in str(other.value)


def test_a_start_from_sparse_weights_counts_ages_with_the_moments(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, *MOVING)
    resolved = tiny_runs.tiny_recipe(tmp_path, *SPARSE, "--training.steps=1")
    for keeps in (False, True):
        origin = InitFrom(source=str(tmp_path / "run"), keep_optimizer=keeps)
        train(resolved, output=tmp_path / str(keeps), device="cpu", threads=1, init_from=origin)
        found, before = tensors(tmp_path / str(keeps), 1), tensors(tmp_path / "run")
        ages = {name: tensor for name, tensor in found.items() if name.endswith("grown_at")}
        assert any(bool(tensor.any()) for tensor in ages.values()) == keeps
        assert all(torch.equal(tensor, found[name]) for name, tensor in before.items() if name.endswith(".columns"))


def test_auto_leaves_blocks_to_pytorch_if_the_recipe_does_and_a_resume_keeps_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forms(folder: str) -> list[str]:
        sessions = read_json(tmp_path / folder / "run/environment.json", "the environment")["sessions"]
        return [session["kernels"]["forms"][BLOCKS] for session in sessions]

    newest = newest_form()
    expected = newest.isa if isinstance(newest, Form) else PYTORCH
    for name, asked in (("auto", "auto"), ("torch", "torch")):
        with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
            tiny_runs.stop_after(patch, 3)
            tiny_runs.run_tiny(tmp_path / name, *MOVING, f"--precision.kernels={asked}")
    assert (forms("auto"), forms("torch")) == ([expected], [PYTORCH])
    assert "kernel reference: " in capsys.readouterr().err
    tiny_runs.run_tiny(tmp_path / "torch", *MOVING)  # precision.kernels may change between sessions
    assert forms("torch") == [PYTORCH, PYTORCH]
    tiny_runs.run_tiny(tmp_path / "whole", *MOVING, "--precision.kernels=torch")
    assert tiny_runs.digest(tmp_path / "torch", 8) == tiny_runs.digest(tmp_path / "whole", 8)


def test_a_sparse_encoder_fills_masks_and_is_evaluated_like_its_dense_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = build_sentences(tmp_path / "corpus")
    own = ("--sparsity.linears=blocks.*,head.transform.dense", "--objective.mask-probability=0.15")
    tiny_runs.run_tiny(tmp_path, *encoder("bert"), *on_corpus(corpus), *MOVING, *own)
    run, dense = tmp_path / "run", tmp_path / "dense"
    assert main(["checkpoint", "export", str(run), "--output", str(dense)]) == 0
    assert len(sparse_layers(load_model(run, CPU, compute="fp32").model)) == 9
    found = []
    for model in (run, dense):
        given = ["--device", "cpu", "--compute", "fp32", "--json"]
        capsys.readouterr()
        assert main(["generate", str(model), "--prompt", "the [MASK] sees a [MASK].", "--top-k", "5", *given]) == 0
        (filled,) = json.loads(capsys.readouterr().out)["results"]
        assert main(["evaluate", str(model), "--data", str(corpus), *given]) == 0
        (task,) = json.loads(capsys.readouterr().out)["tasks"]
        found.append(([guess for gap in filled["gaps"] for guess in gap], task["rows"]))
    guesses, rows = zip(*found, strict=True)
    assert len(guesses[0]) == 10 and [row["metric"] for row in rows[0]][:2] == ["loss", "accuracy"]
    for key, expected in (("probability", guesses), ("value", rows)):
        ours, theirs = ([entry[key] for entry in side] for side in expected)
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert [guess["id"] for guess in guesses[0]] == [guess["id"] for guess in guesses[1]]


@pytest.mark.parametrize("name", ["bf16 auto", "bf16 torch"])
def test_two_ranks_train_sparse_layers_in_bf16(name: str, on_two_ranks: Path, tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, *ON_TWO_RANKS[name], fixed())
    two, one = on_two_ranks / name, tmp_path / "run"
    found, expected = tensors(two), tensors(one)
    moved = [name for name in expected if name.endswith((".rows", ".columns", ".grown_at"))]
    assert moved and all(torch.equal(found[name], expected[name]) for name in moved)
    losses = [[row["loss"] for row in read(run / "metrics.jsonl") if row["kind"] == "train"] for run in (two, one)]
    assert len(losses[0]) == 8 and losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert losses[1][-1] != losses[1][0]
