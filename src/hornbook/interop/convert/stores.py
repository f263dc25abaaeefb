"""Reader and writer of hornbook's token stores and of Megatron's ``.bin`` and ``.idx``.

    store       a folder with tokenizer, manifest and the origin of each document, as written by `corpus build`
    megatron    the two files alone, as used by Megatron-LM, NeMo and GPT-NeoX

A store made from another program's tokens needs the tokenizer to compute the bytes of text of each document: a
byte-level token decodes to a fixed number of bytes; a word piece counts its own letters, without white space and text
that the vocabulary cannot represent. Bytes and sentences recorded in a source store are kept. A wrong tokenizer is
detected only if a token is outside its vocabulary.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s
from hornbook.corpora.building.request import printable
from hornbook.corpora.folders import DOCUMENT_ROW, MANIFEST, STORE_FILES, Manifest, splits_of, write_chunk_hashes
from hornbook.corpora.megatron import DTYPES, IndexedFile, IndexedWriter, index_paths, smallest_dtype
from hornbook.corpora.store import TokenStore, open_store
from hornbook.errors import DataError, StorageError, UserError
from hornbook.formats.npy import npy_bytes
from hornbook.interop.convert.token_documents import Documents, TokenDocument, as_tokens
from hornbook.storage import Written, remove_file, rename, sha256_file, write_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.storage.new_files import make_empty, new_folder, refuse_existing, working_folder
from hornbook.text.tokenizer import Tokenizer

_RENAMED = "renamed.json"


def read_store(path: Path, split: str | None = None) -> Documents:
    """Return the documents of a token store, or of a ``.bin`` and ``.idx``; see ``open_store``.

    Raises UserError if there are several splits and none is chosen, DataError if there is none, or a file is damaged.
    """
    store = open_store(path, split_of(path, split))
    manifest, tokenizer = store.manifest, store.tokenizer()
    reading = manifest.options.get("reading") if manifest else None
    return Documents(
        files=manifest.sources if manifest else (str(store.indexed.paths[0]),),
        read=lambda: _documents(store),
        end_of_text=store.end_of_text if manifest or store.end_of_text_id is not None else None,
        end_of_text_id=tokenizer.end_of_text_id if tokenizer else store.end_of_text_id,
        vocab_size=store.vocab_size,
        dtype=store.indexed.dtype,
        tokenizer=tokenizer,
        split=manifest.split if manifest else None,
        sequences=store.sequences,
        reading=reading if isinstance(reading, dict) else None,
    )


def split_of(path: Path, split: str | None) -> str:
    """Return the chosen split of a corpus, or its only one. Raises UserError if there are several to choose from."""
    splits = splits_of(path)
    if split is None and len(splits) > 1:
        raise UserError(f"{path} has the splits {' and '.join(splits)}; choose one with `split`")
    return split or (splits[0] if splits else "train")


def _documents(store: TokenStore) -> Iterator[TokenDocument]:
    indexed, has_sentences = store.indexed, store.sequences == "sentences"
    for number in range(store.num_documents):
        tokens = as_tokens(store.document(number), f"{store.path}: document {number}")
        first, end = indexed.document_index[number : number + 2].tolist()
        sizes = indexed.sizes[first:end] if has_sentences else None
        if store.rows is None:
            offset = int(indexed.pointers[min(first, indexed.num_sequences - 1)])
            yield TokenDocument(tokens, 0, offset, sizes=sizes)
        else:
            row = store.rows[number]
            yield TokenDocument(tokens, int(row["source"]), int(row["offset"]), int(row["num_bytes"]), sizes)


def write_megatron(path: Path, documents: Documents) -> None:
    """Write a ``.bin`` and an ``.idx`` at a prefix; the ``.idx`` is renamed last and completes the data set.

    A document is written as one sequence, or as its sentences. The dtype is the smallest for the vocabulary if that is
    known, else that of the source, else int32. Raises UserError if one of the files exists.
    """
    target = megatron_prefix(path)
    with working_folder(target) as work:
        new, final = index_paths(work / "tokens"), index_paths(target)
        if not new[0].exists() and new[1].exists() and not final[1].exists() and _is_from(work / _RENAMED, final[0]):
            remove_file(final[0])  # left by a conversion that was killed between the two renames
        refuse_existing(*final)
        with IndexedWriter(make_empty(work) / "tokens", _dtype(documents)) as writer:
            for document in documents:
                _add(writer, document)
        write_file(work / _RENAMED, dump_json(_identity(new[0])))
        for source, final_path in zip(new, final, strict=True):
            rename(source, final_path)


def _identity(path: Path) -> dict[str, int]:
    """Return what remains the same when a file is renamed, and tells it from another one."""
    status = path.stat()
    return {"inode": status.st_ino, "size": status.st_size, "modified_ns": status.st_mtime_ns}


def _is_from(record: Path, path: Path) -> bool:
    """Return whether a file is the one whose identity was recorded before it was renamed."""
    try:
        return bool(read_json(record, "the record of a conversion") == _identity(path))
    except (DataError, StorageError, OSError):
        return False


def megatron_prefix(path: Path) -> Path:
    """Return the prefix of a path: ``data/pile`` for ``data/pile``, ``data/pile.bin`` and ``data/pile.idx``."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def write_store(path: Path, documents: Documents, split: str) -> None:
    """Write a token store; an error leaves nothing behind.

    Args:
        path: the new folder.
        documents: the documents, with known ``tokenizer`` and ``end_of_text``.
        split: the split named in the manifest, ``"train"`` or ``"validation"``.

    Raises:
        UserError: the folder exists, or the tokenizer is not known.
    """
    tokenizer = documents.tokenizer
    if tokenizer is None:
        raise UserError("a token store needs the tokenizer of its tokens; add `tokenizer`")
    assert documents.end_of_text is not None, "set by the caller"
    with new_folder(path) as folder:
        bytes_of_tokens = np.zeros(tokenizer.vocab_size, dtype=np.int64)  # 0 for special tokens
        for token, number in tokenizer.vocab.items():
            bytes_of_tokens[number] = tokenizer.num_bytes(token)
        rows = _write_tokens(folder, documents, bytes_of_tokens)
        write_file(folder / "documents.npy", npy_bytes(rows))
        write_file(folder / "tokenizer.json", tokenizer.to_json().encode())
        manifest = _manifest(folder, documents, tokenizer, split, num_bytes=int(rows["num_bytes"].sum()))
        write_file(folder / MANIFEST, manifest.to_bytes())


