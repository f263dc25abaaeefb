"""What a byte-level BPE tokenizer is made of, and the files that people keep one in.

    vocab.bpe / merges.txt      Ġ t          the merges, best first; Ġ is how the byte 0x20 is written
    encoder.json / vocab.json   {"!": 0, ..., "Ġt": 256, ..., "<|endoftext|>": 50256}
    dict.txt                    13 850314647      RoBERTa's ids: those of GPT-2 by how frequent they are, from 4 on
    tokenizer.json              all of it, with the settings of the tokenizers library

A closed set is read: GPT-2's pattern, a symbol for each of the 256 bytes, no normalizer. So every text can be written
and comes back as it was, and no regular expression of a stranger's file is ever run. The price: others of the kind
(Llama's pattern, a space put before each text) are refused, in one line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from hornbook.errors import DataError
from hornbook.storage.json_files import parse_json, read_bytes
from hornbook.text.cuts import CUT_CHARACTERS, cuts
from hornbook.text.special_tokens import ROBERTA_TOKENS
from hornbook.text.vocabulary import (
    END_OF_TEXT_NAMES,
    Description,
    by_id,
    checked_list,
    checked_table,
    dump_description,
    read_lines,
    refuse_bad_vocabulary,
)

PATTERNS: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)
"""GPT-2's pattern as OpenAI wrote it in its code, and as tiktoken did later; they match the same pieces."""

_LETTERS: Final = "A-Za-zぁ-ゖァ-ヺー一-龥가-힣"
_MARKS: Final = r"!-/:-@\[-`{-~、。，．；：！？「」『』（）《》…"
CUT: Final = re.compile(rf"\S(?=[ \n])|[{_LETTERS}](?=[0-9{_MARKS}])|[0-9](?=[{_LETTERS}{_MARKS}])")
"""The last character of a piece, whatever comes before and after it.

White space, but for one blank, can only begin a piece of GPT-2's pattern; and no piece has a letter, a number or a mark
behind one of another kind, but for the letters of 's and its like, so nothing is cut behind a mark. These letters and
marks are so for every version of Unicode that a library may have.
"""

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

    @property
    def is_robertas(self) -> bool:
        """Whether it has RoBERTa's special tokens, and so its way to begin and end a sequence."""
        return set(ROBERTA_TOKENS) <= set(self.special)

    def stretches(self, text: str, size: int = CUT_CHARACTERS) -> Iterator[str]:
        """A text in stretches that together have its tokens; see ``hornbook.text.cuts``."""
        return cuts(text, CUT, size)

    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the tokenizers library, for which the names of special tokens are text."""
        library = bare_library(models.BPE(dict(self.vocab), list(self.merges)))
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in self.special])
        library.encode_special_tokens = True
        return library

    def to_json(self) -> str:
        """The ``tokenizer.json`` of the tokenizers library, the same text for the same tokenizer."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        plain = {key: values[-1] for key, values in _PLAIN_BPE.items()}
        return dump_description(
            self.vocab,
            self.special,
            left_blanks=("<mask>",) if self.is_robertas else (),
            normalizer=None,
            pre_tokenizer=byte_level,
            post_processor=self._roberta_processing() if self.is_robertas else None,
            decoder=byte_level,
            model={"type": "BPE"} | plain | {"vocab": by_id(self.vocab), "merges": self.merges},
        )

    def _roberta_processing(self) -> dict[str, object]:
        ends = {role: [name, self.vocab[name]] for role, name in (("sep", "</s>"), ("cls", "<s>"))}
        return {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}


def byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte 0 .. 255 (GPT-2): itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return tuple(moved.get(byte, chr(byte)) for byte in range(256))


