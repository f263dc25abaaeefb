"""Runs on several corpora: resumed, recognized, refused."""

import json

import pytest
from cases import mostly_slow
from tiny_mixtures import build_corpora, run_mixture
from tiny_runs import digest, metrics_without_time, stop_after
from tiny_text import one_line

from hornbook.corpora.store import open_store
from hornbook.errors import StoppedBySignal, UserError
from hornbook.track import metrics
from hornbook.track.report import write_report

WEIGHTS = "--data.weights=0.7,0.3"
FEW = "--evaluation.max-windows=10"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return build_corpora(tmp_path_factory.mktemp("corpora"))


def identity(folder):
    return json.loads((folder / "run" / "run.json").read_text())


@pytest.mark.parametrize("step", mostly_slow([5, 2]))
def test_a_resumed_mixture_ends_where_an_uninterrupted_one_does(tmp_path, corpora, monkeypatch, step):
    run_mixture(tmp_path / "whole", corpora, WEIGHTS, FEW)
    with monkeypatch.context() as patched:
        stop_after(patched, step)
        with pytest.raises(StoppedBySignal):
            run_mixture(tmp_path / "parts", corpora, WEIGHTS, FEW)
    run_mixture(tmp_path / "parts", corpora, WEIGHTS, FEW)
    assert digest(tmp_path / "parts", 8) == digest(tmp_path / "whole", 8)


def test_a_part_of_a_mixture_is_trained_on_for_several_epochs(tmp_path, corpora, monkeypatch):
    options = (WEIGHTS, FEW, "--data.max-samples=10", "--training.epochs=2")
    assert run_mixture(tmp_path / "whole", corpora, *options)["step"] == 5
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        with pytest.raises(StoppedBySignal):
            run_mixture(tmp_path / "parts", corpora, *options)
    run_mixture(tmp_path / "parts", corpora, *options)
    assert digest(tmp_path / "parts", 5) == digest(tmp_path / "whole", 5)
    with pytest.raises(UserError, match="max_samples was 10 and is now 11"):
        run_mixture(tmp_path / "whole", corpora, WEIGHTS, "--data.max-samples=11", "--training.epochs=2")


def test_the_validation_is_on_the_held_out_documents_of_all(tmp_path, corpora):
    run_mixture(tmp_path, corpora, "--evaluation.every-steps=8", "--checkpoint.every-steps=8")
    (row,) = [row for row in metrics_without_time(tmp_path) if row["kind"] == "validation" and row["step"] == 8]
    held_out = [open_store(path, "validation") for path in corpora]
    ends = [store.num_documents if store.end_of_text == "stored" else 0 for store in held_out]
    tokens = sum(store.num_tokens - end for store, end in zip(held_out, ends, strict=True))
    assert row["tokens"] == tokens and row["bits_per_byte"] > 0


def test_each_store_has_its_validation_loss_beside_the_total(tmp_path, corpora, capsys):
    """It is the loss of a run that is measured on that store alone; training is the same."""

    def last_validation(folder, *overrides, stores=corpora):
        run_mixture(tmp_path / folder, stores, "--evaluation.every-steps=4", "--checkpoint.every-steps=8", *overrides)
        return [row for row in metrics_without_time(tmp_path / folder) if row["kind"] == "validation"][-1]

    row = last_validation("all")
    printed = capsys.readouterr().err
    for path, name in zip(corpora, ("stored", "inserted"), strict=True):
        alone = last_validation(name, f"--data.validation={path}")
        assert row[f"loss/{name}"] == alone["loss"]
        assert not metrics.store_losses(alone)
        assert f"{name} {alone['loss']:.4f}" in printed
    assert row["loss/stored"] != row["loss/inserted"] != row["loss"]
    report = write_report(tmp_path / "all" / "run").read_text()
    assert "Validation loss, stored" in report and "Validation loss, inserted" in report


def test_a_run_of_one_store_is_the_run_that_it_was(tmp_path, corpora):
    """Of earlier versions: the store as one text, no weights, and its own fingerprint."""
    run_mixture(tmp_path, corpora[:1], "--training.steps=3")
    before = identity(tmp_path)
    assert before["data"]["train"] == open_store(corpora[0]).fingerprint
    before["recipe"]["data"]["train"] = corpora[0]
    del before["recipe"]["data"]["weights"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(before))
    assert run_mixture(tmp_path, corpora[:1], "--training.steps=4")["step"] == 4


@pytest.mark.parametrize(
    ("order", "weights", "problem"),
    [(1, "0.6,0.4", "data.weights was (0.7, 0.3) and is now (0.6, 0.4)"), (-1, "0.7,0.3", "the train data were")],
)
def test_another_mixture_is_another_run(tmp_path, corpora, order, weights, problem):
    run_mixture(tmp_path, corpora, WEIGHTS, "--training.steps=1")
    with pytest.raises(UserError) as caught:
        run_mixture(tmp_path, corpora[::order], f"--data.weights={weights}")
    assert one_line(caught.value, problem, "contains another run")


def test_an_epoch_has_the_windows_of_all_stores(tmp_path, corpora):
    length = ("--training.steps=none", "--training.epochs=0.1", WEIGHTS, FEW)
    steps = run_mixture(tmp_path, corpora, *length)["step"]
    windows = 0
    for store in map(open_store, corpora):
        inserted = store.num_documents * (store.end_of_text == "inserted")
        windows += (store.num_tokens + inserted) // 16
    assert steps == -(-windows // 40)
