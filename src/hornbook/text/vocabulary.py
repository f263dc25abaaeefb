"""What tokenizers of all kinds have in common: ids for tokens, special ones among them, and the files they are kept in.

    tokenizer.json      {"version": "1.0", "truncation": null, "padding": null,
                         "added_tokens": [{"id": 4, "content": "[MASK]", "special": true, ...}],
                         "normalizer": ..., "pre_tokenizer": ..., "post_processor": ..., "decoder": ...,
                         "model": {"type": "WordPiece", "vocab": {"[PAD]": 0, ...}, ...}}

Truncation, padding, post-processor and decoder of a file are passed over: they leave a text's own tokens alone. What is
written is the same text for the same tokenizer, whatever the library's version, since a tokenizer's digest is of it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError
from hornbook.storage.json_files import parse_json, read_bytes

MAX_VOCAB_SIZE: Final = 1 << 20
KINDS: Final = {"BPE": "merges", "WordPiece": "max_input_chars_per_word"}
"""The models that are read, by what each has and the other has not."""

END_OF_TEXT_NAMES: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Description:
    """A file's content, as far as it matters and as far as it has been checked.

    Attributes:
        name: stands for the file in errors.
        settings: all of it.
        kind: the model's type; early files of the library go without one.
        model: its model, not looked at yet but for the vocabulary.
        vocab: the id of each token, added ones included.
        special: the names of the added tokens, all of them special.
    """

    name: str
    settings: Mapping[str, Any]
    kind: str
    model: Mapping[str, Any]
    vocab: dict[str, int]
    special: tuple[str, ...]


def parse_description(data: bytes, name: str) -> Description:
    """Read the content of a ``tokenizer.json``; ``name`` stands for the file in errors.

    Raises:
        DataError: it is malformed, of another kind than ``KINDS``, or a token was added to it that is not special.
    """
    settings = parse_json(data, f"{name}: the tokenizer")
    model = settings.get("model") if isinstance(settings, dict) else None
    if not isinstance(model, dict):
        raise DataError(
            f"{name} is no tokenizer.json: it has no model; for a vocab.json and its merges name the folder"
        )
    guess = next((kind for kind, mark in KINDS.items() if mark in model), None)
    kind = model.get("type", guess)
    if kind not in list(KINDS):
        raise DataError(f"{name}: its model is {kind!r:.40}; expected byte-level BPE or WordPiece")
    special = _special_tokens(settings.get("added_tokens"), name)
    vocab = checked_table(model.get("vocab"), name)
    if any(vocab.setdefault(token, number) != number for token, number in special.items()):
        raise DataError(f"{name}: an added token has another id in the vocabulary; restore the file")
    return Description(name=name, settings=settings, kind=kind, model=model, vocab=vocab, special=tuple(special))


def dump_description(
    vocab: Mapping[str, int], special: Sequence[str], *, left_blanks: Sequence[str] = (), **parts: object
) -> str:
    """Return the text of a ``tokenizer.json``.

    Args:
        vocab: the id of each token.
        special: which are special.
        left_blanks: which of these swallow the blanks before them, where the libraries find their names in a text.
        parts: its normalizer, pre-tokenizer, post-processor, decoder and model.
    """
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name} | plain | {"lstrip": name in left_blanks}
            for number, name in sorted((vocab[name], name) for name in special)
        ],
        **{part: parts[part] for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")},
    }
    return json.dumps(description, ensure_ascii=False, separators=(",", ":"))


def read_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a small file in UTF-8, of Unix or Windows; ``what`` says in an error what the file is.

    Raises:
        DataError: it is missing, larger than 64 MiB, or not UTF-8.
        StorageError: it cannot be read.
    """
    try:
        lines = read_bytes(path, what).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; restore the file") from error
    return [line.removesuffix("\r") for line in lines]


def by_id(vocab: Mapping[str, int]) -> dict[str, int]:
    """Return the vocabulary in the order of its ids."""
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def checked_table(vocab: Any, name: str) -> dict[str, int]:
    """Return a vocabulary from a file, if it is tokens and numbers.

    Raises:
        DataError: it is not.
    """
    if not isinstance(vocab, dict) or not all(type(number) is int for number in vocab.values()):
        raise DataError(f"{name}: the vocabulary is not a table of tokens and their ids; restore the file")
    return dict(vocab)


def checked_list(value: Any, name: str) -> list[Any]:
    """Return a list from a file.

    Raises:
        DataError: it is none.
    """
    if not isinstance(value, list):
        raise DataError(f"{name}: expected a list of merges and a list of added tokens; restore the file")
    return value


def refuse_bad_vocabulary(vocab: Mapping[str, int], name: str) -> None:
    """Check what every vocabulary has: ids without a gap, and tokens that are text.

    Raises:
        DataError: it has not.
    """
    if len(vocab) > MAX_VOCAB_SIZE or sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(
            f"{name}: expected the ids 0 to {len(vocab) - 1}, each once, and at most {MAX_VOCAB_SIZE} of them"
        )
    if _SURROGATE.search("".join(vocab)):
        raise DataError(f"{name}: a token has half a surrogate pair in it, so it is no text; restore the file")


def _special_tokens(added: Any, name: str) -> dict[str, int]:
    special: dict[str, int] = {}
    for entry in [] if added is None else checked_list(added, name):
        content, number = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(content, str) or not content or type(number) is not int:
            raise DataError(f"{name}: an added token lacks its content or id; restore the file")
        if entry.get("special") is not True and content not in END_OF_TEXT_NAMES:
            raise DataError(f"{name}: the added token {content!r:.40} is not special; expected special ones alone")
        special[content] = number
    return special
