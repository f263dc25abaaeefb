"""Token stores: tokenized documents in Megatron's file format, with a manifest.

    corpora/wikipedia/           a corpus, written by ``hornbook corpus build``
        train/                   a store: tokens.bin, tokens.idx, documents.npy, manifest.json, tokenizer.json
        validation/              another store

    open_store("corpora/wikipedia", split="validation").document(7)     array([318, 262, ...], dtype=uint16)

A document consists of one or more sequences of the index; several are its sentences, which ``document`` and ``read``
concatenate. A ``.bin`` and ``.idx`` of another program, without a manifest, are also a store, named by their prefix or
folder; its end-of-text token is guessed from up to a thousand documents; bytes, sources and tokenizer are unknown.
Opening a store reads the index and compares file sizes; only ``hornbook corpus verify`` compares hashes.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.config.options import is_url
from hornbook.config.sections import CacheOptions
from hornbook.corpora.folders import MANIFEST, Manifest, locate_store, read_rows, splits_of
from hornbook.corpora.megatron import IndexedFile
from hornbook.corpora.remote_store import RemoteCorpus, RemoteStore, RemoteTokens
from hornbook.errors import DataError, UserError
from hornbook.storage import sha256_file
from hornbook.storage.system import open_regular, storage_errors
from hornbook.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # readers of documents are imported where they are used: a training needs none
    from hornbook.text.readers.web_archives import Page, PageFinder

_SAMPLED_DOCUMENTS: Final = 1000
_HASHED_BYTES: Final = 1 << 20
_tokenizers: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()
"""Those of the open stores by the SHA-256 of their file: the splits of a corpus share one."""
_MOST_BYTES: Final = 1 << 62
"""More than any file system holds, and few enough that sums of two do not wrap around."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStore:
    """Tokenized documents on disk; see ``open_store``.

    Attributes:
        path: the store's folder, or the prefix of files without a manifest.
        indexed: the tokens and their index.
        manifest: the manifest; None if another program wrote the files.
        end_of_text: ``"stored"``: each document ends with the end-of-text token; ``"inserted"``: readers insert it;
            ``"absent"``.
        end_of_text_id: the id of the end-of-text token; None if absent.
        remote: where the files come from if the store is at a URL; ``path`` then has copies of some of them.
    """

    path: Path
    indexed: IndexedFile
    manifest: Manifest | None
    end_of_text: Literal["stored", "inserted", "absent"]
    end_of_text_id: int | None
    remote: RemoteStore | None = None

    @property
    def name(self) -> str:
        """The URL of a remote store, or the path."""
        return self.remote.url if self.remote else str(self.path)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.indexed.num_documents

    @property
    def num_tokens(self) -> int:
        """Number of tokens, stored end-of-text tokens included."""
        return self.indexed.num_tokens

    @property
    def num_bytes(self) -> int | None:
        """Number of bytes of the documents' text in UTF-8; None if unknown."""
        return self.manifest.num_bytes if self.manifest else None

    @property
    def vocab_size(self) -> int | None:
        """Number of ids of the tokenizer; None if unknown."""
        return self.manifest.vocab_size if self.manifest else None

    @property
    def sequences(self) -> Literal["documents", "sentences"]:
        """Whether sequences are documents or sentences; without a manifest, sentences if any document has several."""
        if self.manifest:
            return self.manifest.sequences
        return "documents" if self.num_sequences <= self.num_documents else "sentences"

    @property
    def num_sequences(self) -> int:
        """Number of sequences: of sentences, or of documents."""
        return self.indexed.num_sequences

    @property
    def num_sentences(self) -> int | None:
        """Number of sentences; None if sequences are documents."""
        return self.num_sequences if self.sequences == "sentences" else None

    @cached_property
    def document_lengths(self) -> Int64s:
        """int64[num_documents]: number of tokens of each document, a stored end-of-text token included."""
        return np.diff(self.indexed.document_starts)

    @cached_property
    def rows(self) -> NDArray[np.void] | None:
        """``DOCUMENT_ROW`` [num_documents], the origin of each document; None without a manifest.

        Loaded on first access, since training does not need it.

        Raises:
            DataError: ``documents.npy`` is damaged, or does not fit the manifest.
        """
        if self.manifest is None:
            return None
        path = self._file("documents.npy", self.manifest)
        rows = read_rows(path, self.manifest.num_documents)
        sources, offsets, lengths = rows["source"], rows["offset"], rows["num_bytes"]
        if len(rows) and not 0 <= sources.min() <= sources.max() < len(self.manifest.sources):
            raise DataError(
                f"{path}: a document is from a source that the manifest does not list; build the store again"
            )
        has_wrapped = lengths.sum(dtype=np.float64) > _MOST_BYTES  # then the sum may be right by chance
        if len(rows) and (lengths.min() < 0 or has_wrapped or int(lengths.sum()) != self.manifest.num_bytes):
            raise DataError(
                f"{path}: the bytes do not sum to the manifest's {self.manifest.num_bytes}; build the store again"
            )
        if len(rows) and not 0 <= offsets.min() <= offsets.max() <= _MOST_BYTES:
            number = int(np.argmax((offsets < 0) | (offsets > _MOST_BYTES)))
            raise DataError(
                f"{path}: document {number} has the offset {int(offsets[number])} in its source; build the store again"
            )
        return rows

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes with the tokens, by which a resumed run recognizes its data.

        Combines the hashes in the manifest; without a manifest, hashes the index and both ends of the ``.bin``.
        """
        if self.manifest:
            parts = [self.manifest.files[name].sha256 for name in ("tokens.bin", "tokens.idx", "tokenizer.json")]
            return hashlib.sha256(":".join((*parts, self.end_of_text)).encode()).hexdigest()
        bin_path, idx_path = self.indexed.paths
        digest = hashlib.sha256(f"{bin_path.stat().st_size}:".encode())
        with storage_errors("read", bin_path), open_regular(bin_path) as file:
            digest.update(file.read(_HASHED_BYTES))
            file.seek(max(0, file.seek(0, 2) - _HASHED_BYTES))
            digest.update(file.read(_HASHED_BYTES))
        with storage_errors("read", idx_path), open_regular(idx_path) as file:
            while chunk := file.read(_HASHED_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the store; None if unknown. Raises DataError if its file is damaged.

        Loaded on the first call and then kept, since parsing a large one takes a second; open stores share it.
        """
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        if not self.manifest:
            return None
        path = self._file("tokenizer.json", self.manifest)
        content = sha256_file(path)
        tokenizer = _tokenizers.get(content)
        if tokenizer is None:
            tokenizer = _tokenizers[content] = Tokenizer.load(path)
        if tokenizer.digest != self.manifest.tokenizer:
            raise DataError(f"{path} is not the tokenizer that the store was built with; restore the file")
        return tokenizer

    def _file(self, name: str, manifest: Manifest) -> Path:
        return self.remote.copy(name, manifest.files[name]) if self.remote else self.path / name

    def document(self, number: int) -> Integers:
        """Return the tokens of a document (0 to num_documents - 1), read-only, a stored end-of-text token included."""
        return self.indexed.read(number, 0, int(self.document_lengths[number]))

    @cached_property
    def read(self) -> Callable[[int, int, int], Integers]:
        """The function ``read(document, start, count)``, see ``IndexedFile.read``."""
        return self.indexed.read

    @property
    def will_read(self) -> Callable[[Iterable[tuple[int, int, int]]], None] | None:
        """Of a remote store, the function to announce the arguments of `read`, in order, to fetch them early."""
        tokens: object = self.indexed.tokens
        starts = self.indexed.document_starts
        if not isinstance(tokens, RemoteTokens):
            return None

        def announce(pieces: Iterable[tuple[int, int, int]]) -> None:
            begins = ((int(starts[document]) + start, count) for document, start, count in pieces)
            tokens.will_read((begin, begin + count) for begin, count in begins)

        return announce

    def source(self, document: int) -> tuple[str, int] | None:
        """Return the source of a document and its offset there, see ``offset_unit``; None if unknown."""
        if self.manifest is None or self.rows is None:
            return None
        row = self.rows[document]
        return self.manifest.sources[int(row["source"])], int(row["offset"])

    def offset_unit(self, document: int) -> Literal["byte", "row"]:
        """Return the unit of a document's offset: rows of a table, or bytes of the uncompressed file."""
        from hornbook.text.documents import offset_unit

        source = self.source(document)
        return "byte" if source is None else offset_unit(source[0], self._format)

    def page(self, document: int) -> "Page | None":
        """Return URL and languages of a document from a web archive, read from its source.

        None if it is from another source, or the source is gone or has no record there. Compressed sources are read up
        to the record, once for documents in ascending order.
        """
        from hornbook.text.documents import recorded_format

        source = self.source(document)
        if source is None or recorded_format(source[0], self._format) != "warc":
            return None
        return self._pages.find(*source)

    @cached_property
    def _pages(self) -> "PageFinder":
        from hornbook.text.readers.web_archives import PageFinder

        return PageFinder()

    @property
    def _format(self) -> str | None:
        """The format option of the build."""
        reading = self.manifest.options.get("reading") if self.manifest else None
        given = reading.get("format") if isinstance(reading, dict) else None
        return given if isinstance(given, str) else None


