"""The JSON of tokenizers: ``tokenizer.json`` and older files, brought into canonical forms.

    read_settings(path)                   one of these files, or a folder, in which the first in this list is read:
        tokenizer.json                        any tokenizer of the tokenizers library
        encoder.json, vocab.bpe, dict.txt     byte-level BPE with RoBERTa's ids (fairseq)
        encoder.json, vocab.bpe               byte-level BPE (OpenAI)
        vocab.json, merges.txt                byte-level BPE (Hugging Face, Megatron)
        vocab.txt                             WordPiece (Google's BERT): one token per line, the id is the line number
        beside them, tokenizer_config.json and others may name the end-of-text token, see `hornbook.text.special_tokens`
    read_settings(Path("gpt2"))           by name if no such path exists, see `hornbook.text.tokenizer_names`
    byte_bpe(vocab, merges, special)      canonical byte-level BPE with GPT-2's pattern, as in GPT-2 and RoBERTa
    word_piece(vocab, special)            canonical WordPiece with BERT's normalizer and pre-tokenizer
    parse(data, "tokenizer.json")         the canonical form with the same ids if there is one, else the JSON itself

A store identifies its tokenizer by the digest of this JSON, so equal tokenizers must have equal JSON, whatever else
their files contain. Truncation and padding are removed: they are settings of a caller, not of a tokenizer.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

from hornbook.errors import DataError
from hornbook.formats.foreign import refuse_foreign_tokenizer
from hornbook.storage.json_files import parse_json, read_bytes, read_json
from hornbook.text import special_tokens, tokenizer_names
from hornbook.text.special_tokens import BERT_TOKENS, END_OF_TEXT, END_OF_TEXT_NAMES, ROBERTA_TOKENS, Settings

Form = Literal["byte-bpe", "wordpiece"]

MAX_VOCAB_SIZE: Final = 1 << 20
BYTE_TOKEN: Final = re.compile("<0x[0-9A-F]{2}>")
"""A byte-fallback token, which stands for one byte; the library decodes a run of them together."""
PREFIX: Final = "##"
"""The prefix of a WordPiece token that continues a word."""
SPLIT: Final = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS: Final = (rf"'s|'t|'re|'ve|'m|'ll|'d|{SPLIT}", rf"'(?:[sdmt]|ll|ve|re)|{SPLIT}")
"""GPT-2's pattern as written in OpenAI's code and in tiktoken; both match the same pieces."""

_BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PLAIN_BPE: Final = {
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "byte_fallback": False,
    "ignore_merges": False,
}
_BERT_SWITCHES: Final = ("clean_text", "handle_chinese_chars", "lowercase", "strip_accents")
_PAIRS: Final = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("*-vocab.json", "*-merges.txt"))
_BERT_NAMES: Final = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def read_settings(source: str | Path) -> Settings:
    """Return the JSON of the tokenizer in a file or folder, or of a named one.

    Raises:
        DataError: there is no tokenizer, or it is malformed.
        HornbookError: see `hornbook.text.tokenizer_names.find`.
    """
    path = Path(source)
    if not path.exists():
        path, *merges = tokenizer_names.find(source)
        if merges:
            return _read_byte_pairs(path, merges[0], None)
    if not path.is_dir():
        if path.suffix == ".txt":
            return _read_vocab_txt(path)
        try:
            settings = parse(read_bytes(path, "the tokenizer"), str(path))
        except DataError:
            refuse_foreign_tokenizer(path)
            raise
        named = special_tokens.read_end_of_text(path.parent) if path.name == "tokenizer.json" else None
        return special_tokens.record_end_of_text(settings, named)
    if (path / "tokenizer.json").exists():
        return read_settings(path / "tokenizer.json")
    for names in _PAIRS:
        found = [file for name in names for file in path.glob(name)]
        if len(found) == 2:
            settings = _read_byte_pairs(found[0], found[1], path / "dict.txt" if names == _PAIRS[0] else None)
            return special_tokens.record_end_of_text(settings, special_tokens.read_end_of_text(path))
    if (path / "vocab.txt").exists():
        return _read_vocab_txt(path / "vocab.txt")
    if inner := tokenizer_names.find_inside(path):
        return read_settings(inner)
    refuse_foreign_tokenizer(path)
    raise DataError(
        f"{path} has no tokenizer; expected tokenizer.json, encoder.json and vocab.bpe, vocab.json and merges.txt, "
        "or vocab.txt; or a run or a corpus"
    )


def read_bert_config(path: Path) -> dict[str, Any]:
    """Return BERT's normalizer switches in a ``tokenizer_config.json``. Raises DataError if it is malformed."""
    config = read_json(path, "the settings of the tokenizer")
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected an object with the settings of the tokenizer; restore the file")
    switches = {ours: config[theirs] for theirs, ours in _BERT_NAMES.items() if theirs in config}
    for theirs, ours in _BERT_NAMES.items():
        if type(switches.get(ours, True)) is not bool and not (ours == "strip_accents" and switches[ours] is None):
            raise DataError(f"{path}: {theirs} is {switches[ours]!r:.40}; expected true or false")
    return switches


