"""Text into token ids and back, over the tokenizers library: byte-level BPE with GPT-2's pattern, or BERT's WordPiece.

    "Hi there<|end"   ->   Hi | Ġthere | <| | end   ->   H·i  Ġthere  <·|  end   ->   [17250, 612, 27, 91, 437]

The ids are those of OpenAI's tokenizer, and of transformers' BERT, for every text; by byte-level BPE
``decode(encode(text)) == text``. Special tokens have ids that no text can become (the unknown word's apart): their
names inside a text are text. Long texts are cut where a piece ends anyway (`hornbook.text.cuts`). The price of the
library's speed is its choice of Unicode version: a letter that Unicode took in later than the installed library counts
as punctuation, for it as for tiktoken, until both are updated.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final, Self, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from hornbook.errors import StorageError, UserError
from hornbook.storage import commit_directory, make_directory, remove_tree, replace_file, temporary_beside, write_file
from hornbook.text.byte_pairs import BytePairs
from hornbook.text.cuts import find_endless, utf8_bound
from hornbook.text.special_tokens import ROLE_NAMES, MaskingTokens, Role
from hornbook.text.tokenizer_kinds import Rules, parse_rules, read_rules
from hornbook.text.tokenizer_training import Kind, train_rules

_FILE: Final = "tokenizer.json"
_BATCH_CUTS: Final = 256
_BATCH_BYTES: Final = 2 << 20
"""Of stretches that are encoded in one call: the library takes up to 250 bytes for each token till then."""


class Tokenizer:
    """A tokenizer of any kind; see ``load`` and ``train``. Immutable.

    Attributes:
        rules: all that its ids depend on, by kind: ``BytePairs`` or ``WordPieces``.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._library = rules.library()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tokenizer of hornbook, OpenAI's GPT-2, Google's BERT, fairseq's RoBERTa, Megatron or Hugging Face.

        Args:
            path: a ``tokenizer.json`` or ``vocab.txt``, or a folder with one (a token store, say), or with the files
                of `hornbook.text.tokenizer_kinds`.

        Raises:
            DataError: there is none, it is malformed, or of a kind that is not read.
            StorageError: a file cannot be read.
        """
        return cls(read_rules(Path(path)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The tokenizer of a ``tokenizer.json``'s text, as ``to_json`` gives it.

        Raises:
            DataError: it is malformed, or of a kind that is not read.
        """
        return cls(parse_rules(text.encode(), "tokenizer.json"))

    @classmethod
    def train(
        cls, documents: Iterable[str], vocab_size: int, *, kind: Kind = "byte-bpe", lowercase: bool = True
    ) -> Self:
        """Learn a tokenizer from texts, the same one from the same texts; see ``tokenizer_training.train_rules``.

        Raises:
            UserError: ``vocab_size`` is out of range for the kind, or there is no text.
        """
        return cls(train_rules(documents, vocab_size, kind=kind, lowercase=lowercase))

    @property
    def byte_pairs(self) -> BytePairs:
        """The vocabulary and the merges of a byte-level BPE, for what knows bytes.

        Raises:
            UserError: it is of another kind.
        """
        if not isinstance(self.rules, BytePairs):
            raise UserError(
                "the tokenizer is WordPiece, whose tokens are no bytes of a text; expected a byte-level BPE here"
            )
        return self.rules

    @property
    def vocab_size(self) -> int:
        """Number of ids: they are 0 .. vocab_size - 1."""
        return len(self.rules.vocab)

    @property
    def end_of_text_id(self) -> int | None:
        """The id of the token between documents, which no text becomes; None where there is none, as for BERT."""
        end_of_text = self.rules.end_of_text
        return None if end_of_text is None else self.rules.vocab[end_of_text]

    @property
    def pad_id(self) -> int | None:
        """The id of the token that fills a row up, ``[PAD]`` or ``<pad>``; None where there is none."""
        return self._id_of("pad")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self.rules.vocab[name] for name in self.rules.special)

    def _name_of(self, role: Role) -> str | None:
        return next((name for name in ROLE_NAMES[role] if name in self.rules.special), None)

    def _id_of(self, role: Role) -> int | None:
        name = self._name_of(role)
        return None if name is None else self.rules.vocab[name]

    def require_end_of_text(self) -> int:
        """``end_of_text_id``, for what cannot do without.

        Raises:
            UserError: there is no such token.
        """
        if self.end_of_text_id is None:
            raise UserError(
                "the tokenizer has no end-of-text token, so it is none for a model that continues texts; "
                "take a byte-level BPE"
            )
        return self.end_of_text_id

    def require_masking(self) -> MaskingTokens:
        """The special tokens of a model that guesses hidden tokens.

        Raises:
            UserError: one of them is missing from the vocabulary.
        """
        roles: tuple[Role, ...] = ("cls", "sep", "mask", "pad")
        ids = {role: number for role in roles if (number := self._id_of(role)) is not None}
        if missing := [" or ".join(ROLE_NAMES[role]) for role in roles if role not in ids]:
            raise UserError(
                f"the tokenizer has no token {', '.join(missing)}, which masking needs; "
                "take BERT's or RoBERTa's, or train one"
            )
        return MaskingTokens(**ids, vocab_size=self.vocab_size, special_ids=self.special_ids)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of ``to_json()`` in hexadecimal: tokenizers with one digest give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special token around it.

        Raises:
            UserError: it has lone surrogates, so it is no Unicode text.
        """
        return cast("list[int]", self.encode_batch([text])[0].tolist())

    def encode_with_mask(self, text: str) -> list[int]:
        """The ids of a text with gaps: the name of the mask token stands for that token, as nowhere else.

        White space before it is dropped, as transformers does for RoBERTa; for WordPiece it is nothing anyway.

        Raises:
            UserError: the tokenizer has no mask token, or the text has lone surrogates.
        """
        name = self._name_of("mask")
        if name is None:
            names = " or ".join(ROLE_NAMES["mask"])
            raise UserError(f"the tokenizer has no token {names}, so a text can have no gap to fill; take an encoder's")
        *before, last = text.split(name)
        stretches = self.encode_batch([*(stretch.rstrip() for stretch in before), last])
        ids = stretches[0].tolist()
        for stretch in stretches[1:]:
            ids += [self.rules.vocab[name], *stretch.tolist()]
        return cast("list[int]", ids)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The ids of each text, int32[number of tokens], by all cores (``RAYON_NUM_THREADS`` sets how many).

        Raises:
            UserError: a text has lone surrogates, so it is no Unicode text.
        """
        parts: list[list[NDArray[np.int32]]] = [[] for _ in texts]
        numbered = ((number, cut) for number, text in enumerate(texts) for cut in self.rules.stretches(text))
        for batch in _batches(numbered):
            encodings = self._encode_cuts([cut for _, cut in batch])
            for (number, _), encoding in zip(batch, encodings, strict=True):
                parts[number].append(np.asarray(encoding.ids, dtype=np.int32))
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in parts]

    def find_endless(self, text: str) -> str | None:
        """Say why a text would take too much memory, or None; see ``hornbook.text.cuts.find_endless``."""
        return find_endless(text, self.rules.stretches)

    def _encode_cuts(self, batch: list[str]) -> list[tokenizers.Encoding]:
        try:
            return self._library.encode_batch_fast(batch, add_special_tokens=False)
        except TypeError as error:  # what the library says of a string that has no UTF-8
            raise UserError(
                "a text has lone surrogates, so it is not Unicode; decode it anew from its bytes"
            ) from error

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of the ids, special tokens as their names; bytes that are no UTF-8 become U+FFFD.

        WordPiece's is put together again, in lower case perhaps, and where blanks were is a guess.

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
        return self.rules.to_json()

    def save(self, folder: Path) -> Path:
        """Write ``tokenizer.json`` into a folder, which is created with it at once where missing; return its path.

        Raises:
            StorageError: it cannot be written.
        """
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


def _batches(numbered: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Stretches with the number of their text, as many together as one call shall encode."""
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
