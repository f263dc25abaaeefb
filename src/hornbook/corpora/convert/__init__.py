"""Tokenized files of others, read and written: one module a format, and two kinds of content that never mix.

    documents    sequences of token ids          store, megatron, tfrecord, pickle, npy; only read: nanogpt, llm.c
    instances    BERT's masked sentence pairs    bert-tfrecord, bert-tfrecord-remasked, bert-arrow;
                                                 only read: bert-tfrecord-packed

Every format is a reader (path -> ``Documents`` or ``Instances``, which can be iterated again and again and hold one
document or instance at a time) and a writer of the same; `hornbook.corpora.convert.conversion` joins the two. Each
codec knows the layout that pre-training writes, and refuses the rest of what its format might hold.
"""

from typing import Final

DOCUMENT_FORMATS: Final = ("store", "megatron", "tfrecord", "pickle", "npy")
INSTANCE_FORMATS: Final = ("bert-tfrecord", "bert-tfrecord-remasked", "bert-arrow")
DOCUMENT_SOURCES: Final = (*DOCUMENT_FORMATS, "nanogpt", "llm.c")
INSTANCE_SOURCES: Final = (*INSTANCE_FORMATS, "bert-tfrecord-packed")
"""Formats that are read; the others of them are not written."""
