"""Encoding with tiktoken, four times as fast as the tokenizers library for byte-level BPE with GPT-2's pattern.

    encode = accelerated(tokenizer, threads=8)      None if tiktoken is not installed or could give other ids
    encode(["Hi there", ...])                       [int32[2], ...], the same as tokenizer.encode_batch

A corpus must not depend on the installed libraries, so tiktoken must give the same ids for every text:

- It merges by rank, not by pair. Both give the same ids if each merge makes a distinct token and the bytes of every
  token merge into that token, which is checked for all tokens.
- Its pieces depend on which characters are letters, numbers and spaces, and the libraries have different versions of
  Unicode. The classes are compared for all characters of planes 0 to 3, which have nearly all assigned ones, and for a
  sample of the others.
- One job in 128 is encoded by both libraries, and a difference stops the build, in case a library has a bug.

A call encodes many texts, joined by a special token, so that threads rarely wait for Python's lock. Long stretches
without a boundary are encoded by the tokenizers library, one at a time, since it needs much memory for them.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby, islice
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from hornbook.errors import HornbookError
from hornbook.text.cuts import CUT_CHARACTERS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import byte_symbols, symbol_bytes

if TYPE_CHECKING:
    import tiktoken

Encode = Callable[[Sequence[str]], list[NDArray[np.int32]]]
_Job = list[tuple[int, str]]
"""Stretches, each with the number of its text."""

_PATTERN: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""GPT-2's pattern as written in tiktoken."""
_BOUNDARY: Final = "\U0010fffe<hornbook: next text>"
_JOB_CHARACTERS: Final = 1 << 18
_JOBS_A_THREAD: Final = 16
_JOBS_PER_CHECK: Final = 128
_LONGEST: Final = 4 * CUT_CHARACTERS
_PROBED: Final = (range(0xD800), range(0xE000, 0x40000), range(0x40000, 0x110000, 1024), range(0xE0000, 0xE1000))
_LONGEST_RUN: Final = 64
_LATER_BYTES: Final = range(0x80, 0xC0)
"""Bytes of a character in UTF-8 after its first one."""


def accelerated(tokenizer: Tokenizer, threads: int) -> Encode | None:
    """Return a faster equivalent of ``tokenizer.encode_batch`` with a number of threads, or None."""
    if tokenizer.form != "byte-bpe" or not _is_installed() or not _merges_by_rank(tokenizer) or not _same_classes():
        return None
    return _Accelerated(tokenizer, threads)


