"""Text into token ids and back: byte-level BPE with GPT-2's pattern, over the tokenizers library.

    "Hi there<|end"   ->   Hi | Ġthere | <| | end   ->   H·i  Ġthere  <·|  end   ->   [17250, 612, 27, 91, 437]

The ids are those of OpenAI's tokenizer for every text, and ``decode(encode(text)) == text``. The end-of-text token has
an id that no text can become: its name inside a text is text. Long texts are cut where a piece ends anyway, before a
space, and the cuts encoded in parallel: more even for the cores, a third faster even for one, and memory stays bounded.
The price of the library's speed is its choice of Unicode version: a letter that Unicode took in later than the
installed library counts as punctuation, for it as for tiktoken, until both are updated.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Self, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from hornbook.errors import StorageError, UserError
from hornbook.storage import commit_directory, make_directory, remove_tree, replace_file, write_file
from hornbook.text.byte_pairs import (
    END_OF_TEXT,
    MAX_VOCAB_SIZE,
    BytePairs,
    byte_symbols,
    parse_tokenizer_json,
    read_byte_pairs,
)

MIN_VOCAB_SIZE: Final = 257
"""256 bytes and the end-of-text token."""

_FILE: Final = "tokenizer.json"
_CUT_CHARACTERS: Final = 16_384
_BATCH_CUTS: Final = 256
_CUT: Final = re.compile(r"\S(?= )|[A-Za-z0-9](?=\n)")
"""The last character of a piece, whatever comes next: white space can only begin a piece of GPT-2's pattern."""


