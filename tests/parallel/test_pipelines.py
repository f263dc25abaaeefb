"""Pipelines learn what one process learns, bit for bit, and take over the checkpoints of other layouts."""

import functools
import json
from pathlib import Path

import layout_ranks
import pytest
import tiny_layouts
import torch
from ranks import TORCHRUN, fork_ranks, python
from tiny_encoder_runs import assert_same_rows
from tiny_labelled import write_jsonl
from tiny_layouts import recipe_of, run_labelled, run_on, write_labelled
from tiny_text import TEXTS, build_tiny

from hornbook import checkpoint
from hornbook.cli.main import main
from hornbook.parallel.world import World
from hornbook.track.metrics import read

TWO = {
    "cases": [
        ("deep bert packed", "adamw", "zero-bubble 2"),
        ("decoder", "adamw", "1f1b 2"),
        ("deep gpt", "adamw", "v-shaped 2, recomputed"),
    ],
    "chain": ["data 2", "1f1b 2", "v-shaped 2"],
    "labelled": [("classification", "1f1b 2"), ("span", "gpipe 2")],
    "num_micro_batches": [],
}
MORE_OF_TWO = {
    "cases": [
        ("gpt in rounds", "adamw", "gpipe 2"),
        ("gpt in bf16", "adamw", "1f1b 2"),
        ("deep bert padded", "lamb", "interleaved 2"),
        ("deep gpt", "lamb", "1f1b 2, listed"),
        ("deep gpt", "adamw", "zero-bubble 2, recomputed"),
        ("decoder", "adamw", "zero-bubble 2"),
        ("gpt with fp32 gradients", "lamb", "gpipe 2"),
        ("deep gpt", "lamb", "v-shaped 2"),
        ("deep bert packed", "adamw", "v-shaped 2, listed"),
        ("sparse", "muon", "1f1b 2"),
    ],
    "chain": ["1f1b 2", "interleaved 2", "v-shaped 2"],
    "labelled": [],
    "num_micro_batches": [32, 96],
}
FOUR = {
    "cases": [
        ("deep gpt", "adamw", "gpipe 4"),
        ("deep gpt", "lamb", "1f1b 4, listed"),
        ("deep bert unpadded", "adamw", "zero-bubble 4"),
        ("deep groupbert", "lamb", "interleaved 4"),
        ("deep gpt", "lamb", "1f1b 2 x data 2"),
        ("gpt", "adamw", "zero-bubble 2 x shard 2"),
        ("deep bert packed", "lamb", "1f1b 2 x shard 2"),
        ("deep gpt", "adamw", "1f1b 2 x shard 2, recomputed"),
        ("deep bert packed", "adamw", "1f1b 2 x tensor 2"),
        ("deep gpt", "lamb", "v-shaped 4"),
        ("deep bert unpadded", "adamw", "v-shaped 4"),
        ("deep bert packed", "lamb", "v-shaped 2 x shard 2"),
        ("deep bert unpadded", "adamw", "1f1b 2 x sequence 2"),
    ],
    "chain": ["1f1b 2 x data 2", "interleaved 2 x shard 2", "1f1b 2 x tensor 2", "v-shaped 2 x shard 2"],
    "labelled": [("span", "1f1b 2 x shard 2"), ("classification", "v-shaped 2 x sequence 2")],
    "num_micro_batches": [],
}
EIGHT = {
    "cases": [
        ("gpt one by one", "adamw", "1f1b 2 x hybrid 2x2"),
        ("deep bert one by one", "lamb", "v-shaped 2 x hybrid 2x2"),
    ],
    "chain": ["1f1b 2 x hybrid 2x2", "v-shaped 2 x hybrid 2x2"],
    "labelled": [],
    "num_micro_batches": [],
}
WORLDS = pytest.mark.parametrize(
    "ranks",
    [(2, TWO), *(pytest.param(case, marks=pytest.mark.slow) for case in ((2, MORE_OF_TWO), (4, FOUR), (8, EIGHT)))],
    ids=["2", "more of 2", "4", "8"],
    indirect=True,
)
RUN = """
    train gpt2-small --data.train corpus --data.validation corpus --output run --model.num-layers 3
    --model.hidden-size 32 --model.num-heads 2 --model.max-positions 16 --model.residual-dropout 0.1
    --data.sequence-length 16 --training.global-batch-size 8 --training.micro-batch-size 2 --schedule.name constant
    --precision.compute fp32 --tracking.log-every-steps 1 --device cpu --threads 1
"""
CLOCKS = ("seconds", "tokens_per_second", "tflops", "mfu")
PIPELINE = ("--parallel.pipeline-parallel", "2", "--parallel.layers-per-stage", "1,2")


