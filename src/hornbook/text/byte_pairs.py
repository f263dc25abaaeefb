"""What a byte-level BPE tokenizer is made of, and the files that people keep one in.

    vocab.bpe / merges.txt      Ġ t          the merges, best first; Ġ is how the byte 0x20 is written
    encoder.json / vocab.json   {"!": 0, ..., "Ġt": 256, ..., "<|endoftext|>": 50256}
    tokenizer.json              both of them, with the settings of the tokenizers library

A closed set is read: GPT-2's pattern, a symbol for each of the 256 bytes, no normalizer. So every text can be written
and comes back as it was, and no regular expression of a stranger's file is ever run. The price: tokenizers of other
kinds (WordPiece, SentencePiece, Llama's pattern) are refused, in one line.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError
from hornbook.storage import parse_json, read_bytes

END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TEXT_NAMES: Final = (END_OF_TEXT, "<|end_of_text|>", "</s>")
MAX_VOCAB_SIZE: Final = 1 << 20
PATTERNS: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)
"""GPT-2's pattern as OpenAI wrote it in its code, and as tiktoken did later; they match the same pieces."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PAIRS_OF_FILES: Final = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("*-vocab.json", "*-merges.txt"))
_PLAIN_BPE: Final = {
    "dropout": (0, None),
    "continuing_subword_prefix": ("", None),
    "end_of_word_suffix": ("", None),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
"""What a model's settings may be; the last is what we write."""


@dataclass(frozen=True, kw_only=True)
class BytePairs:
    """A byte-level BPE: pieces of text are cut into bytes, and neighbours merged, best merge first.

    Attributes:
        vocab: the id of each token, special ones included; the ids are 0 .. len(vocab) - 1.
        merges: pairs of tokens, best first.
        special: tokens that no text becomes.
        end_of_text: the special token between documents.
    """

    vocab: Mapping[str, int]
    merges: tuple[tuple[str, str], ...]
    special: tuple[str, ...]
    end_of_text: str

    def to_json(self) -> str:
        """The ``tokenizer.json`` of the tokenizers library, the same text for the same tokenizer."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        special = sorted((self.vocab[name], name) for name in self.special)
        by_id = dict(sorted(self.vocab.items(), key=lambda item: item[1]))
        plain = {key: values[-1] for key, values in _PLAIN_BPE.items()}
        description = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": number, "content": name} | flags for number, name in special],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE"} | plain | {"vocab": by_id, "merges": self.merges},
        }
        return json.dumps(description, ensure_ascii=False, separators=(",", ":"))


def byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte 0 .. 255 (GPT-2): itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return tuple(moved.get(byte, chr(byte)) for byte in range(256))


def read_byte_pairs(path: Path) -> BytePairs:
    """Read a ``tokenizer.json``, or a folder that holds one or a vocabulary and its merges.

    Raises:
        DataError: there is no tokenizer, a file is malformed, or it is not a byte-level BPE with GPT-2's pattern.
        StorageError: a file cannot be read.
    """
    if not path.is_dir():
        return _from_tokenizer_json(path)
    if (path / "tokenizer.json").exists():
        return _from_tokenizer_json(path / "tokenizer.json")
    for vocabulary, merges in _PAIRS_OF_FILES:
        found = [*path.glob(vocabulary), *path.glob(merges)]
        if len(found) == 2:
            return _from_vocabulary_and_merges(*found)
    raise DataError(
        f"{path} holds no tokenizer: expected tokenizer.json, encoder.json and vocab.bpe, or vocab.json and merges.txt"
    )


def parse_tokenizer_json(data: bytes, name: str) -> BytePairs:
    """Read the content of a ``tokenizer.json``; ``name`` stands for the file in errors.

    Raises:
        DataError: it is malformed, or not a byte-level BPE with GPT-2's pattern.
    """
    description = parse_json(data, f"{name}: the tokenizer")
    model = description.get("model") if isinstance(description, dict) else None
    if not isinstance(model, dict):
        raise DataError(
            f"{name} is no tokenizer.json: it has no model; for a vocab.json and its merges name the folder"
        )
    _check_settings(description, model, name)
    special = _special_tokens(description.get("added_tokens"), name)
    vocab = _checked_vocab(model.get("vocab"), name)
    if any(vocab.setdefault(token, number) != number for token, number in special.items()):
        raise DataError(f"{name}: an added token has another id in the vocabulary; restore the file")
    merges = model.get("merges")
    pairs = [_pair(entry, f"{name}: merge {number}") for number, entry in enumerate(_checked_list(merges, name), 1)]
    return _checked(vocab, pairs, tuple(special), name)


def _from_tokenizer_json(path: Path) -> BytePairs:
    return parse_tokenizer_json(read_bytes(path, "the tokenizer"), str(path))


def _from_vocabulary_and_merges(vocabulary: Path, merges: Path) -> BytePairs:
    vocab = _checked_vocab(parse_json(read_bytes(vocabulary, "the vocabulary"), f"{vocabulary}: it"), str(vocabulary))
    try:
        lines = read_bytes(merges, "the list of merges").decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{merges}: not UTF-8 at byte {error.start}; restore the file") from error
    first = int(lines[0].startswith("#version"))
    pairs = [
        _pair(line.removesuffix("\r"), f"{merges}, line {number}")
        for number, line in enumerate(lines[first:], first + 1)
    ]
    return _checked(vocab, pairs, (), str(vocabulary))


def _check_settings(description: dict[str, Any], model: dict[str, Any], name: str) -> None:
    """Refuse whatever would make other ids than GPT-2's rules do."""
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise DataError(f"{name}: its model is {kind!r}; expected byte-level BPE, the one kind that is read")
    for key, allowed in _PLAIN_BPE.items():
        if model.get(key) not in allowed:
            raise DataError(f"{name}: its model has {key} {model[key]!r}; expected {allowed[-1]!r}, as GPT-2 has it")
    if description.get("normalizer") is not None:
        raise DataError(f"{name}: it has a normalizer, which changes texts; expected none, as GPT-2 has it")
    if not _splits_like_gpt2(description.get("pre_tokenizer")):
        raise DataError(f"{name}: its pre-tokenizer is not GPT-2's; expected ByteLevel without a prefix space")


def _splits_like_gpt2(setting: Any) -> bool:
    """Tell whether a pre-tokenizer is ByteLevel, or GPT-2's pattern followed by a ByteLevel without one."""

    def byte_level(part: Any, use_regex: bool) -> bool:
        return (
            isinstance(part, dict)
            and part.get("type") == "ByteLevel"
            and part.get("add_prefix_space") is False
            and part.get("use_regex", True) is use_regex
        )

    if byte_level(setting, use_regex=True):
        return True
    parts = setting.get("pretokenizers") if isinstance(setting, dict) else None
    if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[0], dict):
        return False
    split, patterns = parts[0], [{"Regex": pattern} for pattern in PATTERNS]
    isolates = split.get("behavior") == "Isolated" and split.get("invert") in (None, False)
    return isolates and split.get("pattern") in patterns and byte_level(parts[1], use_regex=False)


