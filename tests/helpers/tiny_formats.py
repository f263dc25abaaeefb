"""Documents and instances for tests, as if they had been read from files."""

from collections.abc import Iterable, Sequence

import numpy as np
from tiny_text import SHARED

from hornbook.interop.convert.bert_instances import Instance, Instances
from hornbook.interop.convert.token_documents import Documents, TokenDocument

BERT_TFRECORD = SHARED / "tfrecord" / "bert_sample_text.tfrecord"
EXAMPLE_TFRECORD = SHARED / "tfrecord" / "torchdata_example.tfrecord"


def documents(lists: Iterable[Sequence[int]], **facts: object) -> Documents:
    items = [TokenDocument(np.array(tokens, dtype=np.int32), 0, number) for number, tokens in enumerate(lists)]
    return Documents(files=("memory",), read=lambda: iter(items), **facts)  # type: ignore[arg-type]


def lists(content: Documents) -> list[list[int]]:
    return [document.tokens.tolist() for document in content]


def instance(length: int = 9, positions: Sequence[int] = (2, 7), label: int = 0) -> Instance:
    tokens = np.arange(1, length + 1) * 101
    tokens[list(positions)] = 103
    segments = (np.arange(length) >= length // 2).astype(np.int64)
    return Instance(tokens, segments, np.array(positions, dtype=np.int64), np.array(positions) * 7 + 300, label)


def instances(
    items: Sequence[Instance] | None = None, sequence_length: int = 16, max_predictions: int | None = 4
) -> Instances:
    content = [instance(), instance(5, (1,), 1), instance(12, (1, 3, 5, 10))] if items is None else items
    return Instances(
        files=("memory",),
        read=lambda: iter(content),
        sequence_length=sequence_length,
        max_predictions=max_predictions,
    )


def same(one: Iterable[Instance], other: Iterable[Instance]) -> bool:
    return all(a.equals(b) for a, b in zip(one, other, strict=True))
