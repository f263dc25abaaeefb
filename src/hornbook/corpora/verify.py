"""Is a store what its build left? Every byte is read.

    tokens.bin, tokens.idx, documents.npy, tokenizer.json    size and SHA-256 as the manifest has them
    the tokens                                               ids of the tokenizer; end-of-text where it belongs

Others' stores have no hashes: of them the structure is checked, as at every opening, and that no id is negative.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hornbook.corpora.store import TokenStore, locate_store, open_store
from hornbook.corpora.store_manifest import MANIFEST, Manifest
from hornbook.errors import DataError
from hornbook.storage import sha256_file

_CHECKED_TOKENS: Final = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was found sound.

    Attributes:
        store: its folder, or prefix.
        files: files whose size and hash are those of the manifest; none in others' stores.
        documents, tokens: how many were checked.
        sentences: how many the index has; None where a sequence is a document.
    """

    store: Path
    files: tuple[str, ...]
    documents: int
    tokens: int
    sentences: int | None


def verify_store(path: str | Path, split: str = "train") -> Verified:
    """Check every byte of a store, named as for ``open_store``. Raises DataError with the name of a damaged file."""
    files = verify_hashes(path, split)
    store = open_store(path, split)
    tokens, place = store.indexed.tokens, store.indexed.paths[0]
    end = store.vocab_size or np.iinfo(tokens.dtype).max + 1
    for start in range(0, len(tokens), _CHECKED_TOKENS):
        some = tokens[start : start + _CHECKED_TOKENS]
        if wrong := np.flatnonzero((some < 0) | (some >= end))[:1].tolist():
            raise DataError(f"{place}: token {start + wrong[0]} is {some[wrong[0]]}; expected 0 to {end - 1}")
    if store.manifest and store.end_of_text != "absent" and store.indexed.is_contiguous:
        _verify_ends(store)
    _ = store.rows, store.tokenizer()  # reading them checks them
    return Verified(
        store=store.path,
        files=files,
        documents=store.num_documents,
        tokens=store.num_tokens,
        sentences=store.num_sentences,
    )


def verify_hashes(path: str | Path, split: str = "train") -> tuple[str, ...]:
    """Compare the files of a store with the hashes in its manifest; return their names. Raises as ``verify_store``."""
    folder = locate_store(Path(path), split)
    if not (folder / MANIFEST).exists():
        return ()
    manifest = Manifest.read(folder)
    for name, file in manifest.files.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; build the store again")
        if (found := sha256_file(folder / name)) != file.sha256:
            raise DataError(
                f"{folder / name} is damaged: its SHA-256 is {found[:12]}..., the manifest has {file.sha256[:12]}...; "
                "build the store again"
            )
    return tuple(manifest.files)


def _verify_ends(store: TokenStore) -> None:
    """Raise DataError where end-of-text is not stored as the manifest says, or is at all ends where readers put it."""
    place, starts = store.indexed.paths[0], store.indexed.document_starts
    has_it = np.diff(starts) > 0
    has_it[has_it] = store.indexed.tokens[starts[1:][has_it] - 1] == store.end_of_text_id
    if store.end_of_text == "stored" and (others := np.flatnonzero(~has_it)).size:
        raise DataError(f"{place}: document {others[0]} does not end with end-of-text ({store.end_of_text_id})")
    if store.end_of_text == "inserted" and has_it.all():
        raise DataError(
            f"{place}: all documents end with end-of-text ({store.end_of_text_id}), which readers are to put in by the "
            "manifest; build the store again"
        )
