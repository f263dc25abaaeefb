"""Reader of packed TFRecords, which have several of BERT's instances in each record.

    Graphcore's          packed_input_ids   the MASK sat SEP | a MASK SEP | 0 | CLS CLS
                         packed_input_mask   1   1    1   1  | 2   2   2  | 0 |  2   1       number of the instance
                         packed_position_ids 1   2    3   4  | 1   2   3  | 0 |  0   0       position in the instance
                         packed_next_sentence_labels   0 .. label of 2, label of 1

    Habana's             input_ids          CLS the MASK sat SEP | CLS a MASK SEP | 0
                         input_mask          1   1    1   1   1  |  2  2   2   2  | 0
                         next_sentence_labels   label of 1, label of 2 .. 0

Mask and positions determine the position of each token, so one reader supports both layouts, which differ in the names
of features and the order of the pair labels. The instances of a record are yielded in the order of their numbers, each
padded to the length of the record, since their original padding is unknown.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from hornbook.arrays import Int64s
from hornbook.errors import DataError
from hornbook.interop.convert.bert_instances import Instance, Instances, check_instance
from hornbook.interop.convert.bert_tfrecord import Sizes, instances_of_records
from hornbook.interop.formats.protobuf import Feature, integers


class _Schema(NamedTuple):
    """The names of a packer's features, and whether its pair labels are at the end of their list in reverse order."""

    tokens: str
    mask: str
    segments: str
    offsets: str
    positions: str
    labels: str
    prediction_mask: str
    pair_labels: str
    pair_mask: str
    backwards: bool


_GRAPHCORE: Final = _Schema(
    *("packed_input_ids", "packed_input_mask", "packed_segment_ids", "packed_position_ids"),
    *("packed_masked_lm_positions", "packed_masked_lm_ids", "packed_masked_lm_mask"),
    *("packed_next_sentence_labels", "packed_next_sentence_mask"),
    backwards=True,
)
_HABANA: Final = _Schema(
    *("input_ids", "input_mask", "segment_ids", "positions"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    *("next_sentence_labels", "next_sentence_weights"),
    backwards=False,
)
PACKED: Final = {frozenset(_GRAPHCORE[:9]): _GRAPHCORE, frozenset((*_HABANA[:9], "next_sentence_positions")): _HABANA}
"""Maps the set of feature names of a record to its schema."""


def read_packed(path: Path) -> Instances:
    """Return the instances of a packed TFRecord file, or of a folder of them; see ``instances_of_records``."""
    return instances_of_records(path, _unpack)


def _unpack(features: Mapping[str, Feature], where: str) -> Iterator[tuple[Sizes, Instance]]:
    schema = PACKED.get(frozenset(features))
    if schema is None:
        names = ", ".join(sorted(features))[:200]
        raise DataError(f"{where} has the features {names!r}; expected those of packed instances")
    tokens, mask, segments, offsets = (_numbers(features, name, where) for name in schema[:4])
    positions, labels, prediction_mask = (_numbers(features, name, where) for name in schema[4:7])
    pair_labels, pair_mask = (_numbers(features, name, where) for name in schema[7:9])
    _refuse_lengths((tokens, mask, segments, offsets), where)
    _refuse_lengths((positions, labels, prediction_mask), where)
    _refuse_lengths((pair_labels, pair_mask), where)
    if schema.backwards:
        pair_labels, pair_mask = pair_labels[::-1], pair_mask[::-1]
    count = int(np.count_nonzero(pair_mask))
    if not (pair_mask[:count] == 1).all() or {*mask.tolist(), *prediction_mask.tolist()} - {*range(count + 1)}:
        raise DataError(f"{where}: the masks do not number {count} instances; the file is damaged")
    if tokens[mask == 0].any() or labels[prediction_mask == 0].any():
        raise DataError(f"{where}: tokens or labels belong to no instance; the file is damaged")
    sizes = len(tokens), len(labels)
    for number in range(1, count + 1):
        slots = np.flatnonzero(mask == number)
        slots = slots[np.argsort(offsets[slots], kind="stable")]
        chosen = prediction_mask == number
        masked_slots = positions[chosen]
        if not np.array_equal(offsets[slots], np.arange(len(slots))) or not np.isin(masked_slots, slots).all():
            raise DataError(f"{where}: the positions of instance {number} are not those of its tokens; it is damaged")
        order = np.argsort(offsets[masked_slots], kind="stable")
        instance = Instance(
            tokens=tokens[slots],
            segments=segments[slots],
            positions=offsets[masked_slots][order],
            labels=labels[chosen][order],
            next_sentence_label=int(pair_labels[number - 1]),
        )
        yield sizes, check_instance(instance, f"{where}, instance {number},")


def _numbers(features: Mapping[str, Feature], name: str, where: str) -> Int64s:
    """Return the integers of a feature; some packers write masks as whole floats."""
    value = features.get(name)
    if isinstance(value, np.ndarray) and value.dtype == np.float32 and (value == np.floor(value)).all():
        return value.astype(np.int64)
    return integers(features, name, where)


def _refuse_lengths(lists: tuple[Int64s, ...], where: str) -> None:
    if len({len(values) for values in lists}) > 1:
        raise DataError(f"{where}: features that belong together have different lengths; the file is damaged")
