"""Tokenizers: text to token ids and back, for any ``tokenizer.json`` of the tokenizers library.

    "Hi there<|end"   ->   Hi | Ġthere | <| | end   ->   H·i  Ġthere  <·|  end   ->   [17250, 612, 27, 91, 437]

The ids are those of the library. With GPT-2's and BERT's files, they equal those of OpenAI's tokenizer and of
transformers for every text, and with byte-level BPE ``decode(encode(text)) == text``. The name of a special token in a
text is encoded as text, unless the model's vocabulary contains it, as is common with Unigram. Long texts are split at
boundaries between pieces (`hornbook.text.cuts`). The Unicode version is that of the library.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Self, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import commit_directory, make_directory, remove_tree, replace_file, temporary_beside, write_file
from hornbook.text.cuts import CUT_CHARACTERS, Stretches, find_endless, stretches_for, utf8_bound
from hornbook.text.special_tokens import (
    END_OF_TEXT,
    END_OF_TEXT_NAMES,
    ROBERTA_TOKENS,
    ROLE_NAMES,
    MaskingTokens,
    Role,
    Settings,
    without_end_of_text,
)
from hornbook.text.tokenizer_json import (
    BYTE_TOKEN,
    MAX_VOCAB_SIZE,
    by_id,
    dump,
    form_of,
    parse,
    read_settings,
)
from hornbook.text.tokenizer_training import Kind, train_settings

_FILE: Final = "tokenizer.json"
_BATCH_CUTS: Final = 256
_BATCH_BYTES: Final = 2 << 20
"""Limit for one call of the library, which needs up to 250 bytes per token until the call returns."""
_TRIAL: Final = "A trial: é 漢字 😀 12\n\tof <s> it."


class Tokenizer:
    """An immutable tokenizer; create one with ``load`` or ``train``.

    Args:
        settings: the JSON of the tokenizer.
        name: the name of its file in errors.

    Attributes:
        settings: everything that determines the ids, see `hornbook.text.tokenizer_json`.
        form: ``"byte-bpe"`` or ``"wordpiece"`` for GPT-2's and BERT's rules, None for other tokenizers.
        vocab: maps each token, special tokens included, to its id, sorted by id.
        special: the names of the special tokens.
        end_of_text: the special token between documents, which no text is encoded to; None if there is none.

    Raises:
        DataError: the library cannot run it, or several of its tokens could be the end-of-text token.
    """

    def __init__(self, settings: Settings, name: str = _FILE) -> None:
        self.settings, self.form = settings, form_of(settings)
        self._json = dump(settings)
        self._library = _library(self._json, name)
        self.vocab: Mapping[str, int] = by_id(self._library.get_vocab())
        self.vocab_size = max(self.vocab.values(), default=-1) + 1
        if not 0 < self.vocab_size <= MAX_VOCAB_SIZE:
            raise DataError(f"{name}: the largest id is {self.vocab_size - 1}; expected 0 to {MAX_VOCAB_SIZE - 1}")
        added = self._library.get_added_tokens_decoder()
        self.special = tuple(token.content for _, token in sorted(added.items()) if token.special)
        self._begin, self._end = _frame(settings.get("post_processor"), self.special)
        self.end_of_text = self._choose_end_of_text(name)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tokenizer of hornbook, OpenAI's GPT-2, Google's BERT, fairseq's RoBERTa, Megatron or Hugging Face.

        Args:
            path: a ``tokenizer.json`` or ``vocab.txt``; a folder (such as a token store) with one of them or the other
                files of `hornbook.text.tokenizer_json`; a corpus or a run; or a name, see
                `hornbook.text.tokenizer_names`.

        Raises:
            DataError: there is no tokenizer, or the library cannot run it.
            HornbookError: a named tokenizer is not available, see `hornbook.text.tokenizer_names.find`.
        """
        return cls(read_settings(path), str(path))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the tokenizer with this ``tokenizer.json``. Raises DataError if it is malformed or cannot run."""
        return cls(parse(text.encode(errors="surrogatepass"), _FILE))

    @classmethod
    def train(
        cls, documents: Iterable[str], vocab_size: int, *, kind: Kind = "byte-bpe", lowercase: bool = True
    ) -> Self:
        """Train a tokenizer, deterministically; for arguments and errors see ``train_settings``."""
        return cls(train_settings(documents, vocab_size, kind=kind, lowercase=lowercase))

    @cached_property
    def _stretches(self) -> Stretches | None:
        return stretches_for(self.settings, self.form)

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether tokens are spelled with byte symbols, as for GPT-2 and Llama 3."""
        return '"ByteLevel"' in dump({**self.settings, "model": None, "added_tokens": None, "post_processor": None})

    @property
    def continuing_prefix(self) -> str:
        """The prefix of tokens that continue a word: ``##`` for WordPiece, empty for other models."""
        model = self.settings["model"]
        return str(model["continuing_subword_prefix"]) if model.get("type") == "WordPiece" else ""

    @property
    def has_two_separators(self) -> bool:
        """Whether two separators join the texts of a pair, as for RoBERTa and XLM-R (``<s> A </s></s> B </s>``)."""
        return self.form == "byte-bpe" or set(ROBERTA_TOKENS) <= set(self.special)

    @property
    def end_of_text_id(self) -> int | None:
        """The id of ``end_of_text``; None if there is none, as for BERT."""
        return None if self.end_of_text is None else self.vocab[self.end_of_text]

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token, ``[PAD]`` or ``<pad>``; None if there is none."""
        return self._id_of("pad")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self.vocab[name] for name in self.special)

    def name_of(self, role: Role) -> str | None:
        """Return the special token with a role, or None."""
        framing = {"cls": self._begin, "sep": self._end} if self._begin and self._end else {}
        named = next((name for name in ROLE_NAMES[role] if name in self.special), None)
        return named if self.form else framing.get(role) or named

    def token(self, number: int) -> str:
        """Return the token of an id as spelled in the vocabulary; empty for an unused id."""
        return self._library.id_to_token(number) or ""

    def num_bytes(self, token: str) -> int:
        """Return the number of bytes of text that a token decodes to; 0 for a special token."""
        if token in self.special:
            return 0
        if self.is_byte_level:
            return len(token)
        spelled = token.removeprefix(self.continuing_prefix).replace("▁", " ")
        return 1 if BYTE_TOKEN.fullmatch(token) else len(spelled.encode())

    def _id_of(self, role: Role) -> int | None:
        name = self.name_of(role)
        return None if name is None else self.vocab[name]

    def _choose_end_of_text(self, name: str) -> str | None:
        """Return the recorded end-of-text token, or the only candidate by place or name; forget a repetition."""
        recorded = self.settings["model"].get(END_OF_TEXT)
        candidates: list[str] = [known for known in END_OF_TEXT_NAMES if known in self.special]
        if self.form == "wordpiece":
            candidates = []
        elif self.form == "byte-bpe":
            candidates = ["</s>"] if set(ROBERTA_TOKENS) <= set(self.special) else candidates[:1]
        elif self._end is not None and self._end not in ROLE_NAMES["sep"][:1]:
            candidates = [self._end]
        if recorded is None:
            if len(candidates) > 1:
                raise DataError(
                    f"{name}: the tokens {', '.join(candidates)} could each be the end-of-text token; put the "
                    "tokenizer_config.json that names it (eos_token) beside the file"
                )
            return candidates[0] if candidates else None
        if recorded not in self.special:
            raise DataError(f"{name}: the end-of-text token {recorded!r:.40} is not a special token; restore the file")
        if candidates == [recorded]:
            self.settings = without_end_of_text(self.settings)
            self._json = dump(self.settings)
        return str(recorded)

    def require_end_of_text(self) -> int:
        """Return ``end_of_text_id``. Raises UserError if the tokenizer has no such token."""
        if self.end_of_text_id is None:
            raise UserError(
                "the tokenizer has no end-of-text token, which a causal language model needs; use another one, or "
                "train one"
            )
        return self.end_of_text_id

    def require_masking(self) -> MaskingTokens:
        """Return the ids of the special tokens for masking. Raises UserError if one is missing."""
        roles: tuple[Role, ...] = ("cls", "sep", "mask", "pad")
        ids = {role: number for role in roles if (number := self._id_of(role)) is not None}
        if missing := [" or ".join(ROLE_NAMES[role]) for role in roles if role not in ids]:
            raise UserError(
                f"the tokenizer has no token {', '.join(missing)}, which encoders need; "
                "use BERT's or RoBERTa's, or train one by `hornbook tokenizer train --kind wordpiece`"
            )
        return MaskingTokens(**ids, vocab_size=self.vocab_size, special_ids=self.special_ids)

    @cached_property
    def digest(self) -> str:
        """The hexadecimal SHA-256 of ``to_json()``; tokenizers with the same digest give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens. Raises UserError for lone surrogates, or another type."""
        return cast("list[int]", self.encode_batch([text])[0].tolist())

    def encode_with_mask(self, text: str) -> list[int]:
        """Return the ids of a text in which the name of the mask token is encoded as that token.

        White space before it is removed, as transformers does for RoBERTa. Raises UserError if the tokenizer has no
        mask token, or the text is not a string.
        """
        _refuse_other_types([text])
        name = self.name_of("mask")
        if name is None:
            names = " or ".join(ROLE_NAMES["mask"])
            raise UserError(f"the tokenizer has no mask token ({names}); use the tokenizer of an encoder")
        *before, last = text.split(name)
        stretches = self.encode_batch([*(stretch.rstrip() for stretch in before), last])
        ids = stretches[0].tolist()
        for stretch in stretches[1:]:
            ids += [self.vocab[name], *stretch.tolist()]
        return cast("list[int]", ids)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, int32[num_tokens], computed on ``RAYON_NUM_THREADS`` threads.

        Raises UserError if a text has lone surrogates or is not a string.
        """
        _refuse_other_types(texts)
        parts: list[list[NDArray[np.int32]]] = [[] for _ in texts]
        numbered = ((number, cut) for number, text in enumerate(texts) for cut in self.stretches(text))
        for batch in _batches(numbered):
            encodings = self._run(self._library.encode_batch_fast, [cut for _, cut in batch])
            for (number, _), encoding in zip(batch, encodings, strict=True):
                parts[number].append(np.asarray(encoding.ids, dtype=np.int32))
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in parts]

    def find_endless(self, text: str) -> str | None:
        """Return why encoding a text would take too much memory, or None; see `hornbook.text.cuts.find_endless`."""
        return find_endless(text, self._stretches)

    def makes_one_token_of_each(self, spelled: Iterable[str]) -> bool:
        """Return whether the model makes one token of each word, as spelled in the vocabulary."""
        return all(len(tokens) == 1 for tokens in map(self._library.model.tokenize, spelled))

    def stretches(self, text: str, size: int = CUT_CHARACTERS) -> Iterable[str]:
        """Split a text into stretches whose concatenated ids are those of the text.

        Returns the whole text if the tokenizer's rules for pieces are not known, see `hornbook.text.cuts`.
        """
        return [text] if len(text) <= size or self._stretches is None else self._stretches(text, size)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return (ids int64[T], start and end of each token in characters int64[T, 2]) of each text.

        Raises UserError if a text has lone surrogates or is not a string.
        """
        _refuse_other_types(texts)
        return [
            (np.array(each.ids, dtype=np.int64), np.array(each.offsets, dtype=np.int64).reshape(-1, 2))
            for each in self._run(self._library.encode_batch, list(texts))
        ]

    def _run(self, encode: Callable[..., list[tokenizers.Encoding]], texts: list[str]) -> list[tokenizers.Encoding]:
        try:
            return encode(texts, add_special_tokens=False)
        except TypeError as error:  # the library's error for a string that cannot be encoded in UTF-8
            raise UserError("a text has lone surrogates, so it is not valid Unicode; decode its bytes again") from error

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Return the text of the ids, with special tokens as their names. Raises UserError if an id is unknown.

        Invalid UTF-8 becomes U+FFFD. With WordPiece, case and white space may differ from the encoded text.
        """
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise UserError(f"the input is of type {type(ids).__name__}; expected a sequence of token ids")
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.vocab_size:
            wrong = numbers[(numbers < 0) | (numbers >= self.vocab_size)][0]
            raise UserError(f"the tokenizer has no token id {wrong}; expected 0 to {self.vocab_size - 1}")
        return self._library.decode(numbers.tolist(), skip_special_tokens=False)

    def to_json(self) -> str:
        """Return the content of ``tokenizer.json``, which the tokenizers and transformers libraries can read."""
        return self._json

    def save(self, folder: Path) -> Path:
        """Write ``tokenizer.json`` into a folder and return its path; a new folder appears atomically with the file."""
        data = self.to_json().encode()
        if folder.exists():
            replace_file(folder / _FILE, data)
            return folder / _FILE
        new = temporary_beside(folder)
        try:
            make_directory(new, exist_ok=False)
            write_file(new / _FILE, data)
            commit_directory(new, folder)
        except StorageError:
            with suppress(StorageError):
                remove_tree(new)
            raise
        return folder / _FILE