def without_idle(rows):
    """Rows of a log without the columns that only pipelines have."""
    return [{key: value for key, value in row.items() if not key.startswith("idle/")} for row in rows]


@functools.cache
def alone(model, optimizer):
    """What one process does."""
    return tiny_layouts.train(recipe_of(model, optimizer), World())


def write_data(folder):
    """A corpus, labeled texts, and passages for a task; return the options for the task."""
    build_tiny(folder / "corpus")
    write_labelled(folder)
    write_jsonl(folder / "passages.jsonl", [{"text": text.strip()} for text in TEXTS[1:6]])
    tasks = ["evaluation.tasks=lambada", f"evaluation.task_data=lambada={folder / 'passages.jsonl'}"]
    return [*tasks, "training.micro_batch_size=1"]


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    """The folder of what so many processes did, and their cases."""
    (num_ranks, plan), folder = request.param, tmp_path_factory.mktemp("pipelines")
    given = plan | {"more": write_data(folder)}
    fork_ranks(num_ranks, functools.partial(layout_ranks.main, folder, **given))
    return folder, plan


@WORLDS
def test_a_pipeline_learns_what_one_process_learns(ranks):
    """Bit for bit; sums over data-parallel or tensor-parallel ranks round otherwise."""
    folder, plan = ranks
    for number, (model, optimizer, layout) in enumerate(plan["cases"]):
        found, expected = torch.load(folder / f"{number}.pt", weights_only=True), alone(model, optimizer)
        assert all(torch.equal(found["initial"][name], tensor) for name, tensor in expected.initial.items())
        assert found["gradients"].keys() == expected.gradients.keys()
        exact = all(torch.equal(found["gradients"][name], tensor) for name, tensor in expected.gradients.items())
        assert exact or " x " in layout
        norm = torch.cat([tensor.double().flatten() for tensor in expected.gradients.values()]).norm()
        for name, gradient in expected.gradients.items():
            assert (gradient.double() - found["gradients"][name].double()).norm() < 1e-6 * norm, name
        tolerance = 1e-6 if " x " in layout else 0.0
        assert found["losses"] == pytest.approx(expected.losses, rel=tolerance, abs=0.0)
        assert found["norms"] == pytest.approx(expected.norms, rel=tolerance, abs=0.0)
        assert found["terms"] == [pytest.approx(terms, rel=tolerance, abs=0.0) for terms in expected.terms]


@WORLDS
def test_a_run_goes_from_layout_to_layout(ranks, tmp_path):
    """Its losses, validation, tasks and samples are those of one process, which goes on from its end."""
    folder, plan = ranks
    steps, more = 4 * len(plan["chain"]), write_data(tmp_path)
    run_on(tmp_path, "one process", World(), steps + 2, more=more)
    run_on(folder, "one process", World(), steps + 2, previous=plan["chain"][-1], more=more)
    found, expected = (read(where / "one process" / "metrics.jsonl") for where in (folder, tmp_path))
    assert {row["kind"] for row in found} == {"train", "validation", "task"}
    assert_same_rows(without_idle(found), expected, 1e-6, but=[*CLOCKS, "data"])
    found, expected = (read(where / "one process" / "samples.jsonl") for where in (folder, tmp_path))
    assert [row["text"] for row in found] == [row["text"] for row in expected]


