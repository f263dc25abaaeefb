"""Packed instances, packed here as Graphcore's and as Habana's scripts lay them out, are the ones that went in."""

import numpy as np
import pytest
from tiny_formats import BERT_TFRECORD, instance, same
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.bert_packed import read_packed
from hornbook.interop.convert.bert_tfrecord import read_plain
from hornbook.interop.convert.conversion import ConvertOptions, convert
from hornbook.interop.convert.detect import detect_source
from hornbook.interop.formats.protobuf import encode_example
from hornbook.interop.formats.tfrecord import write_records
from hornbook.interop.instances.static_instances import StaticInstances, holds_instances

LENGTH, PREDICTIONS, PACK = 32, 9, 3
needs_file = pytest.mark.skipif(not BERT_TFRECORD.exists(), reason="../shared/data/tfrecord is not there")


def zeros(length, dtype=np.int64):
    return np.zeros(length, dtype=dtype)


def graphcore(pack, length=LENGTH, predictions=PREDICTIONS):
    """All but but the first one token of each, one after the other; but the first one tokens at the end, in reverse."""
    tokens, mask, segments, places = (zeros(length) for _ in range(4))
    positions, labels, weights = zeros(predictions), zeros(predictions), zeros(predictions, np.float32)
    pairs, used = zeros(PACK), zeros(PACK, np.float32)
    start = scored = 0
    for number, item in enumerate(pack, 1):
        slots = np.array([length - number, *range(start, start + len(item.tokens) - 1)])
        tokens[slots], mask[slots], segments[slots] = item.tokens, number, item.segments
        places[slots] = np.arange(len(slots))
        end = scored + len(item.positions)
        positions[scored:end], labels[scored:end] = slots[item.positions], item.labels
        weights[scored:end] = number
        pairs[-number], used[-number] = item.next_sentence_label, 1
        start, scored = start + len(item.tokens) - 1, end
    names = ("input_ids", "input_mask", "segment_ids", "position_ids", "masked_lm_positions", "masked_lm_ids")
    names += ("masked_lm_mask", "next_sentence_labels", "next_sentence_mask")
    values = (tokens, mask, segments, places, positions, labels, weights, pairs, used)
    return {f"packed_{name}": value for name, value in zip(names, values, strict=True)}


def habana(pack, length=LENGTH, predictions=PREDICTIONS):
    """One after the other; the labels of pairs in the same order."""
    tokens, mask, segments, places = (zeros(length) for _ in range(4))
    positions, labels, weights = (zeros(predictions) for _ in range(3))
    firsts, pairs, used = (zeros(PACK) for _ in range(3))
    start = scored = 0
    for number, item in enumerate(pack, 1):
        end, last = start + len(item.tokens), scored + len(item.positions)
        tokens[start:end], mask[start:end], segments[start:end] = item.tokens, number, item.segments
        places[start:end] = np.arange(len(item.tokens))
        positions[scored:last], labels[scored:last] = start + item.positions, item.labels
        weights[scored:last] = number
        firsts[number - 1], pairs[number - 1], used[number - 1] = start, item.next_sentence_label, 1
        start, scored = end, last
    return {
        "input_ids": tokens,
        "input_mask": mask,
        "segment_ids": segments,
        "positions": places,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": weights,
        "next_sentence_positions": firsts,
        "next_sentence_labels": pairs,
        "next_sentence_weights": used,
    }


PACKS = [
    [instance(9, (2, 7), 1), instance(5, (1,), 0), instance(12, (1, 3, 10), 1)],
    [instance(32, (0, 31), 1)],
    [instance(6, (), 0), instance(7, (6,), 1)],
]
SCHEMAS = pytest.mark.parametrize("pack", [graphcore, habana])


def write(path, records):
    write_records(path, map(encode_example, records))
    return path


@SCHEMAS
def test_what_was_packed_comes_out(tmp_path, pack):
    path = write(tmp_path / "x.tfrecord", map(pack, PACKS))
    assert detect_source(path) == "bert-tfrecord-packed"
    found = read_packed(path)
    assert (found.sequence_length, found.max_predictions) == (LENGTH, PREDICTIONS)
    assert same(found, [item for some in PACKS for item in some])
    report = convert(path, tmp_path / "y.tfrecord", ConvertOptions(verify=True, max_predictions=3))
    assert (report.items, report.tokens, report.verified) == (6, 71, True)
    assert same(read_plain(tmp_path / "y.tfrecord"), found)


@needs_file
@SCHEMAS
def test_a_real_file(tmp_path, pack):
    items = list(read_plain(BERT_TFRECORD))
    packs = [items[start : start + 3] for start in range(0, len(items), 3)]
    path = write(tmp_path / "x.tfrecord", (pack(some, 384, 60) for some in packs))
    assert same(read_packed(path), items)


def test_training_asks_for_another_file(tmp_path):
    path = write(tmp_path / "x.tfrecord", map(graphcore, PACKS))
    assert holds_instances(path)
    with pytest.raises(UserError) as caught:
        StaticInstances(path, seed=1)
    assert one_line(caught.value, "packs several instances in a record", f"hornbook corpus convert {path}")


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("packed_input_mask", 0, 2, "the positions of instance 1"),
        ("packed_input_mask", 0, 4, "the masks do not number 3 instances"),
        ("packed_input_mask", 0, 0, "belong to no instance"),
        ("packed_position_ids", 0, 5, "the positions of instance 1"),
        ("packed_masked_lm_positions", 0, 99, "the positions of instance 1"),
        ("packed_masked_lm_positions", 0, 30, "the positions of instance 1"),
        ("packed_masked_lm_mask", 0, 0, "belong to no instance"),
        ("packed_next_sentence_mask", 0, 0, "the masks do not number 2 instances"),
        ("packed_next_sentence_labels", 2, 7, "the next-sentence label 7"),
        ("packed_input_ids", 0, -1, "not a token id"),
    ],
)
def test_damage_is_one_line(tmp_path, name, place, value, message):
    record = graphcore(PACKS[0])
    record[name][place] = value
    path = write(tmp_path / "x.tfrecord", [record])
    with pytest.raises(DataError, match=message) as caught:
        list(read_packed(path))
    assert one_line(caught.value, "x.tfrecord")


def test_lists_of_several_lengths(tmp_path):
    record = habana(PACKS[0])
    path = write(tmp_path / "x.tfrecord", [record | {"positions": record["positions"][:-1]}])
    with pytest.raises(DataError, match="have different lengths"):
        list(read_packed(path))