def _refuse_other_types(texts: Iterable[object]) -> None:
    """Raise UserError if one of the texts is not a string."""
    for text in texts:
        if not isinstance(text, str):
            advice = "; decode it, as in text.decode()" if isinstance(text, bytes | bytearray) else ""
            raise UserError(f"a text is of type {type(text).__name__}; expected a string{advice}")


@lru_cache(maxsize=4)  # what a freed one has encoded stays in memory: 370 bytes a word with tokenizers 0.23.3
def _library(text: str, name: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, set to encode names of special tokens as text and to add no special tokens.

    Raises:
        DataError: the library cannot run it, or its Rust code panics (which is not an ``Exception``).
    """
    try:
        with _without_panic_reports():
            library = tokenizers.Tokenizer.from_str(text)
            library.post_processor = None  # RoBERTa's trims offsets
            library.encode_special_tokens = True
            library.decode(library.encode(_TRIAL).ids)
            return library
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name}: the tokenizers library {tokenizers.__version__} cannot run it ({reason:.200}); restore the file, "
            "or update the library"
        ) from None


@contextmanager
def _without_panic_reports() -> Iterator[None]:
    """Redirect standard error to nothing inside the block, since Rust reports panics there."""
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _frame(processor: Any, special: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the special tokens, or None, that a post-processor adds before and after a text."""
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for part in parts:
        if part["type"] in ("BertProcessing", "RobertaProcessing"):
            return part["cls"][0], part["sep"][0]
        if part["type"] == "TemplateProcessing":
            names = [piece.get("SpecialToken", {}).get("id") for piece in part["single"]]
            first, last = (name if name in special else None for name in (names[:1] + names[-1:]) or (None, None))
            return first, last
    return None, None


def _batches(numbered: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Group stretches, each with the number of its text, into batches for one call of the library."""
    batch: list[tuple[int, str]] = []
    size = 0
    for number, cut in numbered:
        if batch and (len(batch) >= _BATCH_CUTS or size + utf8_bound(cut) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((number, cut))
        size += utf8_bound(cut)
    if batch:
        yield batch