def open_store(path: str | Path, split: str = "train", cache: CacheOptions = CacheOptions()) -> TokenStore:  # noqa: B008
    """Open a token store and check that its files are consistent.

    Args:
        path: a store's folder; a corpus with a folder for each split; or a ``.bin`` and ``.idx`` of another program,
            by prefix, by either file, or by a folder with one such pair; or the URL of a store or a corpus.
        split: the split of a corpus; ignored if ``path`` is a store.
        cache: where to keep what is read from a URL.

    Raises:
        DataError: there is no store, it is empty, or a file is missing, truncated or malformed.
        UserError: access to a URL is denied, or the library of its protocol is missing.
        HornbookError: the server of a URL cannot be reached.
    """
    remote = RemoteCorpus(str(path), cache) if is_url(str(path)) else None
    location = locate_store(remote.folder if remote else Path(path), split)
    if (location / MANIFEST).exists():
        store = _open_own(location, remote.store(location) if remote else None)
    else:
        indexed = IndexedFile.open(location)
        end = _guess_end_of_text(indexed)
        end_of_text: Literal["stored", "absent"] = "absent" if end is None else "stored"
        store = TokenStore(path=location, indexed=indexed, manifest=None, end_of_text=end_of_text, end_of_text_id=end)
    if not store.num_documents or not store.num_tokens:
        raise DataError(f"{location}: the store is empty; build it from text")
    return store


