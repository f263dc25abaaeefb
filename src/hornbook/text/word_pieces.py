"""What a WordPiece tokenizer is made of (BERT; Wu et al., 2016), and the files that people keep one in.

    "Hornbook's [MASK]"  ->  hornbook ' s [ mask ]  ->  horn ##book ' s [ mask ]      longest first, from the left

    vocab.txt           a token a line, the id is the line's number from 0; what begins with ## goes on with a word
    tokenizer.json      the same, with the settings of the tokenizers library

A closed set is read: BERT's normalizer and its way to part words, ``##``, and how long a word may be until it counts as
unknown. Ids are those of transformers. The price of these rules: a text does not come back from its ids, as case,
accents, blanks and what is not in the vocabulary are lost; and nothing stands between documents.

The name of a special token inside a text is text, as for Google's own programs: ``[MASK]`` becomes ``[ mask ]`` and
hides nothing. (transformers takes it for the token.) For texts with gaps to fill see ``Tokenizer.encode_with_mask``.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from hornbook.errors import DataError
from hornbook.storage.json_files import read_json
from hornbook.text.cuts import CUT_CHARACTERS, cuts
from hornbook.text.special_tokens import BERT_TOKENS, ROLE_NAMES
from hornbook.text.vocabulary import Description, by_id, dump_description, read_lines, refuse_bad_vocabulary

PREFIX: Final = "##"
"""What a token begins with that goes on with a word."""

CUT: Final = re.compile(r"[ \n\t!-/:-@\[-`{-~、。，]")
CUT_OR_CHINESE: Final = re.compile(CUT.pattern.replace("]", "\u4e00-\u9fff]"))
"""What is dropped, or is a word by itself, whatever comes before and after it."""

_CONFIG: Final = "tokenizer_config.json"
_SWITCHES: Final = {"clean_text": (True, False), "handle_chinese_chars": (True, False), "lowercase": (True, False)}
_NORMALIZER: Final = {"type": ("BertNormalizer",), **_SWITCHES, "strip_accents": (None, True, False)}


@dataclass(frozen=True, kw_only=True)
class WordPieces:
    """A WordPiece tokenizer: a word is the longest token that it begins with, then the longest ``##`` token, and so on.

    Attributes:
        vocab: the id of each token, special ones included; the ids are 0 .. len(vocab) - 1.
        special: tokens that no text becomes, but for the unknown one.
        lowercase: texts are put into lower case.
        strip_accents: accents are taken off; None where lowercase says it.
        handle_chinese_chars: every Chinese character is a word.
        clean_text: control characters are taken out.
        max_input_chars_per_word: a longer word is unknown.
        unknown: the token of a word that has no others.
    """

    vocab: Mapping[str, int]
    special: tuple[str, ...]
    lowercase: bool
    strip_accents: bool | None = None
    handle_chinese_chars: bool = True
    clean_text: bool = True
    max_input_chars_per_word: int = 100
    unknown: str = "[UNK]"

    @property
    def end_of_text(self) -> None:
        """There is no token between documents."""
        return None

    def stretches(self, text: str, size: int = CUT_CHARACTERS) -> Iterator[str]:
        """A text in stretches that together have its tokens; see ``hornbook.text.cuts``.

        One that found no end is an encoded picture, say; of such letters it keeps as many as make a word unknown.
        """
        endless = re.compile(rf"([A-Za-z0-9]{{{self.max_input_chars_per_word + 1}}})[A-Za-z0-9]+")
        for stretch in cuts(text, CUT_OR_CHINESE if self.handle_chinese_chars else CUT, size):
            yield endless.sub(r"\1", stretch) if len(stretch) > 2 * size else stretch

    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the tokenizers library, for which the names of special tokens are text."""
        model = models.WordPiece(
            dict(self.vocab),
            unk_token=self.unknown,
            max_input_chars_per_word=self.max_input_chars_per_word,
            continuing_subword_prefix=PREFIX,
        )
        library = tokenizers.Tokenizer(model)
        library.normalizer = self.normalizer()
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in self.special])
        library.encode_special_tokens = True
        return library

    def normalizer(self) -> normalizers.BertNormalizer:
        """What texts go through first."""
        return normalizers.BertNormalizer(
            clean_text=self.clean_text,
            handle_chinese_chars=self.handle_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )

    def to_json(self) -> str:
        """The ``tokenizer.json`` of the tokenizers library, the same text for the same tokenizer."""
        return dump_description(
            self.vocab,
            self.special,
            normalizer={"type": "BertNormalizer"} | {key: getattr(self, key) for key in _NORMALIZER if key != "type"},
            pre_tokenizer={"type": "BertPreTokenizer"},
            post_processor=_begin_and_end(self.vocab, self.special),
            decoder={"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
            model={
                "type": "WordPiece",
                "unk_token": self.unknown,
                "continuing_subword_prefix": PREFIX,
                "max_input_chars_per_word": self.max_input_chars_per_word,
                "vocab": by_id(self.vocab),
            },
        )


def from_description(description: Description) -> WordPieces:
    """Make sense of a ``tokenizer.json``.

    Raises:
        DataError: it is malformed, or not a WordPiece tokenizer by BERT's rules.
    """
    name, model = description.name, description.model
    normalizer = description.settings.get("normalizer")
    settings = normalizer if isinstance(normalizer, dict) else {}
    if set(settings) != set(_NORMALIZER) or not all(_is_one_of(settings[key], _NORMALIZER[key]) for key in settings):
        raise DataError(f"{name}: its normalizer is not BERT's; expected BertNormalizer and its four switches")
    if description.settings.get("pre_tokenizer") != {"type": "BertPreTokenizer"}:
        raise DataError(f"{name}: its pre-tokenizer is not BERT's; expected BertPreTokenizer")
    if model.get("continuing_subword_prefix") != PREFIX:
        prefix = model.get("continuing_subword_prefix")
        raise DataError(f"{name}: what goes on with a word begins with {prefix!r:.40}; expected '##', as BERT has it")
    longest = model.get("max_input_chars_per_word")
    if type(longest) is not int or not 1 <= longest <= 1 << 20:
        raise DataError(f"{name}: max_input_chars_per_word is {longest!r:.40}; expected a number such as 100")
    switches = {key: value for key, value in settings.items() if key != "type"}
    unknown = model.get("unk_token")
    return _checked(description.vocab, description.special, name, unknown, max_input_chars_per_word=longest, **switches)


def read_vocabulary(path: Path) -> WordPieces:
    """Read Google's ``vocab.txt``, which does not say how texts are treated.

    That stands in a ``tokenizer_config.json`` beside it, if there is one, by transformers' names. Otherwise texts are
    put into lower case unless the vocabulary has upper case.

    Raises:
        DataError: a file is malformed.
        StorageError: a file cannot be read.
    """
    tokens = read_lines(path, "the vocabulary")
    vocab: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if not token or vocab.setdefault(token, number) != number:
            earlier = f"is that of line {vocab[token] + 1} again" if token else "is empty"
            raise DataError(f"{path}, line {number + 1}: the token {earlier}; expected a token a line, each once")
    config = path.with_name(_CONFIG)
    asked = read_config(config) if config.exists() else {}
    has_upper_case = any(token != token.lower() for token in tokens if token not in BERT_TOKENS)
    return _checked(vocab, (), str(path), "[UNK]", **({"lowercase": not has_upper_case} | asked))


def read_config(path: Path) -> dict[str, Any]:
    """Return what a ``tokenizer_config.json`` of transformers says about how texts are treated, by our names.

    Raises:
        DataError: it is malformed.
        StorageError: it cannot be read.
    """
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    config = read_json(path, "the settings of the tokenizer")
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected an object with the settings of the tokenizer; restore the file")
    asked = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
    for theirs, ours in names.items():
        if ours in asked and not _is_one_of(asked[ours], _NORMALIZER[ours]):
            raise DataError(f"{path}: {theirs} is {asked[ours]!r:.40}; expected true or false")
    return asked


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether a value is allowed; 1 is not true."""
    return any(type(value) is type(one) and value == one for one in allowed)


def _checked(vocab: dict[str, int], special: Sequence[str], name: str, unknown: Any, **switches: Any) -> WordPieces:
    """Put the parts together if they fit."""
    refuse_bad_vocabulary(vocab, name)
    if unknown not in ROLE_NAMES["unknown"] or unknown not in vocab:
        raise DataError(f"{name}: the vocabulary has no token for unknown words; expected [UNK]")
    if "" in vocab:
        raise DataError(f"{name}: the token with id {vocab['']} is empty; restore the file")
    names = dict.fromkeys((*special, unknown, *(token for token in BERT_TOKENS if token in vocab)))
    for token in names:
        if token.startswith(PREFIX) or len(token) < 2 or not set(token) & set(string.punctuation):
            raise DataError(
                f"{name}: the special token {token!r:.40} could come out of a text; expected a name such as [MASK]"
            )
    return WordPieces(vocab=vocab, special=tuple(sorted(names, key=vocab.__getitem__)), unknown=unknown, **switches)


def _begin_and_end(vocab: Mapping[str, int], special: Sequence[str]) -> dict[str, object] | None:
    """How transformers sets a sequence between ``[CLS]`` and ``[SEP]``, and a pair of them."""
    ends = [next((name for name in ROLE_NAMES[role] if name in special), None) for role in ("cls", "sep")]
    cls, sep = ends
    if cls is None or sep is None:
        return None

    def token(name: str, segment: int) -> dict[str, object]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def sequence(name: str, segment: int) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [token(cls, 0), sequence("A", 0), token(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), token(sep, 1)],
        "special_tokens": {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in sorted({cls, sep})},
    }
