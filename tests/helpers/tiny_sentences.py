"""Sentence stores of given tokens, with a tokenizer that is a stand-in, made without a build."""

import numpy as np

from hornbook.corpora.folders import DOCUMENT_ROW, MANIFEST, STORE_FILES, Manifest
from hornbook.corpora.megatron import IndexedWriter
from hornbook.formats.npy import npy_bytes
from hornbook.storage import Written, sha256_file, write_file


def sentence_store(folder, documents, *, tokenizer=None, end_of_text_id=None, sequences="sentences", end_of_text=None):
    """Write a store of documents, each a list of sentences, each a list of ids; return its folder."""
    if end_of_text == "inserted":
        end_of_text_id = tokenizer.end_of_text_id if tokenizer else end_of_text_id
    folder.mkdir(parents=True)
    with IndexedWriter(folder / "tokens", "uint16") as writer:
        for sentences in documents:
            for sentence in sentences:
                writer.add_sequence(np.asarray(sentence, dtype=np.uint16))
            writer.end_document()
    (folder / "documents.npy").write_bytes(npy_bytes(np.zeros(len(documents), dtype=DOCUMENT_ROW)))
    (folder / "tokenizer.json").write_text(tokenizer.to_json() if tokenizer else "{}")
    manifest = Manifest(
        num_documents=len(documents),
        num_tokens=sum(len(sentence) for sentences in documents for sentence in sentences),
        num_bytes=0,
        dtype="uint16",
        end_of_text=end_of_text or ("absent" if end_of_text_id is None else "stored"),
        end_of_text_id=end_of_text_id,
        tokenizer=tokenizer.digest if tokenizer else "none",
        vocab_size=tokenizer.vocab_size if tokenizer else 1000,
        split="train",
        options={},
        sources=("-",),
        files={
            name: Written(size=(folder / name).stat().st_size, sha256=sha256_file(folder / name))
            for name in STORE_FILES
        },
        sequences=sequences,
    )
    write_file(folder / MANIFEST, manifest.to_bytes())
    return folder


def sentence_starts(store, document):
    """Where in a document each of its sentences begins; the last entry is its length."""
    first, end = store.indexed.document_index[document : document + 2]
    return [0, *np.cumsum(store.indexed.sizes[first:end]).tolist()]