def _read_vocab_txt(path: Path) -> Settings:
    """Read BERT's vocabulary; ``tokenizer_config.json`` says whether it is lowercase, else the case of its tokens."""
    vocab: dict[str, int] = {}
    for number, token in enumerate(_read_lines(path, "the vocabulary")):
        if not token or vocab.setdefault(token, number) != number:
            problem = f"repeats that of line {vocab[token] + 1}" if token else "is empty"
            raise DataError(f"{path}, line {number + 1}: the token {problem}; expected one token per line, each once")
    if "[UNK]" not in vocab:
        raise DataError(f"{path}: the vocabulary has no token for unknown words; expected a line [UNK]")
    config = path.with_name("tokenizer_config.json")
    switches = read_bert_config(config) if config.exists() else {}
    is_lower = all(token == token.lower() for token in vocab if token not in BERT_TOKENS)
    return word_piece(vocab, **({"lowercase": is_lower} | switches))


def _read_byte_pairs(vocabulary: Path, merges: Path, dictionary: Path | None) -> Settings:
    vocab = parse_json(read_bytes(vocabulary, "the vocabulary"), f"{vocabulary}: it")
    is_whole = isinstance(vocab, dict) and {*map(type, vocab.values())} <= {int}
    if not is_whole or sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(f"{vocabulary}: expected tokens and their ids 0 to n - 1, each once; restore the file")
    if lost := sum(symbol not in vocab for symbol in byte_symbols()):  # the library would drop those bytes silently
        raise DataError(f"{vocabulary}: {lost} of the 256 bytes have no token; expected one each; restore the file")
    lines = _read_lines(merges, "the list of merges")
    pairs = []
    for number, line in enumerate(lines[int(lines[0].startswith("#version")) :], 1 + lines[0].startswith("#version")):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise DataError(f"{merges}, line {number}: expected two tokens, found {line!r:.40}; restore the file")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise DataError(
                f"{merges}, line {number}: {line!r:.80} or what it merges into is not in {vocabulary.name}; use files "
                "of the same tokenizer"
            )
        pairs.append((left, right))
    return byte_bpe(_robertas_ids(dictionary, vocab) if dictionary and dictionary.exists() else vocab, pairs)


def _robertas_ids(dictionary: Path, vocab: dict[str, int]) -> dict[str, int]:
    """Return RoBERTa's ids of GPT-2's tokens.

    Row n of the dictionary, from 0, has id n + 4, after ``<s>``, ``<pad>``, ``</s>``, ``<unk>``. Its last rows are
    fillers that pad the ids to a multiple of 8; further fillers are ignored. ``<mask>`` has the last id.
    """
    token_of = {str(number): token for token, number in vocab.items()}
    names = [line.rpartition(" ")[0] for line in _read_lines(dictionary, "RoBERTa's dictionary")]
    known = [name in token_of for name in names]
    if sum(known) != len(token_of) or not all(known[: len(token_of)]) or len(set(names)) < len(names):
        raise DataError(
            f"{dictionary}: expected a row for each of GPT-2's {len(token_of)} ids, then fillers only; restore the file"
        )
    *first, mask = ROBERTA_TOKENS
    fillers = names[len(token_of) :][: -(len(first) + len(token_of)) % 8]
    tokens = [*first, *(token_of[name] for name in names[: len(token_of)]), *fillers, mask]
    return {token: number for number, token in enumerate(tokens)}


