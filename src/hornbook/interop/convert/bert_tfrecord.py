"""Reader and writer of BERT's TFRecords: Google's schema, and system E's with the masked tokens first.

    plain        input_ids        [CLS] the [MASK] sat [SEP] on ... 0 0      masked_lm_positions  2 7 0
                 input_mask        1     1   1      1   1    1  ... 0 0      masked_lm_ids        cat mat 0
    remasked     input_ids        [MASK] [MASK] 0  [CLS] the sat [SEP] on ... 0     mask_padding_index  2
                 input_position    2      7    384   0    1   3    4    5 ... 384   seq_padding_index  10

With remasked records, a model predicts only at slots 0 to K - 1, where K is the maximum number of predictions;
``input_position`` is the original position of each token. Tokens of id 0 ([PAD] as a random replacement) are omitted
and restored from the gaps between positions. A remasked instance always needs K slots for predictions, so a full one
may not fit.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s
from hornbook.errors import DataError, UserError
from hornbook.interop.convert.bert_instances import (
    Instance,
    Instances,
    check_instance,
    length_of_mask,
    padded,
    unpadded,
)
from hornbook.interop.formats.protobuf import Feature, encode_example, integers
from hornbook.interop.formats.tfrecord import find_tfrecords, read_examples, write_records

PAD_POSITION: Final = 384
"""The position of slots without a token in system E."""

_MASKED: Final = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
PLAIN: Final = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", *_MASKED)
REMASKED: Final = (
    *("input_ids", "input_position", "segment_ids", "mask_padding_index", "seq_padding_index"),
    *("masked_lm_positions", "masked_labels", *_MASKED),
)

_Features = Mapping[str, Feature]
Sizes = tuple[int, int]
"""The padded numbers of tokens and of predictions of an instance."""


def read_plain(path: Path) -> Instances:
    """Return the instances of a plain TFRecord file, or of a folder of them; see ``instances_of_records``."""
    return instances_of_records(path, partial(_decode_one, "bert-tfrecord"))


def read_remasked(path: Path) -> Instances:
    """Return the instances of a remasked TFRecord file, or of a folder of them; see ``instances_of_records``."""
    return instances_of_records(path, partial(_decode_one, "bert-tfrecord-remasked"))


def write_plain(path: Path, instances: Instances, records_per_file: int | None = None) -> None:
    """Write one record per instance; see ``write_records``. Raises UserError if ``max_predictions`` is not known."""
    length, most = instances.sequence_length, _most_predictions(instances)
    records = (encode_example(encode_plain(instance, length, most)) for instance in instances)
    write_records(path, records, records_per_file=records_per_file)


def write_remasked(
    path: Path, instances: Instances, records_per_file: int | None = None, pad_position: int = PAD_POSITION
) -> None:
    """Write one record per instance, with the masked tokens first. Raises UserError if an instance does not fit."""
    length, most = instances.sequence_length, _most_predictions(instances)
    records = (
        encode_example(encode_remasked(instance, length, most, pad_position, f"instance {number}"))
        for number, instance in enumerate(instances)
    )
    write_records(path, records, records_per_file=records_per_file)


def encode_plain(instance: Instance, sequence_length: int, max_predictions: int) -> dict[str, Feature]:
    """Return the seven features of Google's schema; the instance must fit."""
    return {
        "input_ids": padded(instance.tokens, sequence_length),
        "input_mask": padded(np.ones_like(instance.tokens), sequence_length),
        "segment_ids": padded(instance.segments, sequence_length),
        "masked_lm_positions": padded(instance.positions, max_predictions),
        "masked_lm_ids": padded(instance.labels, max_predictions),
        "masked_lm_weights": _weights(instance, max_predictions),
        "next_sentence_labels": np.array([instance.next_sentence_label], dtype=np.int64),
    }