class _Accelerated:
    """A callable that encodes texts with tiktoken, see the module's docstring."""

    def __init__(self, tokenizer: Tokenizer, threads: int) -> None:
        self._tokenizer = tokenizer
        tokens = [*byte_symbols(), *_merged(tokenizer)]
        self._ids = np.array([tokenizer.vocab[token] for token in tokens] + [-1], dtype=np.int32)
        self._boundary = len(tokens)
        self._encoding = _encoding({_as_bytes(token): rank for rank, token in enumerate(tokens)}, self._boundary)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hornbook-tiktoken")
        self._one_long = Lock()
        self._jobs_at_once, self._num_jobs = _JOBS_A_THREAD * threads, 0

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, int32[num_tokens].

        Raises:
            UserError: a text has lone surrogates.
            HornbookError: the libraries disagree.
        """
        parts: list[list[NDArray[np.int32]]] = [[] for _ in texts]
        jobs = _jobs((number, cut) for number, text in enumerate(texts) for cut in self._tokenizer.stretches(text))
        while some := list(islice(jobs, self._jobs_at_once)):
            for job, found in zip(some, self._executor.map(self._encode, some), strict=True):
                self._num_jobs += 1
                if self._num_jobs % _JOBS_PER_CHECK == 1:
                    self._check(job, found)
                for (number, _), ids in zip(job, found, strict=True):
                    parts[number].append(ids)
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in parts]

    def _encode(self, numbered: _Job) -> list[NDArray[np.int32]]:
        job = [stretch for _, stretch in numbered]
        if len(job[-1]) > _LONGEST:
            with self._one_long:
                return self._tokenizer.encode_batch(job)
        joined = _BOUNDARY.join(job)
        try:
            joined.encode()
        except UnicodeEncodeError:  # let the tokenizer raise the error
            return self._tokenizer.encode_batch(job)
        if joined.count(_BOUNDARY) != len(job) - 1:
            return self._tokenizer.encode_batch(job)
        ranks = self._encoding.encode_to_numpy(joined, allowed_special={_BOUNDARY}, disallowed_special=())
        ends = np.flatnonzero(ranks == self._boundary)
        ids = self._ids[ranks]
        starts = [0, *(ends + 1).tolist()]
        return [ids[start:end] for start, end in zip(starts, [*ends.tolist(), len(ids)], strict=True)]

    def _check(self, job: _Job, found: list[NDArray[np.int32]]) -> None:
        with self._one_long:
            wanted = self._tokenizer.encode_batch([cut for _, cut in job])
        for expected, ids in zip(wanted, found, strict=True):
            if not np.array_equal(expected, ids):
                raise HornbookError(
                    "tiktoken and tokenizers give different ids for a text, so the tokens written so far may be wrong; "
                    "start again with `encoder='tokenizers'`, or with other versions of the two libraries"
                )


def _jobs(stretches: Iterable[tuple[int, str]]) -> Iterator[_Job]:
    """Group stretches into jobs of a quarter of a million characters; a long stretch is a job of its own."""
    job: _Job = []
    size = 0
    for number, stretch in stretches:
        is_long = len(stretch) > _LONGEST
        if job and (size >= _JOB_CHARACTERS or is_long):
            yield job
            job, size = [], 0
        job.append((number, stretch))
        size += len(stretch) + _JOB_CHARACTERS * is_long
    if job:
        yield job


@cache
def _is_installed() -> bool:
    try:
        import tiktoken
    except ImportError:
        return False
    return hasattr(tiktoken.Encoding, "encode_to_numpy")


def _as_bytes(token: str) -> bytes:
    return bytes(map(symbol_bytes().__getitem__, token))


def _encoding(ranks: dict[bytes, int], boundary: int) -> "tiktoken.Encoding":
    import tiktoken

    special = {_BOUNDARY: boundary}
    return tiktoken.Encoding("hornbook", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def _merged(tokenizer: Tokenizer) -> list[str]:
    """Return the token that each merge makes, in the order of merges."""
    return [left + right for left, right in tokenizer.settings["model"]["merges"]]


def _merges_by_rank(tokenizer: Tokenizer) -> bool:
    """Return whether merging by pair and merging by rank give the same tokens."""
    made = _merged(tokenizer)
    if len(set(made)) < len(made) or not set(byte_symbols()) | set(made) <= set(tokenizer.vocab):
        return False
    model = models.BPE(dict(tokenizer.vocab), [(left, right) for left, right in tokenizer.settings["model"]["merges"]])
    return all(len(model.tokenize(token)) == 1 for token in made)


@cache
def _same_classes() -> bool:
    """Return whether both libraries have the same letters, numbers and spaces.

    A run of characters after a letter, a number or a mark is one piece if all are of its class. Each character merges
    with the one before it in its piece, so a run without a gap is one piece. Other characters are encoded after each of
    the three, and merge with the one of their class.
    """
    symbols = byte_symbols()
    leads = [symbol for byte, symbol in enumerate(symbols) if byte not in _LATER_BYTES]
    merges = [(before, lead) for before in "x1!" for lead in leads]
    merges += [(symbols[last], lead) for last in _LATER_BYTES for lead in leads[0x80:]]
    tokens = [*symbols, *(before + lead for before, lead in merges)]
    library = tokenizers.Tokenizer(models.BPE({token: rank for rank, token in enumerate(tokens)}, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding = _encoding({_as_bytes(token): rank for rank, token in enumerate(tokens)}, len(tokens))

    def sizes_if_same(probes: Sequence[str]) -> list[int]:
        """Return the number of tokens of each probe; -1 where the libraries differ."""
        ours = (encoding.encode_to_numpy(probe, disallowed_special=()) for probe in probes)
        theirs = (each.ids for each in library.encode_batch_fast(list(probes), add_special_tokens=False))
        return [len(ids) if np.array_equal(ids, other) else -1 for ids, other in zip(ours, theirs, strict=True)]

    runs = [run for characters in _PROBED for run in _runs_of_a_class(map(chr, characters))]
    sizes = sizes_if_same([before + run for before, run in runs])
    others = [
        character
        for (_, run), size in zip(runs, sizes, strict=True)
        if size != len(run.encode()) + 1 - len(run)
        for character in run
    ]
    return -1 not in sizes_if_same([f"x{character}1{character}!{character}" for character in others])


def _runs_of_a_class(characters: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield runs of characters that Python's Unicode has in one class, after a character of that class."""

    def before(character: str) -> str:
        return {"L": "x", "N": "1"}.get(unicodedata.category(character)[0], "!")

    for of_class, run in groupby(characters, before):
        while some := "".join(islice(run, _LONGEST_RUN)):
            yield of_class, some