def bare_library(model: models.BPE) -> tokenizers.Tokenizer:
    """The tokenizer of the tokenizers library for a model, with GPT-2's pattern and without special tokens."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def from_description(description: Description) -> BytePairs:
    """Make sense of a ``tokenizer.json``.

    Raises:
        DataError: it is malformed, or not a byte-level BPE with GPT-2's pattern.
    """
    name = description.name
    _refuse_other_rules(description)
    merges = checked_list(description.model.get("merges"), name)
    pairs = [_pair(entry, f"{name}: merge {number}") for number, entry in enumerate(merges, 1)]
    return _checked(description.vocab, pairs, description.special, name)


def find_vocabulary_and_merges(folder: Path) -> tuple[Path, Path] | None:
    """Return the two files that a folder holds a tokenizer in, or None."""
    for vocabulary, merges in _PAIRS_OF_FILES:
        found = [*folder.glob(vocabulary), *folder.glob(merges)]
        if len(found) == 2:
            return found[0], found[1]
    return None


def read_vocabulary_and_merges(vocabulary: Path, merges: Path) -> BytePairs:
    """Read OpenAI's, Megatron's or transformers' two files.

    Raises:
        DataError: one of them is malformed, or they do not belong together.
        StorageError: a file cannot be read.
    """
    vocab = checked_table(parse_json(read_bytes(vocabulary, "the vocabulary"), f"{vocabulary}: it"), str(vocabulary))
    return _checked(vocab, _read_merges(merges), (), str(vocabulary))


def read_roberta(dictionary: Path, vocabulary: Path, merges: Path) -> BytePairs:
    """Read RoBERTa's files (fairseq): GPT-2's two, and a dictionary whose rows say in which order the ids come.

    The dictionary's row n (from 0) is the token n + 4, after ``<s>``, ``<pad>``, ``</s>``, ``<unk>``. Its last rows are
    fillers, as many as make a multiple of 8 of it; more of them are left out. ``<mask>`` has the last id.

    Raises:
        DataError: one of them is malformed, or they do not belong together.
        StorageError: a file cannot be read.
    """
    gpt2 = read_vocabulary_and_merges(vocabulary, merges)
    token_of = {str(number): token for token, number in gpt2.vocab.items()}
    rows = read_lines(dictionary, "RoBERTa's dictionary")
    names = [line.rpartition(" ")[0] for line in rows]
    known = [name in token_of for name in names]
    if sum(known) != len(token_of) or not all(known[: len(token_of)]) or len(set(names)) < len(names):
        raise DataError(f"{dictionary}: expected a row for each of the {len(token_of)} ids of GPT-2, and then fillers")
    *first, mask = ROBERTA_TOKENS
    fillers = names[len(token_of) :][: -(len(first) + len(token_of)) % 8]
    tokens = [*first, *(token_of[name] for name in names[: len(token_of)]), *fillers, mask]
    vocab = {token: number for number, token in enumerate(tokens)}
    return _checked(vocab, list(gpt2.merges), ROBERTA_TOKENS, str(dictionary))


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = read_lines(path, "the list of merges")
    first = int(lines[0].startswith("#version"))
    return [_pair(line, f"{path}, line {number}") for number, line in enumerate(lines[first:], first + 1)]


def _refuse_other_rules(description: Description) -> None:
    """Refuse whatever would make other ids than GPT-2's rules do."""
    name, model, settings = description.name, description.model, description.settings
    for key, allowed in _PLAIN_BPE.items():
        if model.get(key) not in allowed:
            raise DataError(
                f"{name}: its model has {key} {model[key]!r:.40}; expected {allowed[-1]!r}, as GPT-2 has it"
            )
    if settings.get("normalizer") is not None:
        raise DataError(f"{name}: it has a normalizer, which changes texts; expected none, as GPT-2 has it")
    if not _splits_like_gpt2(settings.get("pre_tokenizer")):
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


def _pair(entry: Any, place: str) -> tuple[str, str]:
    parts = entry.split(" ") if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise DataError(f"{place} is not two tokens: {entry!r:.40}; restore the file")
    return parts[0], parts[1]


def _checked(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], special: Sequence[str], name: str
) -> BytePairs:
    """Put the parts together if they fit: the library would otherwise drop characters without a word."""
    refuse_bad_vocabulary(vocab, name)
    if lost := sum(symbol not in vocab for symbol in byte_symbols()):
        raise DataError(f"{name}: {lost} of the 256 bytes have no token, so not every text can be written; retrain it")
    for number, (left, right) in enumerate(merges, 1):
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise DataError(f"{name}: merge {number} ({left!r:.40}, {right!r:.40}) is not in the vocabulary")
    names = ROBERTA_TOKENS if set(ROBERTA_TOKENS) <= vocab.keys() else ()
    end_of_text = "</s>" if names else next((token for token in END_OF_TEXT_NAMES if token in vocab), None)
    if end_of_text is None:
        raise DataError(f"{name} has no end-of-text token; expected one of {', '.join(END_OF_TEXT_NAMES)}")
    special = tuple(dict.fromkeys((*special, *names, end_of_text)))
    return BytePairs(vocab=vocab, merges=tuple(merges), special=special, end_of_text=end_of_text)