def _read_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a small UTF-8 file, with Unix or Windows line ends."""
    try:
        lines = read_bytes(path, what).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; restore the file") from error
    return [line.removesuffix("\r") for line in lines]


def parse(data: bytes, name: str) -> Settings:
    """Parse a ``tokenizer.json``. Raises DataError if it is malformed, has no model, or one with dropout."""
    settings = parse_json(data, f"{name}: the tokenizer")
    model = settings.get("model") if isinstance(settings, dict) else None
    if not isinstance(model, dict):
        raise DataError(
            f"{name} is not a tokenizer.json: it has no model; for vocab.json and merges.txt, name their folder"
        )
    if model.get("dropout"):
        raise DataError(f"{name}: the model has dropout {model['dropout']!r:.40}, which makes ids random; set it to 0")
    settings = special_tokens.without_start(settings)
    if (known := _known(settings)) and END_OF_TEXT in model:
        known["model"][END_OF_TEXT] = model[END_OF_TEXT]
    return known or settings | {"truncation": None, "padding": None}


def form_of(settings: Settings) -> Form | None:
    """Return the canonical form that a tokenizer's JSON is in, or None."""
    if not isinstance(settings, _Canonical):
        settings = special_tokens.without_end_of_text(settings)
        if _known(settings) != settings:
            return None
    return "byte-bpe" if settings["model"]["type"] == "BPE" else "wordpiece"


def dump(settings: Settings) -> str:
    """Return the JSON as the text of a ``tokenizer.json``."""
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":"))


def by_id(vocab: Mapping[str, int]) -> dict[str, int]:
    """Return the vocabulary sorted by id."""
    return dict(sorted(vocab.items(), key=itemgetter(1)))


def byte_symbols() -> tuple[str, ...]:
    """Return GPT-2's printable character for each byte 0 to 255: the byte's own, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return tuple(moved.get(byte, chr(byte)) for byte in range(256))


@cache
def symbol_bytes() -> dict[str, int]:
    """Return the byte of each of ``byte_symbols``."""
    return {symbol: byte for byte, symbol in enumerate(byte_symbols())}


def byte_bpe(vocab: Mapping[str, int], merges: Iterable[Sequence[str]], special: Sequence[str] = ()) -> Settings:
    """Return the JSON of a byte-level BPE with GPT-2's pattern.

    Args:
        vocab: the id of each token, special tokens included.
        merges: pairs of tokens, highest priority first.
        special: the special tokens besides the end-of-text token or RoBERTa's.
    """
    is_robertas = vocab.keys() >= set(ROBERTA_TOKENS)
    own = ROBERTA_TOKENS if is_robertas else [name for name in END_OF_TEXT_NAMES if name in vocab][:1]
    ends = {role: [name, vocab[name]] for role, name in (("sep", "</s>"), ("cls", "<s>"))} if is_robertas else {}
    frame = {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}
    return _settings(
        vocab,
        (*special, *own),
        ("<mask>",) if is_robertas else (),
        normalizer=None,
        pre_tokenizer=_BYTE_LEVEL,
        post_processor=frame if is_robertas else None,
        decoder=_BYTE_LEVEL,
        model={"type": "BPE", **_PLAIN_BPE, "vocab": by_id(vocab), "merges": [list(pair) for pair in merges]},
    )


def word_piece(
    vocab: Mapping[str, int],
    special: Sequence[str] = (),
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    clean_text: bool = True,
    max_input_chars_per_word: int = 100,
    unknown: str = "[UNK]",
) -> Settings:
    """Return the JSON of a WordPiece tokenizer with BERT's rules.

    Args:
        vocab: the id of each token, special tokens included.
        special: the special tokens besides BERT's.
        lowercase: convert texts to lower case.
        strip_accents: remove accents; None means the same as ``lowercase``.
        handle_chinese_chars: make every Chinese character a word.
        clean_text: remove control characters.
        max_input_chars_per_word: a longer word is encoded as ``unknown``.
        unknown: the token for a word that cannot be encoded.
    """
    names = dict.fromkeys((*special, unknown, *(token for token in BERT_TOKENS if token in vocab)))
    switches = dict(zip(_BERT_SWITCHES, (clean_text, handle_chinese_chars, lowercase, strip_accents), strict=True))
    return _settings(
        vocab,
        tuple(names),
        normalizer={"type": "BertNormalizer", **switches},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_begin_and_end(vocab, names),
        decoder={"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": PREFIX,
            "max_input_chars_per_word": max_input_chars_per_word,
            "vocab": by_id(vocab),
        },
    )


class _Canonical(dict[str, Any]):
    """The result of `_known`, which takes 60 ms for GPT-2's 50,257 tokens; what is made from it is a plain dict."""