def _write_tokens(folder: Path, documents: Documents, bytes_of_tokens: Int64s) -> NDArray[np.void]:
    """Write ``tokens.bin`` and ``tokens.idx``; return ``DOCUMENT_ROW`` [num_documents]."""
    rows = bytearray()
    with IndexedWriter(folder / "tokens", _dtype(documents)) as writer:
        for document in documents:
            _add(writer, document)
            known = document.num_bytes
            num_bytes = int(bytes_of_tokens[document.tokens].sum()) if known is None else known
            row = document.file, document.offset, num_bytes
            rows += np.array(row, dtype=DOCUMENT_ROW).tobytes()
    return np.frombuffer(rows, dtype=DOCUMENT_ROW)


def _add(writer: IndexedWriter, document: TokenDocument) -> None:
    if len(document.tokens) > np.iinfo(np.int32).max:
        raise UserError(
            f"a document has {len(document.tokens):,} tokens, more than an .idx can represent; add "
            "`split_at_end_of_text`"
        )
    if document.sizes is None:
        writer.add_document(document.tokens)
    else:
        writer.add_documents(document.tokens, document.sizes, np.array([len(document.sizes)]))


def _manifest(folder: Path, documents: Documents, tokenizer: Tokenizer, split: str, num_bytes: int) -> Manifest:
    indexed = IndexedFile.open(folder / "tokens")
    assert documents.end_of_text is not None, "set by the caller"
    return Manifest(
        num_documents=indexed.num_documents,
        num_tokens=indexed.num_tokens,
        num_bytes=num_bytes,
        dtype=indexed.dtype.name,
        end_of_text=documents.end_of_text,
        end_of_text_id=None if documents.end_of_text == "absent" else tokenizer.end_of_text_id,
        tokenizer=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        split=split,
        options={"converted": True} | ({"reading": dict(documents.reading)} if documents.reading else {}),
        sources=tuple(map(printable, documents.files)),
        files={
            name: Written(size=(folder / name).stat().st_size, sha256=sha256_file(folder / name))
            for name in STORE_FILES
        },
        chunk_hashes=write_chunk_hashes(folder),
        sequences=documents.sequences,
    )


def _dtype(documents: Documents) -> np.dtype[Any]:
    if documents.vocab_size is not None:
        return smallest_dtype(documents.vocab_size)
    largest = documents.end_of_text_id or 0
    is_good = documents.dtype in DTYPES.values() and largest <= np.iinfo(documents.dtype).max
    return documents.dtype if documents.dtype is not None and is_good else DTYPES[4]
