"""What a step is said to have been trained on is what the loader gave."""

import json
import shutil

import pytest
from tiny_mixtures import build_corpora, run_mixture
from tiny_runs import record_batches, run_tiny
from tiny_text import one_line, tiny_tokenizer

from hornbook.corpora.store import open_store
from hornbook.errors import DataError, HornbookError, UserError
from hornbook.run.provenance import trace_step


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run on two corpora, and the windows of each of its steps as the loader gave them."""
    folder, given = tmp_path_factory.mktemp("which"), {}
    with pytest.MonkeyPatch.context() as patched:
        record_batches(patched, given)
        run_mixture(folder, build_corpora(folder), "--data.weights=0.7,0.3")
    assert [*given][:8] == [*range(0, 32, 4)]
    return folder / "run", [[row for batch in batches for row in windows_of(batch)] for batches in given.values()]


def windows_of(batch):
    return [
        [*tokens, targets[-1]]
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True)
    ]


def test_the_tokens_are_those_that_the_loader_gave(trained):
    run, steps = trained
    end, stores = tiny_tokenizer().end_of_text_id, []
    for step, windows in enumerate(steps[:8], 1):
        traced = list(trace_step(run, step))
        assert [sample.sample for sample in traced] == list(range((step - 1) * 4, step * 4))
        for sample, window in zip(traced, windows, strict=True):
            found = [token for piece in sample.pieces for token in piece.tokens]
            inserted = open_store(sample.store).end_of_text == "inserted"
            assert found == [token for token in window if not (inserted and token == end)]
            stores.append(sample.store)
    assert stores.count(str(run.parent / "stored")) in (22, 23)  # 0.7 of 32


def test_documents_files_and_texts(trained):
    run, _ = trained
    for sample in trace_step(run, 2):
        store = open_store(sample.store)
        for piece in sample.pieces:
            whole = store.document(piece.document).tolist()
            assert piece.tokens == whole[piece.start : piece.start + piece.num_tokens]
            assert (piece.file, piece.offset) == store.source(piece.document)
            assert piece.text == tiny_tokenizer().decode(piece.tokens)


def test_one_sample_alone(trained):
    run, _ = trained
    whole = list(trace_step(run, 3))
    assert list(trace_step(run, 3, 10)) == [whole[2]]


@pytest.mark.parametrize(
    ("step", "sample", "problem"),
    [
        (9, None, "has 8 steps: expected a step from 1 to 8, not 9"),
        (3, 7, "step 3 has samples 8 to 11: expected one of them, not 7"),
    ],
)
def test_what_the_run_does_not_have(trained, step, sample, problem):
    with pytest.raises(UserError) as caught:
        trace_step(trained[0], step, sample)
    assert one_line(caught.value, problem)


def test_no_run_and_no_run_of_documents(tmp_path):
    with pytest.raises(UserError, match="no run in "):
        trace_step(tmp_path / "nothing", 1)
    run_tiny(tmp_path, "--training.steps=1")
    with pytest.raises(UserError, match="trained on synthetic tokens"):
        trace_step(tmp_path / "run", 1)


@pytest.mark.parametrize("content", ["", "[]", '{"recipe": {}}', '{"recipe": 3, "data": {}}', '{"data": {}}'])
def test_a_damaged_identity(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(HornbookError) as caught:
        trace_step(tmp_path, 1)
    assert one_line(caught.value, "run.json")


def test_missing_or_different_stores(trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    identity = json.loads((trained[0] / "run.json").read_text())
    for path in identity["recipe"]["data"]["train"]:
        shutil.copytree(path, tmp_path / path.rpartition("/")[2])
    stores = [str(tmp_path / path.rpartition("/")[2]) for path in identity["recipe"]["data"]["train"]]
    identity["recipe"]["data"]["train"] = stores
    (run / "run.json").write_text(json.dumps(identity))
    assert next(trace_step(run, 1)).store in stores
    identity["recipe"]["data"]["train"] = stores[::-1]
    (run / "run.json").write_text(json.dumps(identity))
    with pytest.raises(DataError) as caught:
        trace_step(run, 1)
    assert one_line(caught.value, "the stores are not those that", "restore them")
    shutil.rmtree(stores[1])
    with pytest.raises(DataError) as caught:
        trace_step(run, 1)
    assert one_line(caught.value, f"{stores[1]}: no such token store")
