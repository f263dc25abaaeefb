"""``hornbook embed``: write an embedding for each text of a file.

hornbook embed runs/bert-mini texts.txt --output vectors.npy

hornbook embed runs/bert-mini texts.jsonl --pooling cls --normalize > vectors.jsonl
hornbook embed gpt2/ texts.txt --pooling last
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from hornbook.cli.predict_command import add_file_arguments, in_groups, load, note_speed, write_records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_POOLINGS = ("mean", "cls", "max", "last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file_arguments(
        parser, formats=("jsonl", "csv", "tsv", "text"), result="the vectors (.npy: float32 [N, D], else JSON lines)"
    )
    parser.add_argument(
        "--pooling",
        choices=_POOLINGS,
        default="mean",
        help="mean or max over all tokens; cls: an encoder's first token; last: a decoder's last",
    )
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the vectors and return their number, their dimension, and how many texts were truncated."""
    from hornbook.config import ClassificationConfig
    from hornbook.generate.embeddings import embed_ids, ids_of_texts, refuse_pooling
    from hornbook.samples.labelled_texts import read_examples, truncation_warning
    from hornbook.track.console import Console

    given = load(arguments)
    refuse_pooling(given.loaded.model, arguments.pooling)
    columns = ClassificationConfig(text=arguments.text or ClassificationConfig.text)
    examples = read_examples(arguments.file, columns, labelled=False, format=arguments.format)
    texts = [example.text for example in examples]
    length = given.window_length
    ids, num_truncated = ids_of_texts(given.loaded.model, given.require_tokenizer(), texts, length)
    if num_truncated:
        Console().warn(truncation_warning(num_truncated, len(ids), length, done="embedded"))
    options = {"pooling": arguments.pooling, "normalize": arguments.normalize, "batch_size": arguments.batch_size}
    groups = in_groups(ids, arguments.batch_size)
    vectors = (embed_ids(given.loaded.model, group, **options) for group in groups)  # float32 [n, D]
    size = given.loaded.recipe.model.hidden_size
    if arguments.output is not None and arguments.output.suffix == ".npy":
        written = _write_npy(arguments, vectors, (len(ids), size))
    else:
        written = write_records((_Embedded(vector) for group in vectors for vector in group), arguments)
    return {"checkpoint": given.loaded.path, "size": size, "truncated": num_truncated, **written}


@dataclass(frozen=True)
class _Embedded:
    vector: "NDArray[np.float32]"

    def as_json(self) -> dict[str, Any]:
        """Return the numbers with enough digits to identify each float32."""
        return {"embedding": [float(f"{number:.9g}") for number in self.vector.tolist()]}


def _write_npy(
    arguments: argparse.Namespace, vectors: "Iterator[NDArray[np.float32]]", shape: tuple[int, int]
) -> dict[str, Any]:
    import numpy as np

    from hornbook.formats.npy import npy_header
    from hornbook.storage import replace_file

    started = time.perf_counter()
    header = npy_header(shape, np.dtype(np.float32))
    replace_file(arguments.output, chain([header], (group.tobytes() for group in vectors)))
    note_speed(shape[0], time.perf_counter() - started)
    return {"count": shape[0], "output": arguments.output}
