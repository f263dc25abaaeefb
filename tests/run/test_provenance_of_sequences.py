"""What a step of an encoder is said to have been trained on is what the loader gave."""

import json

import numpy as np
import pytest
from cases import mostly_slow
from tiny_lines import build_lines, line_tokenizer
from tiny_runs import record_batches, run_tiny, stop_after
from tiny_text import one_line

from hornbook.corpora.store import open_store
from hornbook.errors import StoppedBySignal, UserError
from hornbook.run.provenance import trace_step

KINDS = {
    "part": ("--objective.name=mlm_nsp", "--data.max-samples=7"),
    "pairs": ("--objective.name=mlm_nsp",),
    "joined": ("--objective.name=mlm",),
    "documents": ("--objective.name=mlm", "--objective.sequences=documents"),
    "lines": ("--objective.name=mlm", "--objective.sequences=lines", "--objective.whole_words=true"),
    "mixture": ("--objective.name=mlm", "--data.weights=3,1"),
}


def rows_of(batch):
    """Tokens, positions, labels and pair label of each sequence of a padded batch."""
    width, lengths = batch["tokens"].shape[1], batch["lengths"].tolist()
    scored = batch["targets"] != -100
    places, targets = batch["predictions"][scored].tolist(), batch["targets"][scored].tolist()
    for row, length in enumerate(lengths):
        own = [(place % width, target) for place, target in zip(places, targets, strict=True) if place // width == row]
        label = batch["pair_labels"][row].item() if "pair_labels" in batch else None
        yield batch["tokens"][row, :length].tolist(), [place for place, _ in own], [target for _, target in own], label


@pytest.fixture(scope="module", params=mostly_slow(sorted(KINDS, key=lambda kind: kind not in ("pairs", "mixture")), 2))
def trained(request, tmp_path_factory):
    """A run that was interrupted after step 3 and resumed, and the sequences of each step as the loader gave them."""
    folder, batches = tmp_path_factory.mktemp("which"), {}
    stores = [build_lines(folder / "one")]
    if request.param == "mixture":
        stores.append(build_lines(folder / "two", seed=1))
    given = ("--model.family=bert", "--model.vocab-size=none", "--model.max-positions=40", "--data.synthetic=false")
    given += (f"--data.train={','.join(stores)}", "--data.layout=padded", "--training.steps=8", *KINDS[request.param])
    with pytest.MonkeyPatch.context() as stopping, pytest.raises(StoppedBySignal):
        stop_after(stopping, 3)
        run_tiny(folder, *given)
    with pytest.MonkeyPatch.context() as patched:
        record_batches(patched, batches)
        run_tiny(folder, *given)
    steps = {first // 4 + 1: [row for batch in some for row in rows_of(batch)] for first, some in batches.items()}
    assert [*steps][:5] == [*range(4, 9)]
    return folder / "run", steps, request.param


def test_sequences_are_those_that_the_loader_gave(trained):
    run, steps, _ = trained
    for step, rows in steps.items():
        traced = list(trace_step(run, step))
        assert [sample.sample for sample in traced] == list(range((step - 1) * 4, step * 4))
        assert [(one.tokens, one.positions, one.labels, one.pair_label) for one in traced] == rows


def test_pieces_are_what_is_under_the_masks(trained):
    run, steps, kind = trained
    special = line_tokenizer().require_masking()
    num_pieces, stores = set(), set()
    for sample in (sample for step in steps for sample in trace_step(run, step)):
        unmasked = np.array(sample.tokens)
        unmasked[sample.positions] = sample.labels
        text = [token for token in unmasked.tolist() if token not in (special.cls, special.sep)]
        assert text == [token for piece in sample.pieces for token in piece.tokens]
        store = open_store(sample.store)
        for piece in sample.pieces:
            whole = store.document(piece.document).tolist()
            assert piece.tokens == whole[piece.start : piece.start + piece.num_tokens]
            assert (piece.file, piece.offset) == store.source(piece.document) and piece.unit == "byte"
            assert piece.text == line_tokenizer().decode(piece.tokens)
        if kind == "pairs":
            (a, b) = sample.pieces
            assert (a.document != b.document) == sample.pair_label
        num_pieces.add(len(sample.pieces))
        stores.add(sample.store)
    assert len(stores) == (2 if kind == "mixture" else 1)
    assert num_pieces == {2} if kind == "pairs" else {1} if kind in ("documents", "lines") else max(num_pieces) > 1


def bare(text):
    """A text without what joins the pieces of words."""
    return text.replace("##", "").replace(" ", "")


def test_the_text_shows_what_is_hidden(trained):
    run, steps, _ = trained
    tokenizer, shown = line_tokenizer(), []
    for sample in (sample for step in steps for sample in trace_step(run, step)):
        names = [tokenizer.decode([token]) for token in sample.tokens]
        for place, label in zip(sample.positions, sample.labels, strict=True):
            names[place] = f"[{names[place].strip('[]')}→{tokenizer.decode([label])}]"
        assert bare(sample.text) == bare("".join(names))
        shown.append(sample.text)
    assert any("[MASK→" in text for text in shown) and all(text.startswith("[CLS]") for text in shown)


def test_labelled_runs_are_refused(tmp_path):
    texts = [{"text": "the cat", "label": "x"}, {"text": "a dog", "label": "y"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    line_tokenizer().save(tmp_path / "tokenizer")
    words = ("--model.family=bert", "--model.vocab-size=none", "--objective.name=classification")
    words += (f"--data.tokenizer={tmp_path}/tokenizer", "--data.synthetic=false", "--training.steps=1")
    run_tiny(tmp_path, f"--data.train={tmp_path}/train.jsonl", *words)
    with pytest.raises(UserError) as caught:
        trace_step(tmp_path / "run", 1)
    assert one_line(caught.value, "was trained on labeled files (classification)")
