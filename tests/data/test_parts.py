import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data import parts
from hornbook.data.megatron import IndexedFile
from hornbook.data.parts import PartPlan, Progress, batched_by_bytes, falls_to_validation, join_parts, write_parts
from hornbook.data.rows import DOCUMENT_ROW
from hornbook.text.documents import Document
from tiny_text import TEXTS, tiny_tokenizer


def documents(texts=TEXTS):
    return [Document(text, "source", number, len(text.encode())) for number, text in enumerate(texts)]


def plan(**options):
    defaults = {"tokenizer": tiny_tokenizer(), "source_numbers": {"source": 0}, "validation": 0.3}
    return PartPlan(**defaults | {"store_end_of_text": True} | options)


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_batches(sizes, limit):
    given_documents = [Document("", "", 0, size) for size in sizes]
    batches = list(batched_by_bytes(given_documents, limit))
    assert [document for batch in batches for document in batch] == given_documents
    totals = [[document.num_bytes for document in batch] for batch in batches]
    assert all(sum(batch) >= limit > sum(batch[:-1]) for batch in totals[:-1])
    assert all(batches) and (not totals or sum(totals[-1][:-1]) < limit)


def test_the_split_is_a_function_of_the_text():
    texts = [f"text {number}" for number in range(20_000)]
    held_out = [text for text in texts if falls_to_validation(text, 0.02)]
    assert 300 < len(held_out) < 500
    assert set(held_out) < {text for text in texts if falls_to_validation(text, 0.03)}
    assert not any(falls_to_validation(text, 0.0) for text in texts)
    assert all(falls_to_validation(text, 1.0) for text in texts[:100])
    assert held_out[:3] == ["text 62", "text 102", "text 130"], "older corpora would have other splits"


@pytest.mark.parametrize("batches_per_part", [1, 3, 1000])
def test_parts_joined_are_the_documents_in_their_order(tmp_path, monkeypatch, batches_per_part):
    monkeypatch.setattr(parts, "_BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "_BATCHES_PER_PART", batches_per_part)
    seen = []
    num_parts = write_parts(documents(), tmp_path, plan(), seen.append)
    assert num_parts == -(-len(seen) // batches_per_part) and len(seen) > 5
    tokenizer, tokens = tiny_tokenizer(), 0
    for split in ("train", "validation"):
        target = tmp_path / split
        target.mkdir()
        files = join_parts(tmp_path, num_parts, split, target)
        assert {name: file.size for name, file in files.items()} == {p.name: p.stat().st_size for p in target.iterdir()}
        indexed = IndexedFile.open(target / "tokens")
        rows = np.load(target / "documents.npy", allow_pickle=False)
        expected = [text for text in TEXTS if falls_to_validation(text, 0.3) == (split == "validation")]
        assert expected and indexed.num_documents == len(expected) == len(rows)
        for number, text in enumerate(expected):
            assert indexed.sequence(number).tolist() == [*tokenizer.encode(text), tokenizer.end_of_text_id]
        wanted = [(0, TEXTS.index(text), len(text.encode())) for text in expected]
        assert np.array_equal(rows, np.array(wanted, dtype=DOCUMENT_ROW))
        tokens += indexed.num_tokens
    assert seen[-1] == Progress(documents=len(TEXTS), num_bytes=sum(len(t.encode()) for t in TEXTS), tokens=tokens)


def test_end_of_text_may_be_left_to_readers(tmp_path):
    assert write_parts(documents(TEXTS[:2]), tmp_path, plan(validation=0, store_end_of_text=False), lambda _: None) == 1
    indexed = IndexedFile.open(tmp_path / "000000-train")
    assert indexed.sequence(0).tolist() == tiny_tokenizer().encode(TEXTS[0])
    assert {path.name.split("-")[1].split(".")[0] for path in tmp_path.iterdir()} == {"train"}


def test_no_documents_no_parts(tmp_path):
    assert write_parts([], tmp_path, plan(), lambda _: None) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_reader_passes_and_leaves_no_half_part(tmp_path):
    def broken():
        yield from documents()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_parts(broken(), tmp_path, plan(), lambda _: None)
    assert not list(tmp_path.glob("*.idx"))
