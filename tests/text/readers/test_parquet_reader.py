import errno
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_text import one_line

from hornbook.errors import DataError, StorageError, UserError
from hornbook.text.documents import Document, Position, ReadOptions, Tally, list_sources, read_documents, read_sources
from hornbook.text.readers.columns import outcomes
from hornbook.text.reading import Source

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

from tiny_parquet import SHAPES, TEXTS, write_bomb, write_groups, write_parquet  # noqa: E402 - it needs pyarrow


def read(path, **options):
    return list(read_documents([path], ReadOptions(**options)))


def fails(path, *parts, **options):
    with pytest.raises(DataError) as caught:
        read(path, **options)
    assert one_line(caught.value, str(path), *parts), str(caught.value)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("field", ["text", "meta.body"])
def test_each_row_is_a_document(tmp_path, shape, field):
    path = write_parquet(tmp_path / "a.parquet", shape)
    tally = Tally()
    found = list(read_documents([path], ReadOptions(field=field), tally))
    rows = [(row, text) for row, text in enumerate(TEXTS) if text]
    assert found == [Document(text, str(path), row, len(text.encode())) for row, text in rows]
    assert tally.empty == TEXTS.count(None) + TEXTS.count("")


def test_folders_give_their_parquet_files_alone(tmp_path):
    write_parquet(tmp_path / "b.parquet")
    (tmp_path / "README.md").write_text("words")
    assert list_sources([tmp_path], ReadOptions(format="parquet")) == [str(tmp_path / "b.parquet")]
    assert len(list_sources([tmp_path], ReadOptions())) == 2


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.large_string(),
        pyarrow.binary(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
)
def test_other_types_of_text(tmp_path, kind):
    table = pyarrow.table({"text": pyarrow.array(["one", None, "two"]).cast(kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert [document.text for document in read(tmp_path / "a.parquet")] == ["one", "two"]


@pytest.mark.parametrize("groups", [[[], ["a", "b"]], [["a"], [], ["b"]], [["a", "b"], []], [[], ["a"], [], [], ["b"]]])
def test_row_groups_without_rows(tmp_path, groups):
    path = write_groups(tmp_path / "a.parquet", groups)
    assert [(document.text, document.offset) for document in read(path)] == [("a", 0), ("b", 1)]
    assert [document.text for document in read_sources([str(path)], ReadOptions(), Tally(), skip=Position(0, 1))] == [
        "b"
    ]


def test_a_table_without_rows(tmp_path):
    tally = Tally()
    assert list(read_documents([write_groups(tmp_path / "a.parquet", [[]])], ReadOptions(), tally)) == []
    assert (tally.documents, tally.empty, tally.faults) == (0, 0, 0)


def test_reading_resumes_at_any_row(tmp_path):
    path = write_parquet(tmp_path / "a.parquet")
    options, whole, places = ReadOptions(), Tally(), []
    found = []
    for document in read_sources([str(path)], options, whole):
        found.append(document)
        places.append(whole.position)
    for count, position in enumerate(places, 1):
        assert list(read_sources([str(path)], options, Tally(), skip=position)) == found[count:]


def test_columns_that_are_not_there_or_hold_no_text(tmp_path):
    columns = {"body": ["a"], "number": [1], "list": [["a"]], "nested": [{"list": [{"text": "a"}]}], "time": [1.5]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"
    fails(path, "no column 'text' (columns: 'body'); set `field` to the one with the text")
    fails(path, "no column 'list'", field="list")
    fails(path, "the column 'number' is of type INT64; expected text", field="number")
    fails(path, "is of type list; expected text", field="list.list.element")
    fails(path, "is of type list; expected text", field="nested.list.list.element.text")
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), path)
    fails(path, "several columns named 'text'")


def test_every_column_that_an_error_offers_is_accepted(tmp_path):
    long = "a very long name " * 5
    columns = {"id": [1], "a.b": ["dotted"], "a": ["a"], "tags": [["x"]], long: ["long"]}
    columns |= {"meta": [{"n": 1, "deep": {"body": "deep"}}], **{f"score_{number}": [0.5] for number in range(8)}}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    expected = {"a.b": "dotted", "a": "a", long: "long", "meta.deep.body": "deep"}
    fails(tmp_path / "a.parquet", f"(columns: {', '.join(map(repr, expected))}); set `field`")
    for field, text in expected.items():
        assert [document.text for document in read(tmp_path / "a.parquet", field=field)] == [text]
    parquet.write_table(pyarrow.table({"id": [1]}), tmp_path / "b.parquet")
    fails(tmp_path / "b.parquet", "no column 'text' (columns: none with text); expected one with the text")


def test_a_row_that_is_not_utf8_costs_that_row(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.array([b"one", b"caf\xe9", b"two", b"x" * 50])}), path)
    fails(path, "row 1: not UTF-8 at byte 3 (0xe9)")
    tally = Tally()
    options = ReadOptions(on_error="skip", max_document_bytes=40)
    assert [document.text for document in read_documents([path], options, tally)] == ["one", "two"]
    assert tally.faults == 2 and "row 3: longer than 40 B" in tally.messages[1]


