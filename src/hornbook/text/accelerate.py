"""Encoding with tiktoken, four times as fast as the tokenizers library for byte-level BPE with GPT-2's pattern.

    encode = accelerated(tokenizer, threads=8)      None if tiktoken is not installed or could give other ids
    encode(["Hi there", ...])                       [int32[2], ...], the same as tokenizer.encode_batch

A corpus must not depend on the installed libraries, so tiktoken must give the same ids for every text:

- It merges by rank, not by pair. Both give the same ids if each merge makes a distinct token and the bytes of every
  token merge into that token, which is checked for all tokens.
- Its pieces depend on which characters are letters, numbers and spaces, and the libraries have different versions of
  Unicode. The classes are compared for all characters of planes 0 to 3, which have nearly all assigned ones, and for a
  sample of the others.
- One stretch in 128 is encoded by both libraries, and a difference stops the build, in case a library has a bug.

What the first two comparisons found is kept in the user's cache, for the installed files of the libraries: it takes
longer than encoding 5 MB.

A call encodes many texts, joined by a special token, so that threads rarely wait for Python's lock. Long stretches
without a boundary are encoded by the tokenizers library, one at a time, since it needs much memory for them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from hornbook.errors import HornbookError
from hornbook.storage.json_files import keep, kept
from hornbook.text.cuts import CUT_CHARACTERS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import byte_symbols

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
_STRETCHES_PER_CHECK: Final = 128
_LONGEST: Final = 4 * CUT_CHARACTERS
_PROBED: Final = (range(0xD800), range(0xE000, 0x40000), range(0x40000, 0x110000, 1024), range(0xE0000, 0xE1000))
_LONGEST_RUN: Final = 64
_PROBE: Final = 3
"""Characters of a probe: one of ``_LEADS``, the character and a line end, which keeps it apart from the next."""
_PROBED_AT_ONCE: Final = 1024 * _PROBE
"""The tokenizers library takes longer per character of a long text."""
_LEADS: Final = tuple(map(ord, "x1!"))
"""A letter, a number and a mark."""
_LATER_BYTES: Final = range(0x80, 0xC0)
"""Bytes of a character in UTF-8 after its first one."""


def accelerated(tokenizer: Tokenizer, threads: int) -> Encode | None:
    """Return a faster equivalent of ``tokenizer.encode_batch`` with a number of threads, or None."""
    if tokenizer.form != "byte-bpe" or not _is_installed():
        return None
    is_same = _known("classes", _same_classes) and _known(tokenizer.digest, partial(_merges_by_rank, tokenizer))
    return _Accelerated(tokenizer, threads) if is_same else None


def _known(what: str, find: Callable[[], bool]) -> bool:
    """Return what ``find`` found when these files of the two libraries were first compared on this machine."""
    specs = map(find_spec, ("tiktoken._tiktoken", "tokenizers.tokenizers", __name__))
    files = [Path(spec.origin) for spec in specs if spec and spec.origin]
    stamps = [f"{path}: {path.stat().st_size} bytes of {path.stat().st_mtime_ns}" for path in files]
    of = f"{what} by {', '.join(stamps)}"
    if len(files) < 3:  # a library has another structure
        return find()
    if not isinstance(known := kept("tiktoken", of), bool):
        known = find()
        keep("tiktoken", of, known)
    return known


class _Accelerated:
    """A callable that encodes texts with tiktoken, see the module's docstring."""

    def __init__(self, tokenizer: Tokenizer, threads: int) -> None:
        self._tokenizer = tokenizer
        tokens = [*byte_symbols(), *_merged(tokenizer)]
        self._ids = np.array([tokenizer.vocab[token] for token in tokens] + [-1], dtype=np.int32)
        self._boundary = len(tokens)
        self._encoding = _encoding(tokens)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hornbook-tiktoken")
        self._one_long = Lock()
        self._jobs_at_once, self._num_stretches = _JOBS_A_THREAD * threads, 0

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
                first = -self._num_stretches % _STRETCHES_PER_CHECK
                self._check(job[first::_STRETCHES_PER_CHECK], found[first::_STRETCHES_PER_CHECK])
                self._num_stretches += len(job)
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


