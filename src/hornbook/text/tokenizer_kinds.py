"""The kinds of tokenizers, and which of them a file or a folder holds.

    tokenizer.json                           its model says it
    vocab.txt                                WordPiece
    dict.txt, encoder.json, vocab.bpe        byte-level BPE, with RoBERTa's ids
    encoder.json, vocab.bpe                  byte-level BPE
    vocab.json, merges.txt                   byte-level BPE

A kind is a frozen record of all that its ids depend on, with the same few members: ``vocab``, ``special``,
``end_of_text``, ``stretches``, ``library``, ``to_json``. Of a folder with several, the first in this list counts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hornbook.errors import DataError
from hornbook.storage.json_files import read_bytes
from hornbook.text import byte_pairs, word_pieces
from hornbook.text.byte_pairs import BytePairs
from hornbook.text.vocabulary import Description, parse_description
from hornbook.text.word_pieces import WordPieces

Rules = BytePairs | WordPieces

_READERS: Final[Mapping[str, Callable[[Description], Rules]]] = {
    "BPE": byte_pairs.from_description,
    "WordPiece": word_pieces.from_description,
}
_ROBERTAS: Final = ("dict.txt", "encoder.json", "vocab.bpe")


def read_rules(path: Path) -> Rules:
    """Read a ``tokenizer.json``, a ``vocab.txt``, or a folder that holds one, or a vocabulary and its merges.

    Raises:
        DataError: there is no tokenizer, a file is malformed, or it is of a kind that is not read.
        StorageError: a file cannot be read.
    """
    if not path.is_dir():
        return word_pieces.read_vocabulary(path) if path.suffix == ".txt" else _read_description(path)
    if (path / "tokenizer.json").exists():
        return _read_description(path / "tokenizer.json")
    if all((path / name).exists() for name in _ROBERTAS):
        return byte_pairs.read_roberta(*(path / name for name in _ROBERTAS))
    if files := byte_pairs.find_vocabulary_and_merges(path):
        return byte_pairs.read_vocabulary_and_merges(*files)
    if (path / "vocab.txt").exists():
        return word_pieces.read_vocabulary(path / "vocab.txt")
    raise DataError(
        f"{path} holds no tokenizer: expected tokenizer.json, encoder.json and vocab.bpe, vocab.json and merges.txt, "
        "or vocab.txt"
    )


def parse_rules(data: bytes, name: str) -> Rules:
    """Read the content of a ``tokenizer.json``; ``name`` stands for the file in errors.

    Raises:
        DataError: it is malformed, or of a kind that is not read.
    """
    description = parse_description(data, name)
    return _READERS[description.kind](description)


def _read_description(path: Path) -> Rules:
    return parse_rules(read_bytes(path, "the tokenizer"), str(path))
