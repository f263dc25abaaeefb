"""Conversion between the tokenized files of other projects: one module per format, and two kinds of content.

    documents    sequences of token ids          store, megatron, tfrecord, pickle, npy; read-only: nanogpt, llm.c
    instances    BERT's masked sentence pairs    bert-tfrecord, bert-tfrecord-remasked, bert-arrow;
                                                 read-only: bert-tfrecord-packed

Each format has a reader (path -> ``Documents`` or ``Instances``, which can be iterated repeatedly and hold one document
or instance at a time) and a writer; `hornbook.interop.convert.conversion` combines them. Each codec supports the layout
used for pre-training and rejects anything else that its format could contain.
"""

from typing import Final

DOCUMENT_FORMATS: Final = ("store", "megatron", "tfrecord", "pickle", "npy")
INSTANCE_FORMATS: Final = ("bert-tfrecord", "bert-tfrecord-remasked", "bert-arrow")
DOCUMENT_SOURCES: Final = (*DOCUMENT_FORMATS, "nanogpt", "llm.c")
INSTANCE_SOURCES: Final = (*INSTANCE_FORMATS, "bert-tfrecord-packed")
"""Formats that can be read; some of them cannot be written."""