def test_truncated_and_other_files(tmp_path):
    data = write_parquet(tmp_path / "a.parquet").read_bytes()
    path = tmp_path / "b.parquet"
    for size in (0, 3, 4, 8, 100, len(data) - 8, len(data) - 1):
        path.write_bytes(data[:size])
        fails(path, "not a valid Parquet file")
    path.write_bytes(b"PAR1" + b"\xff" * 100 + (100).to_bytes(4, "little") + b"PAR1")
    fails(path, "damaged, or not a valid Parquet file")
    path.write_bytes(data[:-8] + (2**31).to_bytes(4, "little") + b"PAR1")
    fails(path, "not a valid Parquet file")
    path.write_bytes(b'{"text": "one"}\n')
    fails(path, "damaged, or not a valid Parquet file")


def test_checksums_of_pages_are_verified(tmp_path):
    data = write_parquet(tmp_path / "a.parquet", "checksums").read_bytes()
    place = data.index(b"\x28\xb5\x2f\xfd") + 12
    (tmp_path / "a.parquet").write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    fails(tmp_path / "a.parquet", "CRC checksum")


@pytest.mark.slow
def test_a_page_of_more_than_128_mib_is_read(tmp_path):
    path = write_bomb(tmp_path / "a.parquet", [random.Random(1).randbytes(5 << 20).hex()] * 14, compression="none")
    assert path.stat().st_size > 139 << 20, "in one page"
    assert sum(document.num_bytes for document in read(path)) == 140 << 20


def test_standard_input_and_no_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(b"")}))
    with pytest.raises(DataError, match="standard input cannot be read as Parquet"):
        read("-", format="parquet")
    path = write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"^working with Parquet files needs pyarrow: .* 'hornbook\[arrow\]'$"):
        read(path)


MIB = 1 << 20
BOMBS = {
    "page": lambda path: write_bomb(path, ["x" * (140 * MIB)]),
    "pages": lambda path: write_bomb(path, ["x" * (40 * MIB)] * 4, data_page_size=1, write_batch_size=1),
    "dictionary": lambda path: write_bomb(
        path,
        pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 100_000, pyarrow.int32()), ["x" * MIB]),
        use_dictionary=True,
        dictionary_pagesize_limit=1 << 30,
    ),
    "deltas": lambda path: write_bomb(path, ["x" * MIB] * 200, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
    "nothing": lambda path: write_bomb(path, pyarrow.nulls(1_500_000, pyarrow.string())),
}


def in_this_process(path):
    """What the child does, for a test that lets pyarrow fail."""
    return list(outcomes("parquet", Source(str(path), path), ReadOptions(), 0))


def raising(error):
    def fail(*arguments, **options):
        raise error

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.ESTALE, errno.ENOSPC, errno.ETIMEDOUT])
def test_a_failing_disk_is_no_damaged_document(tmp_path, monkeypatch, number):
    path = write_parquet(tmp_path / "a.parquet")
    error = OSError(number, "Error reading bytes from file")
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", raising(error))
    with pytest.raises(StorageError) as caught:
        in_this_process(path)
    assert one_line(caught.value, str(path), "cannot read", "Error reading bytes") and caught.value.exit_code == 1


def test_an_error_that_is_not_of_the_system_is_damage(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet")
    for error in (OSError("Unexpected end of stream"), OSError(errno.EINVAL, "negative offset"), MemoryError()):
        monkeypatch.setattr(parquet.ParquetFile, "iter_batches", raising(error))
        with pytest.raises(DataError, match="damaged, or not a valid Parquet file"):
            in_this_process(path)


READ = """
import sys
from pathlib import Path
from hornbook.errors import DataError
from hornbook.text.documents import ReadOptions, read_documents

for path in sys.argv[1:]:
    try:
        print(sum(document.num_bytes for document in read_documents([path], ReadOptions())))
    except DataError as error:
        print(error)
[highest] = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(int(highest.split()[1]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to ask for the memory of a process")
def test_bombs_and_large_row_groups_need_little_memory(tmp_path):
    bombs = [write(tmp_path / f"{name}.parquet") for name, write in BOMBS.items()]
    assert all(path.stat().st_size < MIB // 4 for path in bombs)
    noise = random.Random(1).randbytes(10 * MIB).hex()
    texts = [noise[start : start + 2000] for start in range(0, len(noise), 2000)]
    large = tmp_path / "large.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), large, row_group_size=len(texts))
    words = [sys.executable, "-c", READ, *map(str, bombs), str(large)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    *refused, num_bytes, mebibytes = done.stdout.splitlines()
    for path, message in zip(bombs, refused, strict=True):
        assert message.startswith(str(path)) and ("unpacks to" in message or "longer than 128.0 MiB" in message)
    assert int(num_bytes) == 20 * MIB and int(mebibytes) < 200


FUZZ = """
import json, sys
from pathlib import Path
from hornbook.text.documents import ReadOptions, read_documents
from damage import mutated, survive

folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
outcomes = {}
for original in sorted(folder.glob("*.parquet")):
    for field in ("text", "meta.body"):
        contents = mutated(original.read_bytes(), count, seed)
        read = lambda path: read_documents([path], ReadOptions(field=field))
        outcomes[f"{original.stem} {field}"] = survive(read, folder / "mutated" / "x.parquet", contents)
print(json.dumps(outcomes))
"""


@pytest.mark.slow
def test_mutated_files_are_refused_or_read(tmp_path):
    """Some of them end the child; the parent lives, and reads the next file."""
    for shape in SHAPES:
        write_parquet(tmp_path / f"{shape}.parquet", shape)
    (tmp_path / "mutated").mkdir()
    words = [sys.executable, "-c", FUZZ, str(tmp_path), "200", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)
    assert len(outcomes) == 6
    assert all(refused > 100 and accepted > 10 for refused, accepted in outcomes.values()), outcomes