def encode_remasked(
    instance: Instance, sequence_length: int, max_predictions: int, pad_position: int, where: str
) -> dict[str, Feature]:
    """Return the ten features of system E's schema. Raises UserError if the instance does not fit."""
    is_masked = np.zeros(len(instance.tokens), dtype=bool)
    is_masked[instance.positions] = True
    is_kept = instance.tokens != 0
    front, rest = np.flatnonzero(is_masked & is_kept), np.flatnonzero(~is_masked & is_kept)
    end = max_predictions + len(rest)
    needed = max(end, len(instance.tokens))
    if len(instance.tokens) and not is_kept[-1]:
        raise UserError(
            f"{where} ends with token 0, which remasked records cannot represent; choose another target format"
        )
    if needed > sequence_length:
        raise UserError(f"{where} needs {needed} slots in a remasked record; add `sequence_length={needed}` or more")
    labels = instance.labels[instance.tokens[instance.positions] != 0]
    features: dict[str, Feature] = {
        name: np.full(sequence_length, fill, dtype=np.int64)
        for name, fill in (("input_ids", 0), ("input_position", pad_position), ("segment_ids", 0))
    }
    values = (instance.tokens, np.arange(len(instance.tokens)), instance.segments)
    for slots, value in zip(features.values(), values, strict=True):
        assert isinstance(slots, np.ndarray), "created above"
        slots[: len(front)] = value[front]
        slots[max_predictions:end] = value[rest]
    return features | {
        "mask_padding_index": np.array([len(front)], dtype=np.int64),
        "seq_padding_index": np.array([end], dtype=np.int64),
        "masked_lm_positions": instance.positions.astype(np.int64),
        "masked_labels": padded(labels, max_predictions),
        "masked_lm_ids": padded(instance.labels, max_predictions),
        "masked_lm_weights": _weights(instance, max_predictions),
        "next_sentence_labels": np.array([instance.next_sentence_label], dtype=np.int64),
    }


def decode_plain(features: _Features, where: str) -> Instance:
    """Return the instance of a plain record. Raises DataError if its features are inconsistent."""
    tokens, mask, segments, positions, labels = (integers(features, name, where) for name in PLAIN[:5])
    if not len(tokens) == len(mask) == len(segments):
        raise DataError(f"{where}: input_ids, input_mask and segment_ids have different lengths; the file is damaged")
    length, predictions = length_of_mask(mask, "input_mask", where), _num_predictions(features, len(labels), where)
    if len(positions) != len(labels):
        raise DataError(f"{where}: masked_lm_positions and masked_lm_ids have different lengths; the file is damaged")
    instance = Instance(
        tokens=unpadded(tokens, length, "input_ids", where),
        segments=unpadded(segments, length, "segment_ids", where),
        positions=unpadded(positions, predictions, "masked_lm_positions", where),
        labels=unpadded(labels, predictions, "masked_lm_ids", where),
        next_sentence_label=_only(features, "next_sentence_labels", where),
    )
    return check_instance(instance, where)


def decode_remasked(features: _Features, where: str) -> Instance:
    """Return the instance of a remasked record in its original order. Raises DataError if it is inconsistent."""
    slots, origins, segments = (integers(features, name, where) for name in REMASKED[:3])
    if not len(slots) == len(origins) == len(segments):
        raise DataError(
            f"{where}: input_ids, input_position and segment_ids have different lengths; the file is damaged"
        )
    most = len(integers(features, "masked_labels", where))
    masked, end = _only(features, "mask_padding_index", where), _only(features, "seq_padding_index", where)
    if not 0 <= masked <= most <= end <= len(slots):
        raise DataError(f"{where}: {masked} masked tokens of {most} and {end} slots of {len(slots)} are inconsistent")
    used = np.concatenate((np.arange(masked), np.arange(most, end)))  # the slots with a token
    positions, labels = integers(features, "masked_lm_positions", where), integers(features, "masked_lm_ids", where)
    if len(positions) != _num_predictions(features, len(labels), where):
        raise DataError(f"{where}: {len(positions)} masked_lm_positions, but another number of weights; it is damaged")
    if used.size and not 0 <= int(origins[used].min()) <= int(origins[used].max()) < len(slots):
        raise DataError(f"{where}: an input_position is outside its {len(slots)} slots; the file is damaged")
    tokens, token_segments = _restore_order(slots[used], origins[used], segments[used], where)
    instance = Instance(
        tokens=tokens,
        segments=token_segments,
        positions=positions,
        labels=unpadded(labels, len(positions), "masked_lm_ids", where),
        next_sentence_label=_only(features, "next_sentence_labels", where),
    )
    check_instance(instance, where)
    is_kept = instance.tokens[positions] != 0
    front = unpadded(integers(features, "masked_labels", where), masked, "masked_labels", where)
    if not np.array_equal(origins[:masked], positions[is_kept]) or not np.array_equal(front, instance.labels[is_kept]):
        raise DataError(f"{where}: the first tokens are not those at masked_lm_positions; the file is damaged")
    return instance