def _known(settings: Settings) -> _Canonical | None:
    """Return the canonical form with the same ids, or None."""
    try:
        model = settings["model"]
        added = settings.get("added_tokens") or []
        special = {token["content"]: token["id"] for token in added}
        vocab = {**special, **model["vocab"]}
        same = all(token.get("special") is True or token["content"] in END_OF_TEXT_NAMES for token in added)
        if not same or vocab != {**vocab, **special} or sorted(vocab.values()) != list(range(len(vocab))):
            return None
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        is_plain = all(model.get(name) in (None, False, "", 0) for name in _PLAIN_BPE)
        is_plain = is_plain and settings.get("normalizer") is None
        is_whole = vocab.keys() >= set(byte_symbols()) and not vocab.keys().isdisjoint(END_OF_TEXT_NAMES)
        if kind == "BPE" and is_plain and is_whole and _splits_like_gpt2(settings.get("pre_tokenizer")):
            merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            return _Canonical(byte_bpe({**model["vocab"], **special}, merges, tuple(special)))
        if kind == "WordPiece" and _is_berts(settings, model) and all(map(_is_no_text, special)):
            switches = {name: settings["normalizer"][name] for name in _BERT_SWITCHES}
            longest = model["max_input_chars_per_word"]
            return _Canonical(
                word_piece(
                    vocab, tuple(special), **switches, max_input_chars_per_word=longest, unknown=model["unk_token"]
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError):  # a value of a type that no canonical form has
        pass
    return None


def _splits_like_gpt2(setting: Any) -> bool:
    """Return whether a pre-tokenizer is ByteLevel, or GPT-2's pattern followed by a ByteLevel without a pattern."""
    parts, is_split = [setting], setting["type"] == "Sequence"
    if is_split:
        split, *parts = setting["pretokenizers"]
        isolates = split["type"] == "Split" and split["behavior"] == "Isolated" and not split.get("invert")
        if not isolates or split["pattern"].get("Regex") not in PATTERNS:
            return False
    found = [(part["type"], part["add_prefix_space"], part.get("use_regex", True)) for part in parts]
    return found == [("ByteLevel", False, not is_split)]


def _is_berts(settings: Settings, model: Settings) -> bool:
    """Return whether a WordPiece has BERT's normalizer, pre-tokenizer, prefix and unknown token."""
    normalizer, longest = settings.get("normalizer"), model.get("max_input_chars_per_word")
    return (
        isinstance(normalizer, dict)
        and set(normalizer) == {"type", *_BERT_SWITCHES}
        and normalizer["type"] == "BertNormalizer"
        and all(type(normalizer[name]) is bool or normalizer[name] is None for name in _BERT_SWITCHES)
        and settings.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and model.get("continuing_subword_prefix") == PREFIX
        and type(longest) is int
        and 1 <= longest <= 1 << 20
        and model.get("unk_token") in special_tokens.ROLE_NAMES["unknown"]
        and model["unk_token"] in model["vocab"]
        and "" not in model["vocab"]
    )


def _is_no_text(name: str) -> bool:
    """Return whether no text is encoded to a special token, since BERT splits words at punctuation."""
    return not name.startswith(PREFIX) and len(name) > 1 and bool(set(name) & set(string.punctuation))


def _settings(
    vocab: Mapping[str, int], special: Sequence[str], left_blanks: Sequence[str] = (), **parts: object
) -> Settings:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name} | plain | {"lstrip": name in left_blanks}
            for number, name in sorted((vocab[name], name) for name in dict.fromkeys(special))
        ],
        **{part: parts[part] for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")},
    }


def _begin_and_end(vocab: Mapping[str, int], special: Iterable[str]) -> Settings | None:
    """Return transformers' post-processor that adds ``[CLS]`` and ``[SEP]``; None if one of them is missing."""
    cls, sep = (
        next((name for name in special_tokens.ROLE_NAMES[role] if name in special), None) for role in ("cls", "sep")
    )
    if cls is None or sep is None:
        return None

    def part(kind: str, name: str, segment: int) -> Settings:
        return {kind: {"id": name, "type_id": segment}}

    single = [part("SpecialToken", cls, 0), part("Sequence", "A", 0), part("SpecialToken", sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, part("Sequence", "B", 1), part("SpecialToken", sep, 1)],
        "special_tokens": {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in sorted({cls, sep})},
    }