def _encoding(tokens: Sequence[str]) -> "tiktoken.Encoding":
    """Return tiktoken's encoding with tokens, as spelled by byte symbols, in the order of ranks, then the boundary."""
    import tiktoken

    of_symbols = np.zeros(0x200, dtype=np.uint8)
    of_symbols[np.array(list(map(ord, byte_symbols())))] = np.arange(256)
    spelled = of_symbols[np.frombuffer("".join(tokens).encode("utf-32-le"), dtype="<u4")].tobytes()
    ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens))).tolist()
    ranks = {spelled[start:end]: rank for rank, (start, end) in enumerate(zip([0, *ends], ends, strict=False))}
    special = {_BOUNDARY: len(tokens)}
    return tiktoken.Encoding("hornbook", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def _merged(tokenizer: Tokenizer) -> list[str]:
    """Return the token that each merge makes, in the order of merges."""
    return [left + right for left, right in tokenizer.settings["model"]["merges"]]


def _merges_by_rank(tokenizer: Tokenizer) -> bool:
    """Return whether merging by pair and merging by rank give the same tokens."""
    made = _merged(tokenizer)
    if len(set(made)) < len(made) or not set(byte_symbols()) | set(made) <= set(tokenizer.vocab):
        return False
    return tokenizer.makes_one_token_of_each(made)


@cache
def _same_classes() -> bool:
    """Return whether both libraries have the same letters, numbers and spaces.

    A character after a letter, a number or a mark continues its piece if it is of that class. So a run of characters
    that Python has in one class, after one of the three, is one piece. The characters of all runs that are more, and
    ASCII, are put after each of the three.
    """
    characters = np.concatenate([np.array(probed, dtype="<u4") for probed in _PROBED])
    each = characters.view("<U1")
    classes = np.where(np.char.isalpha(each), _LEADS[0], np.where(np.char.isnumeric(each), _LEADS[1], _LEADS[2]))
    starts = np.flatnonzero((np.diff(classes, prepend=0) != 0) | (np.arange(len(characters)) % _LONGEST_RUN == 0))
    begins = _begins_if_same(np.insert(characters, starts, classes[starts]))
    if begins is None:
        return False
    begins = np.delete(begins, starts + np.arange(len(starts)))  # without those put before the runs
    is_whole = ~np.logical_or.reduceat(begins, starts)
    others = characters[~np.repeat(is_whole, np.diff(starts, append=len(characters))) | (characters < 0x80)]
    probes = np.full((len(others), len(_LEADS), _PROBE), ord("\n"), dtype="<u4")
    probes[:, :, 0], probes[:, :, 1] = _LEADS, others[:, None]
    return _begins_if_same(probes.ravel()) is not None


def _begins_if_same(characters: NDArray[np.uint32]) -> NDArray[np.bool_] | None:
    """Return which characters of a text begin a piece, bool[n], or None if the libraries disagree.

    tiktoken shows it by its tokens: those of two bytes end with the first byte of a character that continues a piece.
    Next to ASCII, it shows only after one of ``_LEADS``; otherwise a character counts as the tokenizers library has it.
    """
    library = pre_tokenizers.ByteLevel(add_prefix_space=False)
    symbols = byte_symbols()
    firsts = [symbol for byte, symbol in enumerate(symbols) if byte not in _LATER_BYTES]
    merged = [chr(lead) + first for lead in _LEADS for first in firsts]
    merged += [symbols[last] + first for last in _LATER_BYTES for first in firsts[0x80:]]
    encoding = _encoding([*symbols, *merged])
    found = []
    for start in range(0, len(characters), _PROBED_AT_ONCE):
        some = characters[start : start + _PROBED_AT_ONCE]
        text = some.astype("<u4").tobytes().decode("utf-32-le")
        theirs = np.zeros(len(some), dtype=bool)
        theirs[[first for _, (first, _) in library.pre_tokenize_str(text)]] = True
        sizes = 1 + (encoding.encode_to_numpy(text, disallowed_special=()) >= len(symbols))
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        if sizes.sum() != len(data):  # tiktoken has no tokens for what its pattern does not match
            return None
        continues = np.zeros(len(data), dtype=bool)
        continues[np.cumsum(sizes)[sizes == 2] - 1] = True
        ours = ~continues[(data < _LATER_BYTES.start) | (data >= _LATER_BYTES.stop)]
        before = np.roll(some, 1)
        is_shown = np.isin(before, _LEADS) | ((before >= 0x80) & (some >= 0x80))
        if not np.array_equal(ours[is_shown], theirs[is_shown]):
            return None
        found.append(theirs)
    return np.concatenate(found)