def _restore_order(slots: Int64s, origins: Int64s, segments: Int64s, where: str) -> tuple[Int64s, Int64s]:
    """Return tokens and segments in the order of their original positions, with token 0 at missing positions.

    A missing position has the segment of the next token, since every sentence ends with [SEP], which is never omitted.
    """
    length = int(origins.max()) + 1 if len(origins) else 0
    owner = np.full(length, -1, dtype=np.int64)
    owner[origins] = np.arange(len(origins))
    if np.count_nonzero(owner >= 0) != len(origins):
        raise DataError(f"{where}: two tokens have the same input_position; the file is damaged")
    following = np.flatnonzero(owner >= 0)
    next_owner = owner[following[np.searchsorted(following, np.arange(length))]] if length else owner
    return np.where(owner >= 0, slots[owner], 0) if length else slots, segments[next_owner]


def decode_instance(features: _Features, format_name: str, where: str) -> tuple[Sizes, Instance]:
    """Return the padded sizes and the instance of a record of either format. Raises DataError."""
    names, decode, padded_by = _SCHEMAS[format_name]
    if set(features) != set(names):
        odd = ", ".join(sorted(set(features) ^ set(names)))[:200]
        raise DataError(f"{where} has another schema: {odd!r} is missing or unknown; check `source_format`")
    sizes = (len(integers(features, "input_ids", where)), len(integers(features, padded_by, where)))
    return sizes, decode(features, where)


_SCHEMAS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[_Features, str], Instance], str]]] = {
    "bert-tfrecord": (PLAIN, decode_plain, "masked_lm_ids"),
    "bert-tfrecord-remasked": (REMASKED, decode_remasked, "masked_labels"),
}


def _decode_one(format_name: str, features: _Features, where: str) -> Iterator[tuple[Sizes, Instance]]:
    yield decode_instance(features, format_name, where)


def instances_of_records(
    path: Path, decode: Callable[[Mapping[str, Feature], str], Iterator[tuple[Sizes, Instance]]]
) -> Instances:
    """Return the instances of a TFRecord file, or of a folder of them.

    Args:
        path: the file or folder.
        decode: yields the padded sizes and the instance for each instance of a record.

    Raises:
        DataError: here or during iteration, a file is missing or damaged, or instances are padded differently.
    """
    files = find_tfrecords(path)

    def sizes_and_instances() -> Iterator[tuple[Sizes, Instance]]:
        for record, features in read_examples(files):
            where = f"{files[record.file]}: the record at byte {record.offset}"
            yield from decode(features, where)

    first = next(sizes_and_instances(), None)
    if first is None or not first[0][0]:
        raise DataError(f"{path}: no records, or a first record without tokens; expected instances")
    sequence_length, most = first[0]

    def read() -> Iterator[Instance]:
        for number, (sizes, instance) in enumerate(sizes_and_instances()):
            if sizes != first[0]:
                raise DataError(f"{path}: instance {number} is padded to {sizes}, but the first one to {first[0]}")
            yield instance

    return Instances(files=tuple(map(str, files)), read=read, sequence_length=sequence_length, max_predictions=most)


def _most_predictions(instances: Instances) -> int:
    if instances.max_predictions is None:
        raise UserError("the source has no number of predictions to pad to; add, for example, `max_predictions=20`")
    return instances.max_predictions


def _weights(instance: Instance, max_predictions: int) -> NDArray[np.float32]:
    return padded(np.ones_like(instance.positions), max_predictions).astype(np.float32)


def _num_predictions(features: _Features, most: int, where: str) -> int:
    """Return the number of predictions, which have weight 1; the padding up to ``most`` has weight 0."""
    weights = features.get("masked_lm_weights")
    if not isinstance(weights, np.ndarray) or weights.dtype != np.float32 or len(weights) != most:
        raise DataError(f"{where}: masked_lm_weights is not a list of {most} floats; the file is damaged")
    return length_of_mask(weights, "masked_lm_weights", where)


def _only(features: _Features, name: str, where: str) -> int:
    values = integers(features, name, where)
    if len(values) != 1:
        raise DataError(f"{where}: {name} has {len(values)} numbers; expected one")
    return int(values[0])
