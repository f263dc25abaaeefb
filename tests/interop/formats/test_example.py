import numpy as np
import pytest
from damage import mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_formats import BERT_TFRECORD, EXAMPLE_TFRECORD

from hornbook.errors import DataError
from hornbook.interop.formats.protobuf import (
    Malformed,
    decode_example,
    decode_varints,
    encode_example,
    encode_varints,
    integers,
)
from hornbook.interop.formats.tfrecord import read_records

needs_files = pytest.mark.skipif(not EXAMPLE_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")
INT64 = st.integers(-(2**63), 2**63 - 1)
FEATURES = st.one_of(
    arrays.arrays(np.int64, st.integers(0, 20), elements=INT64),
    arrays.arrays(np.float32, st.integers(1, 5), elements=st.floats(width=32, allow_nan=False)),
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
)


def test_the_layout_byte_for_byte():
    data = encode_example({"input_ids": np.array([5, 300])})
    assert data == b"\x0a\x16\x0a\x14" + b"\x0a\x09input_ids" + b"\x12\x07\x1a\x05\x0a\x03\x05\xac\x02"


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=20), FEATURES, max_size=5))
def test_round_trip(features):
    decoded = decode_example(encode_example(features))
    assert list(decoded) == list(features)
    for name, value in features.items():
        assert type(decoded[name]) is type(value)
        if isinstance(value, list):
            assert decoded[name] == value
        else:
            assert decoded[name].dtype == value.dtype and np.array_equal(decoded[name], value)


@needs_files
@pytest.mark.parametrize("path", [BERT_TFRECORD, EXAMPLE_TFRECORD])
def test_real_records_come_back_byte_for_byte(path):
    records = [record.data for record in read_records([path])]
    assert [encode_example(decode_example(data)) for data in records] == records


@needs_files
def test_the_values_of_a_real_file():
    first = decode_example(next(read_records([EXAMPLE_TFRECORD])).data)
    assert first["x_int"].tolist() == list(range(0, 100, 10)) and first["x_byte"] == [b"test str"]
    assert first["x_float"].dtype == np.float32 and first["x_float"].tolist() == list(range(10))


@settings(max_examples=60, deadline=None)
@given(st.lists(INT64, max_size=50))
def test_varints_by_another_way(values):
    def by_hand(value):
        value, out = value % 2**64, []
        while value >= 128:
            out.append(value % 128 + 128)
            value //= 128
        return bytes([*out, value])

    data = b"".join(map(by_hand, values))
    assert encode_varints(np.array(values, dtype=np.int64)) == data
    assert decode_varints(data).tolist() == values


def test_many_varints_go_in_pieces():
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200_000) >> np.arange(200_000) % 64
    assert np.array_equal(decode_varints(encode_varints(values)), values)


def feature(kind, content):
    inner = b"\x0a\x01a\x12" + bytes([len(content) + 2, kind, len(content)]) + content
    return b"\x0a" + bytes([len(inner) + 2]) + b"\x0a" + bytes([len(inner)]) + inner


def test_what_the_format_allows_beside_what_we_write():
    assert decode_example(feature(0x1A, b"\x08\x05\x08\xac\x02\x0a\x01\x07"))["a"].tolist() == [5, 300, 7]
    assert decode_example(feature(0x12, b"\x0d\x00\x00\x80\x3f"))["a"].tolist() == [1.0]
    assert decode_example(feature(0x1A, b"\x0a\x01\x05") * 2)["a"].tolist() == [5]
    unknown = b"\x50\x01" + b"\x59" + bytes(8) + b"\x5d" + bytes(4) + b"\x62\x02hi"
    assert decode_example(unknown + feature(0x1A, b"\x0a\x01\x05"))["a"].tolist() == [5]
    assert decode_example(b"") == {} and decode_example(b"\x0a\x04\x0a\x02\x12\x00")[""].tolist() == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05\x00", "5 bytes where 1 are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes where 0 are left"),
        (b"\x80" * 9, "no end"),
        (b"\x80" * 11, "more than ten bytes"),
        (b"\x02\x00", "no number"),
        (b"\x0b", "wire type 3"),
        (b"\x09\x00", "8 bytes where 1"),
        (b"\x0a\x05\x0a\x03\x0a\x01\xff", "not UTF-8"),
        (feature(0x12, b"\x0a\x03\x00\x00\x00"), "floats has 3 bytes"),
        (feature(0x1A, b"\x0a\x01\x80"), "no end"),
        (feature(0x1A, b"\x0a\x0b" + b"\x80" * 10 + b"\x01"), "more than 10"),
        (feature(0x1A, b"\x0d\x00\x00\x00\x00"), "wire type 5"),
    ],
)
def test_wrong_lengths_and_wire_types_are_malformed(data, message):
    with pytest.raises(Malformed, match=message):
        decode_example(data)


def test_mutated_examples_decode_or_are_malformed():
    original = encode_example(
        {"input_ids": np.arange(40) * 999, "weights": np.ones(5, dtype=np.float32), "name": [b"abc", b""]}
    )
    malformed = decoded = 0
    for data in mutated(original, 1500, seed=1, words=(b"\x0a", b"\x12", b"\x1a", b"\xff" * 10, b"\x80" * 9)):
        try:
            for value in decode_example(data).values():
                assert len(value) <= len(data)
            decoded += 1
        except Malformed as error:
            assert "\n" not in str(error)
            malformed += 1
    assert malformed > 300 and decoded > 300


def test_the_integers_of_a_feature():
    features = {"a": np.array([1, 2]), "b": np.ones(1, dtype=np.float32), "c": [b"x"]}
    assert integers(features, "a", "here").tolist() == [1, 2]
    for name in "bcd":
        with pytest.raises(DataError, match=f"here: the feature '{name}'"):
            integers(features, name, "here")


def test_a_feature_of_many_parts_takes_no_longer_than_its_bytes():
    part = b"\x12\x00" * 100_000
    entry = b"\x0a\x01a" + part
    length = encode_varints(np.array([len(entry)]))
    inner = b"\x0a" + length + entry
    data = b"\x0a" + encode_varints(np.array([len(inner)])) + inner
    assert decode_example(data)["a"].tolist() == []