def _special_tokens(added: Any, name: str) -> dict[str, int]:
    special: dict[str, int] = {}
    for entry in [] if added is None else _checked_list(added, name):
        content, number = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(content, str) or not content or type(number) is not int:
            raise DataError(f"{name}: an added token lacks its content or id; restore the file")
        if entry.get("special") is not True and content not in END_OF_TEXT_NAMES:
            raise DataError(f"{name}: the added token {content!r:.40} is not special; expected special ones alone")
        special[content] = number
    return special


def _checked_vocab(vocab: Any, name: str) -> dict[str, int]:
    if not isinstance(vocab, dict) or not all(type(number) is int for number in vocab.values()):
        raise DataError(f"{name}: the vocabulary is not a table of tokens and their ids; restore the file")
    return dict(vocab)


def _checked_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{name}: expected a list of merges and a list of added tokens; restore the file")
    return value


def _pair(entry: Any, place: str) -> tuple[str, str]:
    parts = entry.split(" ") if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise DataError(f"{place} is not two tokens: {entry!r:.40}; restore the file")
    return parts[0], parts[1]


def _checked(vocab: dict[str, int], merges: list[tuple[str, str]], special: tuple[str, ...], name: str) -> BytePairs:
    """Put the parts together if they fit: the library would otherwise drop characters without a word."""
    if len(vocab) > MAX_VOCAB_SIZE or sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(
            f"{name}: expected the ids 0 to {len(vocab) - 1}, each once, and at most {MAX_VOCAB_SIZE} of them"
        )
    if _SURROGATE.search("".join(vocab)):
        raise DataError(f"{name}: a token has half a surrogate pair in it, so it is no text; restore the file")
    if lost := sum(symbol not in vocab for symbol in byte_symbols()):
        raise DataError(f"{name}: {lost} of the 256 bytes have no token, so not every text can be written; retrain it")
    for number, (left, right) in enumerate(merges, 1):
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise DataError(f"{name}: merge {number} ({left!r:.40}, {right!r:.40}) is not in the vocabulary")
    end_of_text = next((token for token in END_OF_TEXT_NAMES if token in vocab), None)
    if end_of_text is None:
        raise DataError(f"{name} has no end-of-text token; expected one of {', '.join(END_OF_TEXT_NAMES)}")
    names = tuple(dict.fromkeys((*special, end_of_text)))
    return BytePairs(vocab=vocab, merges=tuple(merges), special=names, end_of_text=end_of_text)
