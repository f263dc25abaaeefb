import numpy as np
import pytest
from tiny_documents import comparing, parts_of
from tiny_text import TEXTS, one_line, tiny_tokenizer

from hornbook.corpora.building import batches, parts
from hornbook.corpora.building.joining import join_parts
from hornbook.corpora.building.parts import Part, Parts
from hornbook.corpora.building.report import Report, SplitCounts
from hornbook.corpora.building.token_pipeline import falls_to_validation
from hornbook.corpora.folders import DOCUMENT_ROW
from hornbook.corpora.megatron import IndexedFile
from hornbook.errors import DataError
from hornbook.text.reading import Position

SPLITS = ("train", "validation")
NOTHING = comparing()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", 500)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", 2)


@pytest.mark.parametrize("batches_per_part", [1, 3, 1000])
@pytest.mark.parametrize("filters", [NOTHING, comparing(exact=True)])
def test_parts_joined_are_the_documents_in_their_order(tmp_path, monkeypatch, batches_per_part, filters):
    monkeypatch.setattr(parts, "BATCHES_PER_PART", batches_per_part)
    texts = [*TEXTS, *TEXTS[5:9]] if filters.compare else list(TEXTS)
    some = parts_of(tmp_path / "slices", texts, filters, cuts=[7, 7, 52], validation=0.3)
    assert len(some) > 4 or batches_per_part == 1000
    joined = join_parts(some, SPLITS, filters, ["a.txt"], tmp_path)
    for split in SPLITS:
        target = tmp_path / split
        target.mkdir()
        files = joined.write_split(split, np.dtype("u2"), target)
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
        wanted = SplitCounts(documents=len(rows), tokens=indexed.num_tokens, num_bytes=num_bytes)
        assert joined.splits[split] == wanted
    assert joined.report.tally.documents == len(texts) and joined.report.tally.position == Position(1)
    assert dict(joined.report.dropped) == ({"exact duplicates": 4} if filters.compare else {})


def test_counts_are_those_of_each_part(tmp_path):
    some = parts_of(tmp_path, TEXTS, NOTHING)
    assert sum((part.report for part in some), Report()).tally.documents == len(TEXTS)
    assert [part.report.tally.position.documents for part in some[:-1]] == np.cumsum(
        [part.report.tally.documents for part in some[:-1]]
    ).tolist()
    assert [part.is_last for part in some] == [False] * (len(some) - 1) + [True]


def test_parts_are_taken_up_again(tmp_path):
    some = parts_of(tmp_path, TEXTS, comparing(exact=True, near=0.8))
    folder = tmp_path / "000000"
    again = Parts(folder)
    assert again.finished == some and again.is_complete and again.position == Position(1)
    (folder / "000001-train.idx").unlink()
    again = Parts(folder)
    assert again.finished == some[:1] and not again.is_complete
    assert again.position == some[0].report.tally.position


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"report": 1}', b"\xff"])
def test_a_record_that_is_none_is_no_part(tmp_path, content):
    parts_of(tmp_path, TEXTS, NOTHING)
    (tmp_path / "000000" / "000000.json").write_bytes(content)
    assert Part.read(tmp_path / "000000" / "000000") is None and not Parts(tmp_path / "000000").finished


def test_a_damaged_array_is_one_line(tmp_path):
    filters = comparing(exact=True)
    some = parts_of(tmp_path, TEXTS, filters)
    path = tmp_path / "000000" / "000000-candidates.npy"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError) as caught:
        join_parts(some, ("train",), filters, ["a.txt"], tmp_path)
    assert one_line(caught.value, "000000-candidates.npy", "damaged", "build again")


def test_no_documents_are_one_empty_part(tmp_path):
    (part,) = parts_of(tmp_path, [], NOTHING)
    assert part.is_last and part.splits == {"train": SplitCounts()} and part.report == Report(tally=part.report.tally)


def test_sources_without_documents_and_those_whose_documents_were_dropped(tmp_path):
    filters = comparing(exact=True)
    joined = join_parts(parts_of(tmp_path, ["a", "a"], filters), ("train",), filters, ["a.txt", "b.txt"], tmp_path)
    assert joined.barren_sources(["a.txt", "b.txt"]) == (["b.txt"], [])
    (example,) = joined.report.examples["exact duplicates"]
    assert (example.source, example.offset, example.text) == ("a.txt", 1, "a")
    assert joined.report.lost == {0: 1}


def test_an_error_of_the_reader_passes_and_leaves_no_half_part(tmp_path):
    def broken():
        raise ValueError("broken")
        yield

    some = Parts(tmp_path)
    with pytest.raises(ValueError, match="broken"):
        some.write(broken(), SPLITS, np.uint16, lambda counts: None)
    assert some.finished == [] and not list(tmp_path.iterdir())
