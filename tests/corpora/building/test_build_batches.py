from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import comparing
from tiny_text import TEXTS

from hornbook.corpora.building import batches as module
from hornbook.corpora.building.batches import read_batches
from hornbook.corpora.building.report import Report
from hornbook.text.documents import Document, Position, Tally
from hornbook.text.quality.duplicates import signature_of, text_hash
from hornbook.text.quality.filters import Length
from hornbook.text.quality.policy import Filters


def documents(texts=TEXTS):
    return [Document(text, "source", number, len(text.encode())) for number, text in enumerate(texts)]


def batches_of(some, filters=None, tally=None):
    return read_batches(some, tally or Tally(), filters or comparing(), {"source": 0})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9)), st.integers(1, 20), st.integers(1, 5))
def test_batches(sizes, most_bytes, most_documents):
    given_documents = [Document("", "source", 0, size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_BYTES", most_bytes)
        patch.setattr(module, "BATCH_DOCUMENTS", most_documents)
        batches = [batch.documents for batch in batches_of(given_documents)]
    assert [document for batch in batches for document in batch] == given_documents and all(batches[:-1])
    totals = [[document.num_bytes for document in batch] for batch in batches]
    full = [sum(batch) >= most_bytes or len(batch) == most_documents for batch in totals]
    assert all(full[:-1]) and all(sum(batch[:-1]) < most_bytes and len(batch) <= most_documents for batch in totals)


def test_a_batch_reports_what_was_read_and_dropped_since_the_one_before(monkeypatch):
    monkeypatch.setattr(module, "BATCH_DOCUMENTS", 2)
    tally = Tally()

    def read():
        for number, document in enumerate(documents(["a a", "a", "b b", "b", "b", "c c", "c"]), 1):
            tally.documents, tally.position = tally.documents + 1, Position(0, number)
            yield document
        tally.empty, tally.position = 3, Position(1, 0)

    filters = Filters(before=[Length(min_words=2)], exact_duplicates=False, after=[], near_duplicates=None)
    first, second = batches_of(read(), filters, tally)
    assert [document.text for document in first.documents + second.documents] == ["a a", "b b", "c c"]
    assert [batch.report.tally.position for batch in (first, second)] == [Position(0, 3), Position(1, 0)]
    assert [batch.report.tally.documents for batch in (first, second)] == [3, 4]
    assert [batch.report.tally.empty for batch in (first, second)] == [0, 3]
    assert [batch.report.dropped["too short"] for batch in (first, second)] == [1, 3]
    assert [batch.report.lost for batch in (first, second)] == [Counter({0: 1}), Counter({0: 3})]
    assert [batch.is_last for batch in (first, second)] == [False, True]
    whole = first.report + second.report
    assert whole.tally == Tally(documents=7, empty=3, position=Position(1, 0))
    assert [example.text for example in whole.examples["too short"]] == ["a", "b", "b"]
    assert tally == Tally(position=Position(1, 0)), "the counts are those of the batches"


def test_what_may_be_a_duplicate_is_a_candidate():
    texts = ["one two", "x", " one  two ", "...", "three four five"]
    filters = Filters(before=[], exact_duplicates=True, after=[Length(min_words=2)], near_duplicates=0.8)
    (batch,) = batches_of(documents(texts), filters)
    assert [document.text for document in batch.documents] == ["one two", "three four five"]
    rows = batch.candidates.rows
    assert rows["dropper"].tolist() == [0, 2, 1, 2, 0] and rows["offset"].tolist() == [0, 1, 2, 3, 4]
    assert list(zip(rows["low"].tolist(), rows["high"].tolist(), strict=True)) == [text_hash(text) for text in texts]
    assert rows["is_signed"].tolist() == [True, False, False, False, True]
    assert np.array_equal(batch.candidates.signatures, [signature_of(texts[0]), signature_of(texts[4])])
    assert batch.candidates.beginnings == texts
    assert batch.report == Report(), "they are counted when all are known"


def test_copies_are_dropped_at_once_if_the_first_one_is_remembered(monkeypatch):
    monkeypatch.setattr(module, "_HASHES_KEPT", 2)
    (batch,) = batches_of(documents(["a", "a", "b", "a", "c", "c", "a"]), comparing(exact=True))
    assert batch.candidates.rows["dropper"].tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_filters_that_keep_next_to_nothing_do_not_hold_up_batches(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES_READ", 5)
    batches = batches_of(documents(["a", "a", "a", "a", "b", "c", "c", "d"]), comparing(exact=True))
    assert ["".join(document.text for document in batch.documents) for batch in batches] == ["ab", "cd"]
