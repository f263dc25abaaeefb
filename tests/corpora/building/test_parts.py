import numpy as np
import pytest
from tiny_text import TEXTS, one_line, tiny_tokenizer

from hornbook.corpora.building import parts
from hornbook.corpora.building import token_pipeline as pipeline
from hornbook.corpora.building.parts import Parts, SplitCounts
from hornbook.corpora.building.token_pipeline import (
    Reading,
    TokenPlan,
    falls_to_validation,
    read_batches,
    tokenize_batches,
)
from hornbook.corpora.megatron import IndexedFile
from hornbook.corpora.store_manifest import DOCUMENT_ROW
from hornbook.errors import DataError
from hornbook.text.documents import Document
from hornbook.text.quality.duplicates import ExactDuplicates

SPLITS = ("train", "validation")


def batches(texts=TEXTS, filters=(), reading=None, validation=0.3):
    documents = [Document(text, "source", number, len(text.encode())) for number, text in enumerate(texts)]
    plan = TokenPlan(
        encode=tiny_tokenizer().encode_batch,
        dtype=np.dtype("u2"),
        source_numbers={"source": 0},
        validation=validation,
        end_of_text_id=299,
    )
    return tokenize_batches(read_batches(documents, filters, reading or Reading(), {"source": 0}), plan)


@pytest.mark.parametrize("batches_per_part", [1, 3, 1000])
def test_parts_joined_are_the_documents_in_their_order(tmp_path, monkeypatch, batches_per_part):
    monkeypatch.setattr(pipeline, "BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", batches_per_part)
    seen, some = [], Parts(tmp_path, SPLITS, np.uint16)
    some.write(batches(), seen.append)
    assert len(some.finished) == -(-len(seen) // batches_per_part) and len(seen) > 5
    for split in SPLITS:
        target = tmp_path / split
        target.mkdir()
        files = some.join(split, target)
        assert {name: file.size for name, file in files.items()} == {p.name: p.stat().st_size for p in target.iterdir()}
        indexed = IndexedFile.open(target / "tokens")
        rows = np.load(target / "documents.npy", allow_pickle=False)
        expected = [text for text in TEXTS if falls_to_validation(text, 0.3) == (split == "validation")]
        assert expected and indexed.num_documents == len(expected) == len(rows)
        for number, text in enumerate(expected):
            assert indexed.sequence(number).tolist() == [*tiny_tokenizer().encode(text), 299]
        wanted = [(0, TEXTS.index(text), len(text.encode())) for text in expected]
        assert np.array_equal(rows, np.array(wanted, dtype=DOCUMENT_ROW))
        num_bytes = sum(len(text.encode()) for text in expected)
        assert seen[-1][split] == SplitCounts(documents=len(rows), tokens=indexed.num_tokens, num_bytes=num_bytes)
    assert some.counts() == seen[-1]


def test_parts_are_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", 2)
    some = Parts(tmp_path, SPLITS, np.uint16)
    some.write(batches(), lambda counts: None)
    assert some.end is None
    some.finish(Reading())
    again = Parts(tmp_path, SPLITS, np.uint16)
    assert (again.finished, again.counts(), again.end) == (some.finished, some.counts(), Reading())
    (tmp_path / "000001-train.idx").unlink()
    again = Parts(tmp_path, SPLITS, np.uint16)
    assert again.finished == some.finished[:1] and again.end is None
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["000000.json"]


def test_filters_are_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", 2)
    some = Parts(tmp_path, ("train",), np.uint16)
    some.write(batches([*TEXTS, *TEXTS], [ExactDuplicates()], validation=0.0), lambda counts: None)
    fresh = ExactDuplicates()
    Parts(tmp_path, ("train",), np.uint16).restore_filters([fresh])
    assert not any(fresh.keeps(Document(text, "source", 0, 1)) for text in TEXTS)
    assert some.barren_sources(["source", "other"]) == (["other"], [])
    some.finish(some.reading)
    path = tmp_path / "000000-memory-0.npy"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError) as caught:
        Parts(tmp_path, ("train",), np.uint16).restore_filters([ExactDuplicates()])
    assert one_line(caught.value, "000000-memory-0.npy", "damaged", "build again")


def test_no_documents_no_parts(tmp_path):
    some = Parts(tmp_path, SPLITS, np.uint16)
    some.write(batches([]), lambda counts: None)
    assert some.finished == [] and list(tmp_path.iterdir()) == [] and some.reading == Reading()


def test_an_error_of_the_reader_passes_and_leaves_no_half_part(tmp_path):
    def broken():
        yield from batches()
        raise ValueError("broken")

    some = Parts(tmp_path, SPLITS, np.uint16)
    with pytest.raises(ValueError, match="broken"):
        some.write(broken(), lambda counts: None)
    assert some.finished == [] and not list(tmp_path.glob("*.idx")) and not list(tmp_path.glob("*.json"))
