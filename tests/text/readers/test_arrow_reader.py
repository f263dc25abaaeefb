import errno
import io
import json
import sys

import pytest
from cases import mostly_slow
from damage import mutated, survive
from tiny_text import one_line

from hornbook.errors import DataError, StorageError, UserError
from hornbook.text.documents import Document, Position, ReadOptions, Tally, list_sources, read_documents, read_sources
from hornbook.text.readers.columns import outcomes
from hornbook.text.reading import Source

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
pytest.importorskip("pyarrow.ipc")

TEXTS = ["one", "two é", None, "three " * 9, "", "four"] * 5


def write(path, columns, rows_per_batch=4, **options):
    table = pyarrow.table(columns)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema, **options) as stream:
        stream.write_table(table, max_chunksize=rows_per_batch)
    return path


def write_texts(path, texts=TEXTS):
    return write(path, {"text": pyarrow.array(texts, pyarrow.string()), "meta": [{"body": text} for text in texts]})


def write_folder(folder, *parts):
    """What ``save_to_disk`` makes."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, texts in zip(names, parts, strict=True):
        write_texts(folder / name, texts)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def texts(*inputs, **options):
    return [document.text for document in read_documents(inputs, ReadOptions(**options))]


def fails(path, *parts, **options):
    with pytest.raises(DataError) as caught:
        texts(path, **options)
    assert one_line(caught.value, str(path), *parts), str(caught.value)


@pytest.mark.parametrize("field", ["text", "meta.body"])
def test_each_row_is_a_document(tmp_path, field):
    path = write_texts(tmp_path / "a.arrow")
    tally = Tally()
    rows = [(row, text) for row, text in enumerate(TEXTS) if text]
    found = list(read_documents([path], ReadOptions(field=field), tally))
    assert found == [Document(text, str(path), row, len(text.encode())) for row, text in rows]
    assert tally.empty == 10


@pytest.mark.parametrize(
    "kind", [pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary(), pyarrow.string_view()]
)
def test_other_types_of_text(tmp_path, kind):
    path = write(tmp_path / "a.arrow", {"text": pyarrow.array(["one", None, "two"]).cast(kind)})
    assert texts(path) == ["one", "two"]


def write_file(path, texts=TEXTS):
    """What pyarrow, polars and R call an Arrow file: a stream with a mark before it and a table behind it."""
    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=4)
    return path


def test_an_arrow_file_is_read_as_the_stream_in_it(tmp_path):
    path = write_file(tmp_path / "a.arrow")
    assert texts(path) == [text for text in TEXTS if text]
    options = ReadOptions(format="arrow")
    found = list(read_sources([str(path)], options, Tally(), skip=Position(0, 6)))
    assert found[0] == Document("one", str(path), 6, 3)
    data = path.read_bytes()
    for size in (len(data) - 1, 200, 6):
        path.write_bytes(data[:size])
        fails(path, "damaged")


def test_folders_that_save_to_disk_made(tmp_path):
    folder = write_folder(tmp_path / "set", ["one", "two"], ["three"])
    for chosen in ("auto", "arrow"):
        assert texts(folder, format=chosen) == ["one", "two", "three"]
    (folder / "data-00009-of-00010.arrow").write_bytes(b"of another time")
    assert len(list_sources([folder], ReadOptions())) == 2, "those that the state names, and no others"


def test_splits(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / "set" / split, [split])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert texts(tmp_path / "set", split="test") == texts(tmp_path / "set" / "test") == ["test"]
    with pytest.raises(UserError, match="has the splits train, test; choose one with `split`"):
        texts(tmp_path / "set")
    with pytest.raises(UserError, match="has no splits"):
        texts(tmp_path / "set" / "train", split="train")
    write_texts(tmp_path / "a.arrow")
    with pytest.raises(UserError, match="`split` applies to a data set of the Hugging Face hub or a folder"):
        texts(tmp_path / "a.arrow", split="train")
    with pytest.raises(UserError, match="`config` applies to a data set of the Hugging Face hub, and no input is one"):
        texts(tmp_path / "set" / "train", config="en")


def test_what_datasets_saves(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(2500)]})
    datasets.DatasetDict({"train": data, "test": data.select(range(3))}).save_to_disk(tmp_path / "both")
    assert texts(tmp_path / "both", split="train") == data["text"][:]
    data.select([5, 1]).save_to_disk(tmp_path / "some")
    assert texts(tmp_path / "some") == ["text 5", "text 1"]


def test_reading_resumes_at_any_row(tmp_path):
    source = str(write_texts(tmp_path / "a.arrow"))
    whole = list(read_sources([source], ReadOptions(), Tally()))
    for row in range(len(TEXTS) + 2):
        found = list(read_sources([source], ReadOptions(), Tally(), skip=Position(0, row)))
        assert found == [document for document in whole if document.offset >= row]


def test_columns_that_are_not_there_or_hold_no_text(tmp_path):
    path = write(tmp_path / "a.arrow", {"body": ["a"], "number": [1], "list": [["a"]], "meta": [{"n": 1}]})
    fails(path, "no column 'text' (columns: 'body'); set `field` to the one with the text")
    fails(path, "no column 'meta.text'", field="meta.text")
    fails(path, "no column 'body.text'", field="body.text")
    for field in ("number", "list", "meta", "meta.n"):
        fails(path, f"the column '{field}' is of type ", "expected text", field=field)
    write(path, {"text": pyarrow.array([1]).dictionary_encode()})
    fails(path, "is of type dictionary")


def test_every_column_that_an_error_offers_is_accepted(tmp_path):
    columns = {"id": [1], "a.b": ["dotted"], "meta": [{"n": 1, "x.y": "unreachable", "deep": {"body": "deep"}}]}
    path = write(tmp_path / "a.arrow", columns)
    fails(path, "(columns: 'a.b', 'meta.deep.body'); set `field`")
    assert [texts(path, field=field) for field in ("a.b", "meta.deep.body")] == [["dotted"], ["deep"]]


def in_dictionaries(path, texts=TEXTS, **options):
    """The file of ``write_texts``, with each text named once."""
    column = pyarrow.array(texts, pyarrow.string()).dictionary_encode()
    return write(path, {"text": column, "meta": pyarrow.StructArray.from_arrays([column], ["body"])}, **options)


@pytest.mark.parametrize("field", ["text", "meta.body"])
def test_texts_in_a_dictionary_are_read_as_others(tmp_path, field):
    path = write_texts(tmp_path / "a.arrow")
    plain = list(read_documents([path], ReadOptions(field=field)))
    in_dictionaries(path)
    assert list(read_documents([path], ReadOptions(field=field))) == plain
    in_dictionaries(path, pyarrow.array([b"one", b"caf\xe9", b"two"]).view(pyarrow.string()))
    fails(path, "row 1: not UTF-8 at byte 3 (0xe9)", field=field)


def test_dictionaries_that_hold_far_more_than_the_file(tmp_path):
    path = in_dictionaries(tmp_path / "a.arrow", ["x" * 100_000] * 1000)
    fails(path, "unpacks to over 200 times its size")


def test_compressed_batches(tmp_path):
    path = write(tmp_path / "a.arrow", {"text": TEXTS}, options=pyarrow.ipc.IpcWriteOptions(compression="zstd"))
    assert texts(path) == [text for text in TEXTS if text]


def test_a_row_that_is_not_utf8_costs_that_row(tmp_path):
    rows = pyarrow.array([b"one", b"caf\xe9", b"two"]).view(pyarrow.string())
    path = write(tmp_path / "a.arrow", {"text": rows})
    fails(path, "row 1: not UTF-8 at byte 3 (0xe9)")
    assert texts(path, on_error="skip") == ["one", "two"]


def test_other_files(tmp_path, monkeypatch):
    data = write_texts(tmp_path / "a.arrow").read_bytes()
    path = tmp_path / "b.arrow"
    for size in (0, 10, 500, len(data) - 1):
        path.write_bytes(data[:size])
        fails(path, "not an Arrow stream, or truncated")
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(data)}))
    with pytest.raises(DataError, match="standard input cannot be read as Arrow"):
        texts("-", format="arrow")


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, StorageError), (None, DataError)])
def test_a_failing_disk_is_no_damaged_file(tmp_path, monkeypatch, number, expected):
    def fail(path):
        raise OSError(number, "what the system says") if number else OSError("what pyarrow says")

    path = write_texts(tmp_path / "a.arrow")
    monkeypatch.setattr(pyarrow, "memory_map", fail)
    with pytest.raises(expected) as caught:
        list(outcomes("arrow", Source(str(path), path), ReadOptions(), 0))
    assert one_line(caught.value, str(path), "says")


@pytest.mark.parametrize("field", ["text", "meta.body"])
@pytest.mark.parametrize("make", mostly_slow([in_dictionaries, write_texts]))
def test_mutated_files_are_refused_or_read(tmp_path, field, make):
    data = make(tmp_path / "a.arrow", TEXTS[:6]).read_bytes()
    options = ReadOptions(field=field)
    refused, accepted = survive(
        lambda path: read_documents([path], options), tmp_path / "x.arrow", mutated(data, 200, seed=4)
    )
    assert refused > 80 and accepted > 8
