"""hornbook's token stores and Megatron's ``.bin`` and ``.idx``, as sources and targets of conversions.

    store       a folder with tokenizer, manifest and the place of each document: what `corpus build` makes
    megatron    the two files alone, as Megatron-LM, NeMo and GPT-NeoX have them

A store that is made from others' tokens needs the tokenizer, which tells each document's bytes of text from its
tokens: a byte-level token stands for a fixed number of bytes. The price: whoever names a wrong tokenizer is believed,
unless a token is outside its vocabulary.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hornbook.data.formats.documents import Documents, TokenDocument, as_tokens
from hornbook.data.formats.files import emptied, new_folder, refuse_existing, working_folder
from hornbook.data.manifest import MANIFEST, STORE_FILES, Manifest
from hornbook.data.megatron import DTYPES, IndexedFile, IndexedWriter, index_paths, smallest_dtype
from hornbook.data.rows import DOCUMENT_ROW, npy_bytes
from hornbook.data.store import TokenStore, open_store, splits_of
from hornbook.errors import UserError
from hornbook.storage import Written, remove_file, rename, sha256_file, write_file
from hornbook.text.sources import STANDARD_INPUT
from hornbook.text.tokenizer import Tokenizer


def read_store(path: Path, split: str | None = None) -> Documents:
    """The documents of a token store, or of a ``.bin`` and ``.idx``.

    Args:
        path: as `hornbook.data.store.open_store`.
        split: which store of a corpus.

    Raises:
        UserError: a corpus has several splits and none was chosen.
        DataError: there is none, or a file is damaged.
        StorageError: a file cannot be read.
    """
    splits = splits_of(path)
    if split is None and len(splits) > 1:
        raise UserError(f"{path} has the splits {' and '.join(splits)}; choose one with --split")
    store = open_store(path, split or (splits[0] if splits else "train"))
    return Documents(
        files=store.manifest.sources if store.manifest else (str(store.indexed.paths[0]),),
        read=lambda: _documents(store),
        end_of_text=None if store.end_of_text == "absent" else store.end_of_text,
        end_of_text_id=store.end_of_text_id,
        vocab_size=store.vocab_size,
        dtype=store.indexed.dtype,
        tokenizer=store.tokenizer(),
        split=store.manifest.split if store.manifest else None,
    )


def _documents(store: TokenStore) -> Iterator[TokenDocument]:
    for number in range(store.num_documents):
        tokens = as_tokens(store.document(number), f"{store.path}: document {number}")
        if store.rows is None:
            first = min(int(store.indexed.document_index[number]), store.indexed.num_sequences - 1)
            yield TokenDocument(tokens, 0, int(store.indexed.pointers[first]))
        else:
            row = store.rows[number]
            yield TokenDocument(tokens, int(row["source"]), int(row["offset"]))


def write_megatron(path: Path, documents: Documents) -> None:
    """Write a ``.bin`` and an ``.idx``, one sequence a document; the ``.idx`` comes last, and with it the data set.

    The dtype is the smallest for the vocabulary where that is known, else that of the source, else int32.

    Args:
        path: the prefix of both, or one of them.
        documents: what to write.

    Raises:
        UserError: one of the files is there already.
        StorageError: the disk is full, read-only or failing.
    """
    target = megatron_prefix(path)
    with working_folder(target) as work:
        new, final = index_paths(work / "tokens"), index_paths(target)
        if not new[0].exists() and new[1].exists() and not final[1].exists():
            remove_file(final[0])  # by a conversion that was killed between the two renames
        refuse_existing(*final)
        with IndexedWriter(emptied(work) / "tokens", _dtype(documents)) as writer:
            for document in documents:
                writer.add_document(document.tokens)
        for here, there in zip(new, final, strict=True):
            rename(here, there)


def megatron_prefix(path: Path) -> Path:
    """``data/pile`` of ``data/pile``, ``data/pile.bin`` or ``data/pile.idx``."""
    return path.with_suffix("") if path.suffix in (".bin", ".idx") else path


def write_store(path: Path, documents: Documents, split: str) -> None:
    """Write a token store.

    Args:
        path: a new folder.
        documents: what to write; their tokenizer and where end-of-text is are known.
        split: what the manifest says that the store is, ``"train"`` or ``"validation"``.

    Raises:
        UserError: the folder is there already, or the tokenizer is not known.
        StorageError: the disk is full, read-only or failing; nothing is left behind.
    """
    tokenizer = documents.tokenizer
    if tokenizer is None:
        raise UserError("a token store has the tokenizer that made its tokens; name it with --tokenizer")
    assert documents.end_of_text is not None, "the caller knows where end-of-text is"
    with new_folder(path) as folder:
        rows = _write_tokens(folder, documents, _bytes_of_tokens(tokenizer))
        write_file(folder / "documents.npy", npy_bytes(rows))
        write_file(folder / "tokenizer.json", tokenizer.to_json().encode())
        manifest = _manifest(folder, documents, tokenizer, split, num_bytes=int(rows["num_bytes"].sum()))
        write_file(folder / MANIFEST, manifest.to_bytes())


def _write_tokens(folder: Path, documents: Documents, bytes_of_tokens: NDArray[np.int64]) -> NDArray[np.void]:
    """Write ``tokens.bin`` and ``.idx``; return ``DOCUMENT_ROW`` [number of documents]."""
    rows = []
    with IndexedWriter(folder / "tokens", _dtype(documents)) as writer:
        for document in documents:
            writer.add_document(document.tokens)
            rows.append((document.file, document.offset, int(bytes_of_tokens[document.tokens].sum())))
    return np.array(rows, dtype=DOCUMENT_ROW)


def _manifest(folder: Path, documents: Documents, tokenizer: Tokenizer, split: str, num_bytes: int) -> Manifest:
    indexed = IndexedFile.open(folder / "tokens")
    assert documents.end_of_text is not None, "the caller knows where end-of-text is"
    return Manifest(
        num_documents=indexed.num_documents,
        num_tokens=indexed.num_tokens,
        num_bytes=num_bytes,
        dtype=indexed.dtype.name,
        end_of_text=documents.end_of_text,
        end_of_text_id=tokenizer.end_of_text_id,
        tokenizer=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        split=split,
        options={"converted": True},
        sources=tuple(file if file == STANDARD_INPUT else str(Path(file).absolute()) for file in documents.files),
        files={name: _written(folder / name) for name in STORE_FILES},
    )


def _written(path: Path) -> Written:
    return Written(size=path.stat().st_size, sha256=sha256_file(path))


def _dtype(documents: Documents) -> np.dtype[Any]:
    if documents.vocab_size is not None:
        return smallest_dtype(documents.vocab_size)
    largest = documents.end_of_text_id or 0
    is_good = documents.dtype in DTYPES.values() and largest <= np.iinfo(documents.dtype).max
    return documents.dtype if documents.dtype is not None and is_good else DTYPES[4]


def _bytes_of_tokens(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """int64[vocab_size]: bytes of text that each id stands for; none for special tokens, which no text becomes."""
    pairs = tokenizer.byte_pairs
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token, number in pairs.vocab.items():
        lengths[number] = 0 if token in pairs.special else len(token)
    return lengths
