import json
import sys

import numpy as np
import pytest
from damage import mutated, survive
from tiny_formats import BERT_TFRECORD, instance, instances, same
from tiny_text import one_line

from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.convert.bert_arrow import read_arrow, write_arrow
from hornbook.interop.convert.bert_tfrecord import read_plain
from hornbook.storage.faults import inject

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
pytest.importorskip("pyarrow.ipc")

FILE = "data-00000-of-00001.arrow"
GOOD = {
    "input_ids": [[101, 103, 102, 0], [101, 5, 6, 102]],
    "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1]],
    "token_type_ids": [[0, 0, 1, 0], [0, 0, 0, 0]],
    "labels": [[-100, 77, -100, -100], [-100, -100, 9, -100]],
    "next_sentence_label": [0, 1],
}


def write_columns(path, columns, types=None, **options):
    table = pyarrow.table({name: pyarrow.array(values, (types or {}).get(name)) for name, values in columns.items()})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema, **options) as stream:
        stream.write_table(table, max_chunksize=1)
    return path


@pytest.mark.skipif(not BERT_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")
def test_a_real_file_and_back(tmp_path):
    some = read_plain(BERT_TFRECORD)
    write_arrow(tmp_path / "out", some)
    back = read_arrow(tmp_path / "out")
    assert (back.sequence_length, back.max_predictions) == (128, None) and same(some, back)


def test_the_columns_of_the_hub(tmp_path):
    write_arrow(tmp_path / "out", instances(sequence_length=12))
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [FILE, "dataset_info.json", "state.json"]
    with pyarrow.memory_map(str(tmp_path / "out" / FILE)) as source, pyarrow.ipc.open_stream(source) as stream:
        table = stream.read_all()
    types = [str(field.type) for field in table.schema]
    assert types == ["list<item: int32>", "list<item: int8>", "list<item: int8>", "list<item: int64>", "int64"]
    row = {name: values[1] for name, values in table.to_pydict().items()}
    assert row["input_ids"] == [101, 103, 303, 404, 505, *[0] * 7]
    assert row["attention_mask"] == [1] * 5 + [0] * 7 and row["token_type_ids"] == [0, 0, 1, 1, 1, *[0] * 7]
    assert row["labels"] == [-100, 307, *[-100] * 10] and row["next_sentence_label"] == 1
    info = json.loads(table.schema.metadata[b"huggingface"])["info"]
    assert info == json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert info["features"]["labels"] == {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"}


def test_more_rows_than_a_batch(tmp_path):
    many = [instance(9, (2, 7), number % 2) for number in range(2001)]
    write_arrow(tmp_path / "out", instances(many))
    assert same(read_arrow(tmp_path / "out"), many)


@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.uint16()), pyarrow.large_list(pyarrow.int64())])
def test_other_widths(tmp_path, kind):
    path = write_columns(tmp_path / "x.arrow", GOOD, {"input_ids": kind, "next_sentence_label": pyarrow.int8()})
    first, second = read_arrow(path)
    assert (
        first.tokens.tolist() == [101, 103, 102] and first.positions.tolist() == [1] and first.labels.tolist() == [77]
    )
    assert second.labels.tolist() == [9] and second.next_sentence_label == 1


