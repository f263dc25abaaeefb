"""Runs that start from given weights: what they start with, what is remembered, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tensors_of
from tiny_huggingface import tiny_contents
from tiny_runs import digest, run_tiny, stop_after, tiny_recipe
from tiny_text import build_tiny, one_line, tiny_tokenizer

from hornbook import checkpoint
from hornbook.engine.step import train_step
from hornbook.errors import CheckpointError, HornbookError, StoppedBySignal, UserError
from hornbook.exchange.huggingface import write_folder
from hornbook.optim.updates import Update
from hornbook.parallel.world import World
from hornbook.run.initial_weights import InitFrom, Origin, inspect
from hornbook.run.launch import open_run, train
from hornbook.storage.files import sha256_file


def start(folder: Path, *overrides: str, init: InitFrom | None = None) -> dict[str, Any]:
    """Train in ``folder / "run"`` on one thread, with a seed that is not that of the source."""
    folder.mkdir(exist_ok=True)
    recipe = tiny_recipe(folder, "--training.seed=5", *overrides)
    return train(recipe, output=folder / "run", device="cpu", threads=1, init_from=init)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps with a checkpoint at 6."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny_recipe(folder), output=folder / "run", device="cpu", threads=1)
    return folder / "run"


@pytest.fixture
def source(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(trained, tmp_path / "source")


def identity(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "run.json").read_text())
    return found


def weights_of(path: Path, group: str = "model") -> dict[str, torch.Tensor]:
    return dict(checkpoint.load(checkpoint.resolve(path)).tensors[group])


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_starts_from_the_weights_of_another(trained: Path, tmp_path: Path, keep: bool) -> None:
    recipe = tiny_recipe(tmp_path, "--training.seed=5").recipe
    with open_run(recipe, tmp_path / "run", World(), InitFrom(source=str(trained), keep_optimizer=keep)) as run:
        tensors, progress = tensors_of(run.state), run.state.progress
        assert all(torch.equal(tensors["model"][name], value) for name, value in weights_of(trained).items())
        moments = weights_of(trained, "optimizer")
        assert all(torch.equal(tensors["optimizer"][name], value) for name, value in moments.items()) is keep
        assert keep or not any(bool(value.any()) for value in tensors["optimizer"].values())
        assert (progress.step, progress.samples, progress.num_updates) == (0, 0, 0)
        assert progress.inherited_updates == (8 if keep else 0)
        _assert_bias_correction_counts_on(run, first=9 if keep else 1)
    newest = trained / "checkpoints" / "step-00000008"
    assert identity(tmp_path)["init_from"] == {
        "source": str(trained),
        "path": str(newest),
        "keep_optimizer": keep,
        "digest": sha256_file(newest / "model-00000.safetensors"),
    }


def _assert_bias_correction_counts_on(run: Any, first: int) -> None:
    """Moments that have seen eight updates are not corrected as if this were the first; the schedule begins anew."""
    seen = []
    update = Update(states=lambda *_: {}, apply=lambda slots, rate, count: seen.append((round(rate, 9), count)))
    config = replace(run.step_config, update=update)
    with run.batches() as batches:
        for _ in range(2):
            train_step(run.state, next(batches), config)
    assert seen == [(round(run.step_config.schedule(index), 9), first + index) for index in range(2)]


def test_kept_moments_continue_in_the_next_run(trained: Path, tmp_path: Path) -> None:
    start(tmp_path / "second", init=InitFrom(source=str(trained), keep_optimizer=True))
    init = InitFrom(source=str(tmp_path / "second" / "run"), keep_optimizer=True)
    recipe = tiny_recipe(tmp_path).recipe
    with open_run(recipe, tmp_path / "third", World(), init) as run:
        assert run.state.progress.inherited_updates == 16


def test_a_run_from_fresh_weights_remembers_that(tmp_path: Path) -> None:
    start(tmp_path, "--training.steps=1")
    assert identity(tmp_path)["init_from"] is None
    with pytest.raises(UserError, match="the run was not started from somewhere: remove `init_from`"):
        start(tmp_path, init=InitFrom(source="somewhere"))


@pytest.mark.parametrize("again", ["the same command", "without --init-from"])
def test_resuming_does_not_need_the_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    init = InitFrom(source=str(source), keep_optimizer=True)
    start(tmp_path / "whole", init=init)
    with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
        stop_after(patch, 4)
        start(tmp_path / "cut", init=init)
    shutil.rmtree(source)
    start(tmp_path / "cut", init=init if again == "the same command" else None)
    assert digest(tmp_path / "cut", 8) == digest(tmp_path / "whole", 8)
    assert identity(tmp_path / "cut") == identity(tmp_path / "whole")


def test_before_its_first_checkpoint_a_run_takes_the_same_weights_again(source: Path, tmp_path: Path) -> None:
    start(tmp_path, init=InitFrom(source=str(source)))
    expected = digest(tmp_path, 8)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    start(tmp_path)
    assert digest(tmp_path, 8) == expected
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(source)
    with pytest.raises(CheckpointError, match=r"no run or checkpoint at .*: no such folder"):
        start(tmp_path)
    assert not (tmp_path / "run" / "checkpoints").exists(), "never from other weights"


def test_a_source_that_has_changed_is_refused(source: Path, tmp_path: Path) -> None:
    init = InitFrom(source=str(source))
    start(tmp_path, init=init)
    shutil.rmtree(source / "checkpoints" / "step-00000008")
    for other in (init, replace(init, keep_optimizer=True)):
        with pytest.raises(UserError, match=r"the run started from .*step-00000008 \(") as caught:
            start(tmp_path, init=other)
        assert one_line(caught.value, "`init_from` is now", "remove `init_from` to resume")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(source / "checkpoints" / "step-00000006", source / "checkpoints" / "step-00000008")
    with pytest.raises(HornbookError, match="damaged"):
        start(tmp_path)


def test_weights_that_are_not_what_was_recorded_do_not_get_in(source: Path, tmp_path: Path) -> None:
    start(tmp_path, init=InitFrom(source=str(source)))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    document = identity(tmp_path)
    document["init_from"]["path"] = str(source / "checkpoints" / "step-00000006")
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="has changed since the run started from it"):
        start(tmp_path)


def test_all_mismatches_are_reported_together_and_nothing_is_left(trained: Path, tmp_path: Path) -> None:
    overrides = ["--model.max-positions=20", "--model.num-heads=4", "--model.activation=relu", "--model.num-layers=1"]
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, *overrides, init=InitFrom(source=str(trained)))
    assert one_line(
        caught.value,
        "cannot start this run: the recipe's model differs: num_layers 2 there and 1 here, num_heads 2 there and 4 "
        'here, activation "gelu_tanh" there and "relu" here, max_positions 16 there and 20 here; change the ',
    )
    assert not (tmp_path / "run" / "run.json").exists()
    start(tmp_path, "--training.steps=1", init=InitFrom(source=str(trained)))


def test_a_model_that_computes_another_thing_with_the_same_shapes(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the recipe's model differs: num_heads 2 there and 4 here; change"):
        start(tmp_path, "--model.num-heads=4", "--model.residual-dropout=0.5", init=InitFrom(source=str(trained)))


def test_weights_that_are_not_those_of_their_own_recipe_are_named(trained: Path, tmp_path: Path) -> None:
    whole = checkpoint.load(checkpoint.resolve(trained))
    model = {name: tensor for name, tensor in whole.tensors["model"].items() if "blocks.1" not in name}
    checkpoint.save(tmp_path / "part", replace(whole, tensors={"model": model}))
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, init=InitFrom(source=str(tmp_path / "part")))
    assert one_line(caught.value, "cannot start this run: blocks.1.", " is missing; so are 8 more")


def test_moments_of_another_optimizer_are_no_matter_of_the_model(trained: Path, tmp_path: Path) -> None:
    init = InitFrom(source=str(trained), keep_optimizer=True)
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, "--optimizer.name=sgd", init=init)
    assert str(caught.value).endswith(
        "the optimizer keeps exp_avg, exp_avg_sq there and nothing here, so start with `init_optimizer='fresh'`"
    )
    with pytest.raises(CheckpointError) as caught:
        start(tmp_path, "--optimizer.name=sgd", "--model.num-heads=4", init=init)
    assert one_line(caught.value, "`init_optimizer='fresh'`; the recipe's model differs", "change the recipe's [model]")


def test_dropout_and_length_may_differ(trained: Path, tmp_path: Path) -> None:
    overrides = ["--model.residual-dropout=0.3", "--data.sequence-length=8", "--model.initializer-std=0.5"]
    assert start(tmp_path, "--training.steps=1", *overrides, init=InitFrom(source=str(trained)))["step"] == 1


def hugging_face(folder: Path) -> InitFrom:
    write_folder(folder, tiny_contents())
    return InitFrom(source=str(folder))


def test_a_hugging_face_folder_is_a_start(tmp_path: Path) -> None:
    init = hugging_face(tmp_path / "hf")
    corpus = tmp_path / "corpus"
    build_tiny(corpus)
    sizes = ["--model.hidden-size=16", "--model.max-positions=24", "--model.vocab-size=300"]
    recipe = tiny_recipe(tmp_path, *sizes, f"--data.train={corpus}").recipe
    with open_run(recipe, tmp_path / "run", World(), init) as run:
        found = tensors_of(run.state)["model"]
        expected = tiny_contents().tensors["model"]
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert run.tokenizer is not None and run.tokenizer.digest == tiny_tokenizer().digest
    with pytest.raises(CheckpointError, match="has no optimizer state: use `init_optimizer='fresh'`"):
        inspect(replace(init, keep_optimizer=True), recipe, None)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    init = hugging_face(tmp_path / "hf")
    recipe = tiny_recipe(
        tmp_path, "--model.hidden-size=16", "--model.max-positions=24", "--model.vocab-size=300"
    ).recipe
    other = type(tiny_tokenizer()).train(["another text altogether"], 300)
    assert isinstance(inspect(init, recipe, tiny_tokenizer()), Origin)
    told = r"its tokenizer \(\w{12}\) is not that of the training data \(\w{12}\); build the data with its own: "
    with pytest.raises(CheckpointError, match=rf"{told}`hornbook corpus build --tokenizer {init.source}`$"):
        inspect(init, recipe, other)


def test_ranks_start_alike(trained: Path, tmp_path: Path) -> None:
    """Each rank reads the source by itself, and proves by its digest that it is what the first one recorded."""

    class Second(World):
        """The second of two ranks, whose first found no checkpoint."""

        is_first = False

        def from_first(self, value: int) -> int:
            return 0

        def refuse_difference(self, what: str, own: str) -> None:
            """The data are the same."""

    recipe = tiny_recipe(tmp_path, "--training.seed=5").recipe
    with open_run(recipe, tmp_path / "run", World(), InitFrom(source=str(trained))):
        pass
    with open_run(recipe, tmp_path / "run", Second(), InitFrom(source=str(trained))) as run:
        found = tensors_of(run.state)["model"]
        assert all(torch.equal(found[name], value) for name, value in weights_of(trained).items())


def test_a_start_that_never_made_a_step_does_not_hold_its_folder(tmp_path):
    """Data that the model does not know end a run at its first step; the mended recipe may use the folder."""
    with pytest.raises(UserError, match="contains another run"):
        run_tiny(tmp_path)
        run_tiny(tmp_path, "--model.hidden-size=48")
    for name in ("checkpoints", "metrics.jsonl"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.write_text("")
    assert run_tiny(tmp_path, "--model.hidden-size=48")["step"] == 8