class Tokenizer:
    """A byte-level BPE tokenizer; see ``load`` and ``train``. Immutable.

    Attributes:
        byte_pairs: the vocabulary and the merges.
    """

    def __init__(self, byte_pairs: BytePairs) -> None:
        self.byte_pairs = byte_pairs
        self._library = _assemble(byte_pairs)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tokenizer of hornbook, OpenAI's GPT-2, Megatron or Hugging Face.

        Args:
            path: a ``tokenizer.json``, or a folder with one (a token store, say), with ``encoder.json`` and
                ``vocab.bpe``, or with ``vocab.json`` and ``merges.txt``.

        Raises:
            DataError: there is none, it is malformed, or it is not a byte-level BPE with GPT-2's pattern.
            StorageError: a file cannot be read.
        """
        return cls(read_byte_pairs(Path(path)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The tokenizer of a ``tokenizer.json``'s text, as ``to_json`` gives it.

        Raises:
            DataError: it is malformed, or not a byte-level BPE with GPT-2's pattern.
        """
        return cls(parse_tokenizer_json(text.encode(), "tokenizer.json"))

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int) -> Self:
        """Learn the merges from texts (Sennrich et al., 2016, on bytes as GPT-2 does); the same texts give the same.

        The end-of-text token has the last id. Memory holds the distinct words of the texts, not the texts.

        Args:
            documents: the texts, read once.
            vocab_size: number of tokens, 257 or more. Few texts may give fewer: see ``.vocab_size``.

        Raises:
            UserError: ``vocab_size`` is below 257 or above 1,048,576, or there is no text.
        """
        if not MIN_VOCAB_SIZE <= vocab_size <= MAX_VOCAB_SIZE:
            raise UserError(
                f"vocab_size {vocab_size} is out of range: expected {MIN_VOCAB_SIZE} (256 bytes and the end-of-text "
                f"token) to {MAX_VOCAB_SIZE}"
            )
        alphabet = list(byte_symbols())
        seen = _Counted(documents)
        library = _bare_library(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
        library.train_from_iterator((cut for text in seen for cut in cuts(text)), trainer)
        if not seen.count:
            raise UserError("there is no text to train a tokenizer on; check the inputs")
        trained = parse_tokenizer_json(_with_end_of_text(library), "the trained tokenizer")
        return cls(trained)

    @property
    def vocab_size(self) -> int:
        """Number of ids: they are 0 .. vocab_size - 1."""
        return len(self.byte_pairs.vocab)

    @property
    def end_of_text_id(self) -> int:
        """The id of the token between documents, which no text becomes."""
        return self.byte_pairs.vocab[self.byte_pairs.end_of_text]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of ``to_json()`` in hexadecimal: tokenizers with one digest give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end-of-text token.

        Raises:
            UserError: it has lone surrogates, so it is no Unicode text.
        """
        return cast("list[int]", self.encode_batch([text])[0].tolist())

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The ids of each text, int32[number of tokens], by all cores (``RAYON_NUM_THREADS`` sets how many).

        Raises:
            UserError: a text has lone surrogates, so it is no Unicode text.
        """
        parts: list[list[NDArray[np.int32]]] = [[] for _ in texts]
        numbered = ((number, cut) for number, text in enumerate(texts) for cut in cuts(text))
        while batch := list(islice(numbered, _BATCH_CUTS)):
            encodings = self._encode_cuts([cut for _, cut in batch])
            for (number, _), encoding in zip(batch, encodings, strict=True):
                parts[number].append(np.asarray(encoding.ids, dtype=np.int32))
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in parts]

    def _encode_cuts(self, batch: list[str]) -> list[tokenizers.Encoding]:
        try:
            return self._library.encode_batch_fast(batch, add_special_tokens=False)
        except TypeError as error:  # what the library says of a string that has no UTF-8
            raise UserError(
                "a text has lone surrogates, so it is not Unicode; decode it anew from its bytes"
            ) from error

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of the ids, end-of-text as its name; bytes that are no UTF-8 become U+FFFD.

        Raises:
            UserError: an id is outside the vocabulary.
        """
        numbers = np.asarray(ids, dtype=np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.vocab_size:
            wrong = numbers[(numbers < 0) | (numbers >= self.vocab_size)][0]
            raise UserError(f"token id {wrong} is not in this tokenizer: expected 0 to {self.vocab_size - 1}")
        return self._library.decode(numbers.tolist(), skip_special_tokens=False)

    def to_json(self) -> str:
        """The text of its ``tokenizer.json``, which the tokenizers and transformers libraries read, too."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return self.byte_pairs.to_json()

    def save(self, folder: Path) -> Path:
        """Write ``tokenizer.json`` into a folder, which is created with it at once where missing; return its path.

        Raises:
            StorageError: it cannot be written.
        """
        data = self.to_json().encode()
        if folder.exists():
            replace_file(folder / _FILE, data)
            return folder / _FILE
        new = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
        try:
            make_directory(new)
            write_file(new / _FILE, data)
            commit_directory(new, folder)
        except StorageError:
            with suppress(StorageError):
                remove_tree(new)
            raise
        return folder / _FILE


def cuts(text: str, size: int = _CUT_CHARACTERS) -> Iterator[str]:
    """Cut a text into stretches of ``size`` characters or a little more, only where a piece ends anyway."""
    start = 0
    while len(text) - start > size and (match := _CUT.search(text, start + size - 1)):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text) or not start:
        yield text[start:]


class _Counted:
    """Texts on their way, counted."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.count += 1
            yield text


def _bare_library(model: models.BPE) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _assemble(byte_pairs: BytePairs) -> tokenizers.Tokenizer:
    library = _bare_library(models.BPE(dict(byte_pairs.vocab), list(byte_pairs.merges)))
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in byte_pairs.special])
    library.encode_special_tokens = True  # as text, that is: the names of special tokens are no markup
    return library


def _with_end_of_text(library: tokenizers.Tokenizer) -> bytes:
    """The library's own file, with the end-of-text token behind the last of the trained ones."""
    number = library.get_vocab_size()
    library.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    assert library.token_to_id(END_OF_TEXT) == number, "the pattern keeps any merge from spelling the end-of-text token"
    return library.to_str().encode()