def folder_of(path: str | Path, cache: CacheOptions = CacheOptions()) -> Path:  # noqa: B008
    """Return a path unchanged, and for a URL the folder of its copies. Raises the errors of ``open_store``."""
    return RemoteCorpus(str(path), cache).folder if is_url(str(path)) else Path(path)


def open_held_out(corpora: Sequence[str], cache: CacheOptions = CacheOptions()) -> list[TokenStore]:  # noqa: B008
    """Open the validation splits of the corpora that have one.

    Raises the errors of ``open_store`` and ``refuse_other_tokenizers``.
    """
    stores = []
    for path in corpora:
        folder = folder_of(path, cache)
        splits = splits_of(folder)
        if "validation" in splits or (splits and (folder / "validation").is_dir()):
            stores.append(open_store(path, "validation", cache))
    refuse_other_tokenizers(stores)
    return stores


def refuse_other_tokenizers(stores: Sequence[TokenStore]) -> None:
    """Raise UserError if two stores with manifests were built with different tokenizers."""
    known = [(store.path, store.manifest.tokenizer) for store in stores if store.manifest]
    for path, digest in known[1:]:
        if digest != known[0][1]:
            raise UserError(
                f"{known[0][0]} and {path} were built with different tokenizers "
                f"({known[0][1][:12]} and {digest[:12]}); build all stores of a run with one tokenizer"
            )


def _open_own(folder: Path, remote: RemoteStore | None) -> TokenStore:
    manifest = Manifest.read(folder)
    if remote:
        remote.copy("tokens.idx", manifest.files["tokens.idx"])
    for name, file in manifest.files.items() if not remote else ():
        with storage_errors("read", folder / name):
            size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != file.size:
            found = "it is missing" if size is None else f"it has {size}"
            raise DataError(
                f"{folder / name}: the manifest expects {file.size} bytes, but {found}; build the store again"
            )
    indexed = IndexedFile.open(folder / "tokens", remote.tokens(manifest) if remote else None)
    counts = indexed.num_documents, indexed.num_tokens, indexed.dtype.name
    if counts != (manifest.num_documents, manifest.num_tokens, manifest.dtype):
        raise DataError(f"{folder}: manifest and index disagree on documents, tokens or dtype; build the store again")
    if manifest.sequences == "documents" and indexed.num_sequences != indexed.num_documents:
        raise DataError(
            f"{folder}: the index has {indexed.num_sequences} sequences for {indexed.num_documents} documents, but the "
            "manifest expects one each; build the store again"
        )
    return TokenStore(
        path=folder,
        indexed=indexed,
        manifest=manifest,
        end_of_text=manifest.end_of_text,
        end_of_text_id=manifest.end_of_text_id,
        remote=remote,
    )


def _guess_end_of_text(indexed: IndexedFile) -> int | None:
    """Return the id that ends each sampled document and occurs nowhere else in them, or None."""
    numbers = np.unique(np.linspace(0, indexed.num_documents - 1, _SAMPLED_DOCUMENTS).astype(np.int64)).tolist()
    lengths = np.diff(indexed.document_starts)
    documents = [indexed.read(number, 0, int(lengths[number])) for number in numbers if indexed.num_documents > 1]
    if not documents or not all(len(tokens) for tokens in documents):
        return None
    last = int(documents[0][-1])
    stored = all(tokens[-1] == last and np.count_nonzero(tokens == last) == 1 for tokens in documents)
    return last if stored else None
