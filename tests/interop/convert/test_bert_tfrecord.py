import numpy as np
import pytest
from damage import mutated, survive
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_formats import BERT_TFRECORD, instance, instances, same
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.bert_instances import Instance, resized
from hornbook.interop.convert.bert_tfrecord import (
    PLAIN,
    REMASKED,
    decode_plain,
    decode_remasked,
    encode_plain,
    encode_remasked,
    read_plain,
    read_remasked,
    write_plain,
    write_remasked,
)
from hornbook.interop.formats.protobuf import decode_example, encode_example
from hornbook.interop.formats.tfrecord import frame, read_records

needs_file = pytest.mark.skipif(not BERT_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")
WORDS = (b"\x0a", b"\x12", b"\x1a", b"input_ids", b"\xff" * 10, b"\x01", b"\x00")


@st.composite
def any_instance(draw):
    length = draw(st.integers(1, 12))
    tokens = np.array(draw(st.lists(st.integers(0, 30_000), min_size=length, max_size=length)))
    tokens[-1] = 102
    positions = np.array(sorted(draw(st.sets(st.integers(0, length - 1), max_size=4))), dtype=np.int64)
    border = draw(st.integers(0, length))
    while 0 < border < length and tokens[border - 1] == 0:
        border -= 1  # a sentence ends with [SEP]
    segments = (np.arange(length) >= border).astype(np.int64)
    return Instance(tokens, segments, positions, positions * 3 + 5, draw(st.integers(0, 1)))


@needs_file
def test_the_facts_of_a_real_file():
    some = read_plain(BERT_TFRECORD)
    assert (some.sequence_length, some.max_predictions, len(list(some))) == (128, 20, 45)
    first = next(iter(some))
    assert (first.tokens[0], first.tokens[-1], first.tokens.max() < 30_522) == (101, 102, True)
    assert (first.tokens[first.positions] == 103).mean() > 0.6


@needs_file
def test_a_real_file_written_again_has_the_same_values(tmp_path):
    """Values, not bytes: the order of a protocol buffer's map is the writer's, and TensorFlow's changes."""
    write_plain(tmp_path / "x.tfrecord", read_plain(BERT_TFRECORD))
    for old, new in zip(read_records([BERT_TFRECORD]), read_records([tmp_path / "x.tfrecord"]), strict=True):
        before, after = decode_example(old.data), decode_example(new.data)
        assert set(before) == set(after) == set(PLAIN) and len(old.data) == len(new.data)
        assert all(np.array_equal(before[name], after[name]) for name in PLAIN)


@needs_file
def test_a_real_file_remasked_and_back(tmp_path):
    some = read_plain(BERT_TFRECORD)
    write_remasked(tmp_path / "x.tfrecord", some)
    back = read_remasked(tmp_path / "x.tfrecord")
    assert (back.sequence_length, back.max_predictions) == (128, 20)
    assert same(some, back)


def test_the_layout_of_the_remasked_schema():
    """Section E3 of the old systems: [CLS] behind the K slots, padding at position 384."""
    some = Instance(*map(np.array, ([101, 8, 103, 9, 102], [0, 0, 0, 1, 1], [2], [77])), next_sentence_label=1)
    features = {name: values.tolist() for name, values in encode_remasked(some, 8, 3, 384, "").items()}
    assert list(features) == list(REMASKED)
    assert features["input_ids"] == [103, 0, 0, 101, 8, 9, 102, 0]
    assert features["input_position"] == [2, 384, 384, 0, 1, 3, 4, 384]
    assert features["segment_ids"] == [0, 0, 0, 0, 0, 1, 1, 0]
    assert (features["mask_padding_index"], features["seq_padding_index"]) == ([1], [7])
    assert features["masked_lm_positions"] == [2]
    assert features["masked_labels"] == features["masked_lm_ids"] == [77, 0, 0]
    assert features["masked_lm_weights"] == [1.0, 0.0, 0.0] and features["next_sentence_labels"] == [1]


@settings(max_examples=80, deadline=None)
@given(any_instance())
def test_both_schemas_hold_the_same(some):
    assert decode_plain(decode_example(encode_example(encode_plain(some, 12, 4))), "").equals(some)
    remasked = encode_example(encode_remasked(some, 16, 4, 384, ""))
    assert decode_remasked(decode_example(remasked), "").equals(some)


def test_files_of_records(tmp_path):
    for write, read in ((write_plain, read_plain), (write_remasked, read_remasked)):
        target = tmp_path / write.__name__
        write(target, instances(), 2)
        assert len(list(target.glob("*.tfrecord"))) == 2 and same(read(target), instances())


def test_what_does_not_fit(tmp_path):
    with pytest.raises(
        UserError, match="instance 2 needs 12 slots in a remasked record; add `sequence_length=12` or more"
    ):
        write_remasked(tmp_path / "x", instances(sequence_length=11))
    with pytest.raises(UserError, match="instance 0 ends with token 0"):
        write_remasked(tmp_path / "x", instances([instance()._replace(tokens=np.array([5] * 8 + [0]))]))
    for write in (write_plain, write_remasked):
        with pytest.raises(UserError, match="add, for example, `max_predictions=20`"):
            write(tmp_path / "x", instances(max_predictions=None))
    with pytest.raises(UserError, match="instance 2 has 12 tokens; expected at most 10: increase `sequence_length`"):
        list(resized(instances(), 10, None))
    with pytest.raises(UserError, match="instance 2 has 4 predictions; expected at most 3: increase `max_predictions`"):
        list(resized(instances(), None, 3))
    assert list(tmp_path.iterdir()) == []


def changed(encode, **changes):
    features = encode(instance())
    return {name: np.array(changes.get(name, values), dtype=values.dtype) for name, values in features.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_mask": [1] * 8 + [0, 1] + [0] * 2}, "input_mask is not ones followed by zeros"),
        ({"input_mask": [2] * 9 + [0] * 3}, "input_mask is not ones"),
        ({"input_ids": list(range(12))}, "input_ids has values in the padding, which begins at 9"),
        ({"segment_ids": [1] * 12}, "segment_ids has values in the padding"),
        ({"segment_ids": [0] * 11}, "different lengths"),
        ({"segment_ids": [200] * 9 + [0] * 3}, "a segment outside 0 to 127"),
        ({"masked_lm_weights": [1, 1, 1]}, "masked_lm_weights is not a list of 4 floats"),
        ({"masked_lm_weights": [0.5, 0.5, 0, 0]}, "not ones followed by zeros"),
        ({"masked_lm_weights": [float("nan")] * 4}, "not ones followed by zeros"),
        ({"masked_lm_positions": [7, 2, 0, 0]}, "positions that are not increasing within its 9 tokens"),
        ({"masked_lm_positions": [2, 9, 0, 0]}, "positions that are not increasing"),
        ({"masked_lm_positions": [-1, 2, 0, 0]}, "positions that are not increasing"),
        ({"masked_lm_positions": [2, 7]}, "different lengths"),
        ({"masked_lm_ids": [1, 2, 3, 0]}, "masked_lm_ids has values in the padding"),
        ({"masked_lm_ids": [-1, 2, 0, 0]}, "not a token id"),
        ({"input_ids": [-5] * 9 + [0] * 3}, "not a token id"),
        ({"next_sentence_labels": [2]}, "next-sentence label 2"),
        ({"next_sentence_labels": [0, 1]}, "has 2 numbers; expected one"),
    ],
)
def test_plain_records_that_do_not_fit_together(changes, message):
    features = changed(lambda some: encode_plain(some, 12, 4), **changes)
    with pytest.raises(DataError) as caught:
        decode_plain(features, "here")
    assert one_line(caught.value, "here", message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_padding_index": [5]}, "are inconsistent"),
        ({"mask_padding_index": [-1]}, "are inconsistent"),
        ({"mask_padding_index": [1]}, "not those at masked_lm_positions|in the padding|tokens"),
        ({"seq_padding_index": [99]}, "are inconsistent"),
        ({"seq_padding_index": [2]}, "are inconsistent"),
        ({"input_position": [0] * 14}, "two tokens have the same input_position"),
        ({"input_position": [2**40] * 14}, "an input_position is outside its 14 slots"),
        ({"input_position": [-1] * 14}, "an input_position is outside its 14 slots"),
        ({"masked_lm_positions": [2]}, "1 masked_lm_positions"),
        ({"masked_lm_positions": [3, 7]}, "not those at masked_lm_positions"),
        ({"masked_labels": [1, 2, 0, 0]}, "not those at masked_lm_positions"),
        ({"masked_labels": [1, 2, 3, 0]}, "masked_labels has values in the padding"),
    ],
)
def test_remasked_records_that_do_not_fit_together(changes, message):
    features = changed(lambda some: encode_remasked(some, 14, 4, 384, ""), **changes)
    with pytest.raises(DataError, match=message) as caught:
        decode_remasked(features, "here")
    assert one_line(caught.value, "here")


def test_other_schemas_and_lengths(tmp_path):
    write_plain(tmp_path / "x", instances())
    with pytest.raises(DataError, match="has another schema: 'input_mask, input_position, mask"):
        read_remasked(tmp_path / "x")
    short = frame(encode_example(encode_plain(instance(), 12, 4)))
    (tmp_path / "x").write_bytes(short + frame(encode_example(encode_plain(instance(), 13, 4))))
    with pytest.raises(DataError, match=r"instance 1 is padded to \(13, 4\), but the first one to \(12, 4\)"):
        list(read_plain(tmp_path / "x"))
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(DataError, match="no records"):
        read_plain(tmp_path / "x")


@pytest.mark.parametrize("schema", ["plain", "remasked"])
def test_mutated_records_with_good_checksums(tmp_path, schema):
    features = encode_plain(instance(), 12, 4) if schema == "plain" else encode_remasked(instance(), 14, 4, 384, "")
    read = read_plain if schema == "plain" else read_remasked
    records = (frame(data) for data in mutated(encode_example(features), 1000, seed=5, words=WORDS))
    refused, accepted = survive(read, tmp_path / "x", records)
    assert refused > 800 and accepted > 20