def test_splits(tmp_path):
    for split in ("train", "test"):
        write_arrow(tmp_path / split, instances([instance(label=int(split == "test"))]))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert next(iter(read_arrow(tmp_path, "test"))).next_sentence_label == 1
    for split in (None, "validation"):
        with pytest.raises(UserError, match="has the splits train, test; choose one with `split`"):
            read_arrow(tmp_path, split)
    with pytest.raises(UserError, match="has no splits"):
        read_arrow(tmp_path / "train", "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert same(read_arrow(tmp_path), [instance()])
    for content in ('{"splits": ["../x"]}', '{"splits": 5}', "[]", '{"splits": [".."]}'):
        (tmp_path / "dataset_dict.json").write_text(content)
        with pytest.raises(DataError, match="a list of names"):
            read_arrow(tmp_path)


def test_damaged_states(tmp_path):
    write_arrow(tmp_path / "out", instances())
    state = tmp_path / "out" / "state.json"
    for content in ("[]", "{}", '{"_data_files": [5]}', '{"_data_files": [{"filename": "../out/x"}]}'):
        state.write_text(content)
        with pytest.raises(DataError, match="expected _data_files"):
            read_arrow(tmp_path / "out")
    state.write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(DataError, match="no such file"):
        read_arrow(tmp_path / "out")
    state.write_text('{"_data_files": [{"filename": "x"}], "_indices_data_files": [{"filename": "y"}]}')
    with pytest.raises(DataError, match="flatten_indices"):
        read_arrow(tmp_path / "out")
    state.unlink()
    with pytest.raises(DataError, match=r"has no state\.json"):
        read_arrow(tmp_path / "out")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"labels": None}, "'labels' is missing"),
        ({"special_tokens_mask": [[0], [0]]}, "'special_tokens_mask' is missing, unknown"),
        ({"labels": [["a"], ["b"]]}, "column labels is of type"),
        ({"labels": [1, 2]}, "column labels is of type int64"),
        ({"next_sentence_label": [[0], [1]]}, "column next_sentence_label is of type"),
        ({"next_sentence_label": [0.0, 1.0]}, "column next_sentence_label is of type double"),
        ({"next_sentence_label": [None, 1]}, "has nulls"),
        ({"labels": [None, [1, 2, 3, 4]]}, "has nulls"),
        ({"labels": [[None] * 4, [1] * 4]}, "has nulls"),
        ({"labels": [[-100] * 3, [-100] * 4]}, "different lengths"),
        ({"labels": [[-100] * 3 + [5], [-100] * 4]}, "positions that are not increasing within its 3 tokens"),
        ({"labels": [[-5] * 4, [-100] * 4]}, "not a token id|positions"),
        ({"attention_mask": [[1, 0, 1, 0], [1] * 4]}, "not ones followed by zeros"),
        ({"input_ids": [[1] * 4, [1] * 4]}, "has values in the padding"),
        ({"next_sentence_label": [0, 3]}, "next-sentence label 3"),
    ],
)
def test_other_columns(tmp_path, columns, message):
    values = {name: value for name, value in (GOOD | columns).items() if value is not None}
    path = write_columns(tmp_path / "x.arrow", values)
    with pytest.raises(DataError, match=message) as caught:
        list(read_arrow(path))
    assert one_line(caught.value, "x.arrow")


def test_rows_of_another_length(tmp_path):
    lists = {name: [value[0], value[1][:3]] for name, value in GOOD.items() if name != "next_sentence_label"}
    path = write_columns(tmp_path / "x.arrow", GOOD | lists | {"labels": [[-100] * 4, [-100] * 3]})
    with pytest.raises(DataError, match="row 1 has 3 input_ids, but the first row has 4"):
        list(read_arrow(path))


def test_compressed_batches(tmp_path):
    path = write_columns(tmp_path / "x.arrow", GOOD, options=pyarrow.ipc.IpcWriteOptions(compression="zstd"))
    assert [row.tokens.tolist() for row in read_arrow(path)] == [[101, 103, 102], [101, 5, 6, 102]]


def test_a_truncated_file_is_found_at_any_length(tmp_path):
    data = write_columns(tmp_path / "x.arrow", GOOD).read_bytes()
    for size in [*range(0, len(data), 37), len(data) - 8, len(data) - 1]:
        (tmp_path / "x.arrow").write_bytes(data[:size])
        with pytest.raises(DataError) as caught:
            list(read_arrow(tmp_path / "x.arrow"))
        assert one_line(caught.value, "x.arrow")
    (tmp_path / "x.arrow").write_bytes(data + b"\0")
    with pytest.raises(DataError, match="not an Arrow stream, or truncated"):
        list(read_arrow(tmp_path / "x.arrow"))


def test_mutated_files_are_refused_or_read(tmp_path):
    data = write_columns(tmp_path / "x.arrow", GOOD).read_bytes()
    refused, accepted = survive(read_arrow, tmp_path / "x.arrow", mutated(data, 200, seed=6))
    assert refused > 120 and accepted > 3


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: read_arrow(tmp_path), lambda: write_arrow(tmp_path / "out", instances())):
        with pytest.raises(UserError, match=r"^working with Arrow .* needs pyarrow: .* 'hornbook\[arrow\]'") as caught:
            call()
        assert one_line(caught.value)


def test_a_full_disk_leaves_nothing(tmp_path):
    with inject("write", 1, "enospc"), pytest.raises(StorageError, match="free"):
        write_arrow(tmp_path / "out", instances())
    assert list(tmp_path.iterdir()) == []


def test_a_lying_metadata_length(tmp_path):
    data = write_columns(tmp_path / "x.arrow", GOOD).read_bytes()
    for length in (2**31 - 1, -1, len(data)):
        (tmp_path / "x.arrow").write_bytes(data[:4] + np.int32(length).tobytes() + data[8:])
        with pytest.raises(DataError, match="damaged, or not a valid Arrow file"):
            read_arrow(tmp_path / "x.arrow")