@WORLDS
def test_heads_of_labeled_data_learn_and_are_validated_as_in_one_process(ranks, tmp_path):
    folder, plan = ranks
    write_data(tmp_path)
    for head, layout in plan["labelled"]:
        run_labelled(tmp_path, head, "one process", World())
        where = folder / f"{head} {layout}", tmp_path / f"{head} one process"
        found, expected = (read(path / "metrics.jsonl") for path in where)
        assert {row["kind"] for row in found} == {"train", "validation"}
        shares = [row[f"idle/{rank}"] for row in found if row["kind"] == "train" for rank in range(2)]
        assert all(0 < share < 1 for share in shares)
        assert_same_rows(without_idle(found), expected, 1e-6, but=CLOCKS)


@WORLDS
def test_each_rank_writes_its_stage(ranks):
    folder, plan = ranks
    files = {
        "data 2": 1,
        "1f1b 2": 2,
        "interleaved 2": 2,
        "1f1b 2 x data 2": 2,
        "interleaved 2 x shard 2": 4,
        "1f1b 2 x tensor 2": 4,
        "v-shaped 2": 2,
        "v-shaped 2 x shard 2": 4,
        "1f1b 2 x hybrid 2x2": 4,
        "v-shaped 2 x hybrid 2x2": 4,
    }
    for number, layout in enumerate(plan["chain"]):
        path = checkpoint.folder_of(folder / layout / "checkpoints", 4 * (number + 1))
        assert checkpoint.verify(path) == []
        assert len(list(path.glob("model-*.safetensors"))) == files[layout]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(2, MORE_OF_TWO)], ids=["more of 2"], indirect=True)
def test_receive_buffers_do_not_grow_with_the_number_of_micro_batches(ranks):
    folder, _ = ranks
    for rank in range(2):
        few, many = json.loads((folder / f"wires-{rank}.json").read_text())
        assert few == many >= 32


@pytest.mark.slow
def test_a_command_line_run_is_resumed_evaluated_and_generates(tmp_path, monkeypatch, capsys):
    """A pipeline of two, then one process, against one process throughout."""
    build_tiny(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    for steps in (3, 6):
        done = python(*TORCHRUN, 2, "-m", "hornbook", *RUN.split(), *PIPELINE, "--training.steps", steps)
        assert done.returncode == 0, done.stderr
    assert "after step 3" in done.stderr
    assert main([*RUN.split(), "--training.steps", "8"]) == 0
    assert main([*RUN.split(), "--training.steps", "8", "--output", "alone"]) == 0
    found, expected = (
        {row["step"]: row["loss"] for row in read(Path(name, "metrics.jsonl")) if row["kind"] == "train"}
        for name in ("run", "alone")
    )
    assert found == expected
    assert main(["generate", "run", "--prompt", "the cat", "--output-length", "3"]) == 0


@pytest.mark.parametrize(
    ("ranks_started", "words", "message"),
    [
        (2, ("--training.micro-batch-size=8",), "needs at least 2 micro-batches a step on 2 ranks, but the run has 1"),
        (2, ("--parallel.layers-per-stage=1,1",), "layers_per_stage adds up to 2, and the model has 3 layers"),
        (3, (), "needs a multiple of 2 ranks (pipeline_parallel 2), but the run has 3"),
    ],
)
def test_a_pipeline_that_does_not_fit_is_refused_before_ranks_are_connected(
    ranks_started, words, message, tmp_path, monkeypatch, capsys
):
    """Nobody listens at the address, so a rank that connected would wait for the others."""
    build_tiny(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    started = {"RANK": 1, "WORLD_SIZE": ranks_started, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 9}
    for name, value in started.items():
        monkeypatch.setenv(name, str(value))
    assert main([*RUN.split(), *PIPELINE, *words]) == 2
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert "Traceback" not in said
    assert not Path("run").exists()
