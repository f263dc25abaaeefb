import hashlib
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hornbook.errors import DataError, StorageError
from hornbook.storage.json_files import dump_json, dump_sealed, parse_json, read_bytes, read_json

KEYS = st.sampled_from(["a", "checksum", "zz"]) | st.text(max_size=3)
VALUES = st.recursive(st.integers() | st.text(max_size=5), lambda deeper: st.dictionaries(KEYS, deeper, max_size=3))


def test_equal_values_give_equal_bytes():
    assert dump_json({"b": [1, 2.5, None], "a": "ü"}) == dump_json({"a": "ü", "b": [1, 2.5, None]})
    assert dump_json({"b": 1, "a": "ü"}) == '{\n  "a": "ü",\n  "b": 1\n}\n'.encode()


def test_what_is_dumped_is_read(tmp_path):
    value = {"a": [1, -2.5, True, None, "text", {"deep": {}}]}
    (tmp_path / "x.json").write_bytes(dump_json(value))
    assert read_json(tmp_path / "x.json", "the test's file") == value


@given(st.dictionaries(KEYS.filter(lambda key: key != "checksum"), VALUES, min_size=1, max_size=4))
@example({"a": 1, "zz": {"checksum": "0" * 64}})
@example({"zz": '\n  "checksum": "' + "0" * 64 + '"'})
@example({"a": 1})  # then the checksum comes last
def test_a_seal_is_the_hash_of_the_rest(value):
    sealed = value | {"checksum": hashlib.sha256(dump_json(value)).hexdigest()}
    assert dump_sealed(value) == dump_json(sealed)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_word_for_a_number_that_is_not_finite(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_json({"x": value})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{} {}",
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b"[Infinity]",
        b"\xff",
        b"[" * 100_000,
        b"\xef\xbb\xbf{}",
        b"9" * 5000,
        b"{'a': 1}",
        b'{"a": "\n"}',
        b"01",
        b"nul",
        b"[1e999]",
        b"[-1e999]",
    ],
)
def test_malformed_json_is_reported_in_one_line_with_the_file(tmp_path, data):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_json(tmp_path / "x.json", "the test's file")
    assert str(caught.value).startswith(f"{tmp_path / 'x.json'}: the test's file is not valid JSON")
    assert "\n" not in str(caught.value)


def test_half_a_character_is_written_as_it_was_read():
    """JSON may escape it, though UTF-8 does not have it; whoever needs whole texts reports its place."""
    for data in (b'{"half a character": "\\ud83d"}', b'["\\uDC00\\uD800"]'):
        value = parse_json(data, "x")
        assert parse_json(dump_json(value), "x") == value


def test_a_whole_character_may_be_escaped(tmp_path):
    (tmp_path / "x.json").write_bytes(b'["\\ud83d\\ude00", 1e308]')
    assert read_json(tmp_path / "x.json", "the test's file") == ["\U0001f600", 1e308]


@pytest.mark.parametrize("name", ["missing.json", "missing/x.json", "file/x.json"])
def test_a_missing_file_is_reported(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"the manifest is missing"):
        read_json(tmp_path / name, "the manifest")


def test_what_is_no_plain_file_is_reported_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(DataError, match="is not a regular file"):
            read_json(tmp_path / name, "the manifest")


def test_a_large_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1025))
    assert len(read_bytes(tmp_path / "x", "a file", limit=1025)) == 1025
    with pytest.raises(DataError, match=r"larger than 1.0 KiB"):
        read_bytes(tmp_path / "x", "a file", limit=1024)


def test_a_disk_that_fails_is_not_the_users_mistake(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="symbolic links"):
        read_bytes(loop, "a file")


def test_plain_values_are_read():
    assert parse_json(b"[1, 2]", "a list") == [1, 2]
