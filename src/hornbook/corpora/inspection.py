"""Inspection of token stores: statistics and samples, and verification, which reads every byte.

    document lengths 3, 5, 6, 200   ->   bins that double in width: {"start": 2, "end": 4, "documents": 1}, ...

    tokens.bin, tokens.idx, documents.npy, tokenizer.json    size and SHA-256 match the manifest
    the tokens                                               are ids of the tokenizer; end-of-text tokens are correct

Stores without a manifest have no hashes: only their structure is checked, and that no id is negative.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hornbook.config.options import is_url
from hornbook.corpora.folders import CHUNK_HASHES, MANIFEST, MOST_IDS, Manifest, locate_store
from hornbook.corpora.store import TokenStore, open_store
from hornbook.errors import DataError
from hornbook.storage import sha256_file

_CHECKED_TOKENS: Final = 1 << 22
_SAMPLE_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The counts of an intact store.

    Attributes:
        store: the folder, prefix or URL.
        files: the files whose size and hash match the manifest; empty without a manifest.
        documents, tokens: number of documents and tokens checked.
        sentences: number of sentences; None if sequences are documents.
    """

    store: str
    files: tuple[str, ...]
    documents: int
    tokens: int
    sentences: int | None


def verify_store(path: str | Path, split: str = "train") -> Verified:
    """Check every byte of a store; for arguments see ``open_store``. Raises DataError, naming the damaged file."""
    files = () if is_url(str(path)) else verify_hashes(path, split)
    store = open_store(path, split)
    if store.remote and store.manifest:  # what is copied is compared with its hash, and so is every chunk of the tokens
        files = tuple(store.manifest.files)
    tokens, bin_path = store.indexed.tokens, store.indexed.paths[0]
    end = store.vocab_size or min(np.iinfo(tokens.dtype).max + 1, MOST_IDS)
    for start in range(0, len(tokens), _CHECKED_TOKENS):
        some = tokens[start : start + _CHECKED_TOKENS]
        if wrong := np.flatnonzero((some < 0) | (some >= end))[:1].tolist():
            raise DataError(
                f"{bin_path}: token {start + wrong[0]} is {some[wrong[0]]}; expected 0 to {end - 1}; build the store "
                "again"
            )
    if store.manifest and store.end_of_text != "absent" and store.indexed.is_contiguous:
        _verify_ends(store)
    _ = store.rows  # reading them checks them
    _verify_tokenizer(store)
    return Verified(
        store=store.name,
        files=files,
        documents=store.num_documents,
        tokens=store.num_tokens,
        sentences=store.num_sentences,
    )


def verify_hashes(path: str | Path, split: str = "train") -> tuple[str, ...]:
    """Compare the files of a store with the hashes in its manifest; return their names. Raises DataError."""
    folder = locate_store(Path(path), split)
    if not (folder / MANIFEST).exists():
        return ()
    manifest = Manifest.read(folder)
    chunk_hashes = {CHUNK_HASHES: manifest.chunk_hashes} if manifest.chunk_hashes else {}
    for name, file in {**manifest.files, **chunk_hashes}.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; build the store again")
        if (found := sha256_file(folder / name)) != file.sha256:
            raise DataError(
                f"{folder / name} is damaged: its SHA-256 is {found[:12]}..., expected {file.sha256[:12]}... by the "
                "manifest; build the store again"
            )
    return tuple(manifest.files)


def _verify_tokenizer(store: TokenStore) -> None:
    """Raise DataError if the tokenizer is damaged, or its vocabulary or end-of-text token is not the manifest's."""
    tokenizer = store.tokenizer()
    if tokenizer is None:
        return
    for name, found, expected in (
        ("the vocabulary has {} ids", store.vocab_size, tokenizer.vocab_size),
        ("the end-of-text token is {}", store.end_of_text_id, tokenizer.end_of_text_id),
    ):
        if found is not None and found != expected:
            raise DataError(
                f"{store.path / MANIFEST}: {name.format(found)}, but that of the tokenizer {expected}; build the store "
                "again"
            )


def _verify_ends(store: TokenStore) -> None:
    """Raise DataError if a document lacks the end-of-text token that should be stored, or all have one to insert."""
    bin_path, starts = store.indexed.paths[0], store.indexed.document_starts
    has_it = np.diff(starts) > 0
    has_it[has_it] = store.indexed.tokens[starts[1:][has_it] - 1] == store.end_of_text_id
    if store.end_of_text == "stored" and (others := np.flatnonzero(~has_it)).size:
        raise DataError(
            f"{bin_path}: document {others[0]} does not end with the end-of-text token {store.end_of_text_id}, which "
            "the manifest says is stored; build the store again"
        )
    if store.end_of_text == "inserted" and has_it.all():
        raise DataError(
            f"{bin_path}: all documents end with the end-of-text token {store.end_of_text_id}, which the manifest says "
            "readers insert; build the store again"
        )


def describe_store(store: TokenStore, num_samples: int) -> dict[str, Any]:
    """Return the description of a store that ``hornbook corpus inspect --json`` prints."""
    sources = store.manifest.sources if store.manifest else ()
    return {
        "store": store.name,
        "documents": store.num_documents,
        "sentences": store.num_sentences,
        "tokens": store.num_tokens,
        "bytes": store.num_bytes,
        "tokens_per_byte": tokens_per_byte(store),
        "vocab_size": store.vocab_size,
        "dtype": store.indexed.dtype.name,
        "end_of_text": store.end_of_text,
        "end_of_text_id": store.end_of_text_id,
        "fingerprint": store.fingerprint,
        "lengths": describe_lengths(store),
        "num_sources": len(sources),
        "sources": list(sources[:10]),
        "samples": samples(store, num_samples),
    }


def describe_lengths(store: TokenStore) -> dict[str, Any]:
    """Return the distribution of tokens per document, stored end-of-text tokens included, with power-of-two bins."""
    lengths = store.document_lengths
    exponents = np.frexp(np.maximum(lengths, 1))[1] - 1  # 2**e <= length < 2**(e + 1); frexp is exact below 2**53
    counts = np.bincount(exponents).tolist()
    return {
        "shortest": int(lengths.min()),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "bins": [
            {"start": 1 << e, "end": 2 << e, "documents": counts[e]} for e in range(int(exponents.min()), len(counts))
        ],
    }


def samples(store: TokenStore, count: int) -> list[dict[str, Any]]:
    """Return the beginnings of ``count`` evenly spaced documents, as text, or as ids if the tokenizer is unknown."""
    tokenizer = store.tokenizer() if count else None
    found = []
    for number in np.unique(np.linspace(0, store.num_documents - 1, count).astype(np.int64)).tolist():
        tokens = store.read(number, 0, min(_SAMPLE_TOKENS, int(store.document_lengths[number])))
        text = tokenizer.decode(tokens) if tokenizer else " ".join(map(str, tokens.tolist()))
        source, unit = store.source(number), store.offset_unit(number)
        found.append({"document": number, "text": text, "source": source, "unit": unit})
    return found


def tokens_per_byte(store: TokenStore) -> float | None:
    """Return the number of tokens, without stored end-of-text tokens, per byte of text; None if bytes are unknown."""
    if not store.num_bytes:
        return None
    return (store.num_tokens - store.num_documents * (store.end_of_text == "stored")) / store.num_bytes
