"""Conversion of a tokenized file, folder or store to another format.

    convert(Path("wiki.pkl"), Path("stores/wiki"), ConvertOptions(to="store", tokenizer=..., end_of_text="stored"))

    read -> split -> end-of-text -> cut or crop -> write        documents: store, megatron, tfrecord, pickle, npy ...
    read -> change padding                      -> write        instances: bert-tfrecord, ...-remasked, bert-arrow
    read source and target again and compare                    with verify

Documents convert to documents, instances to instances. The target appears by one rename when it is completely on disk,
and nothing is overwritten.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from hornbook.config.options import option
from hornbook.corpora.folders import SPLITS, splits_of
from hornbook.corpora.inspection import verify_hashes
from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.convert import DOCUMENT_FORMATS, DOCUMENT_SOURCES, INSTANCE_FORMATS
from hornbook.interop.convert.bert_arrow import read_arrow, write_arrow
from hornbook.interop.convert.bert_instances import Instance, Instances, resized
from hornbook.interop.convert.bert_packed import read_packed
from hornbook.interop.convert.bert_tfrecord import PAD_POSITION, read_plain, read_remasked, write_plain, write_remasked
from hornbook.interop.convert.detect import detect_source, detect_target
from hornbook.interop.convert.pickled_lists import read_pickle, write_pickle
from hornbook.interop.convert.stores import read_store, split_of, write_megatron, write_store
from hornbook.interop.convert.token_documents import (
    Counts,
    Documents,
    EndOfText,
    TokenDocument,
    crop,
    cut_stream,
    split_at_end_of_text,
    with_end_of_text,
    with_tokenizer,
)
from hornbook.interop.convert.token_files import (
    read_gpt2_tfrecords,
    read_llmc,
    read_nanogpt,
    read_npy,
    write_gpt2_tfrecords,
    write_npy,
)
from hornbook.storage import make_directory
from hornbook.storage.new_files import refuse_existing
from hornbook.text.tokenizer import Tokenizer

HAVE_SENTENCES: Final = ("store", "megatron")
HAVE_FILES_OF_RECORDS: Final = ("tfrecord", "bert-tfrecord", "bert-tfrecord-remasked")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The options of a conversion that the command line has, too; None means as in the source."""

    source_format: str | None = option(None, help="format of the source (default: by its content)")
    """One of ``DOCUMENT_SOURCES`` or ``INSTANCE_SOURCES``."""
    target_format: str | None = option(None, help="format of the target (default: by its name)")
    """One of ``DOCUMENT_FORMATS`` or ``INSTANCE_FORMATS``."""
    verify: bool = option(
        False,
        help="verify the hashes of a store before converting, and compare source and target afterwards",
    )
    split: str | None = option(None, help="split of the source, or of the new store")
    sequence_length: int | None = option(
        None,
        help="documents: concatenate and split into sequences of N tokens; instances: pad to N tokens",
        minimum=1,
    )
    records_per_file: int | None = option(None, help="write a folder of TFRecord files with N records each", minimum=1)
    end_of_text: Literal["stored", "inserted"] | None = option(
        None,
        help="whether documents of the target end with the end-of-text token (stored) or not (inserted) "
        "(default: as in the source)",
    )
    end_of_text_id: int | None = option(
        None, help="id of the end-of-text token (default: that of the tokenizer or store)", minimum=0
    )
    split_at_end_of_text: bool = option(
        False, help="read the source as one stream of tokens and end a document at each end-of-text token"
    )
    stride: int | None = option(
        None, help="tokens between the starts of two sequences (default: the sequence length)", minimum=1
    )
    crop: bool = option(False, help="cut each document to the sequence length, and leave out shorter ones")
    max_predictions: int | None = option(None, help="predictions to pad to (default: as in the source)", minimum=1)
    pad_position: int | None = option(
        None, help="position id of unused slots, for bert-tfrecord-remasked (default: 384)", minimum=0
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Declared):
    """The options of a conversion."""

    tokenizer: Tokenizer | None = None
    """That of the tokens; required for a new store."""


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        source, source_format, target, target_format: the paths and formats.
        kind: ``"documents"`` or ``"instances"``.
        items, tokens: number of documents or instances written, and of tokens in them.
        joined_sentences: whether the sentences of the source's documents were joined.
        left_out_documents, left_out_tokens: number of documents and tokens dropped by cutting or cropping.
        verified: whether source and target were read again and compared.
    """

    source: Path
    source_format: str
    target: Path
    target_format: str
    kind: str
    items: int
    tokens: int
    joined_sentences: bool
    left_out_documents: int
    left_out_tokens: int
    verified: bool


OnProgress = Callable[[int, int], None]


def convert(
    source: Path, target: Path, options: ConvertOptions, on_progress: OnProgress = lambda items, tokens: None
) -> ConvertReport:
    """Convert a tokenized file, folder or store to a new one.

    ``on_progress`` is called periodically with the number of items and tokens so far.

    Raises:
        UserError: an option does not apply or a required one is missing, or the target exists.
        DataError: the source is damaged, does not match its manifest, or is empty.
        StorageError: the disk is full, read-only or failing, or the target differs when read again.
    """
    source_format = options.source_format or detect_source(source)
    target_format = options.target_format or detect_target(target, source_format)
    is_documents = source_format in DOCUMENT_SOURCES
    if is_documents is not (target_format in DOCUMENT_FORMATS):
        content_kind = "documents" if is_documents else "BERT's masked instances"
        fitting = ", ".join(DOCUMENT_FORMATS if is_documents else INSTANCE_FORMATS)
        raise UserError(
            f"{source_format} has {content_kind}, which cannot be converted to {target_format}; choose one of {fitting}"
        )
    _refuse_useless(source, source_format, target_format, options)
    if target_format != "megatron":  # its writer checks for its two files, and can finish an interrupted conversion
        refuse_existing(target)
    make_directory(target.absolute().parent)
    left_out, count = Counts(), Counts()
    read: Callable[[Path, str, str | None], Any]
    content: Any
    joins_sentences = False
    if is_documents:
        kind, read = "documents", read_documents
        if options.verify and source_format in ("store", "megatron"):
            verify_hashes(source, split_of(source, options.split))
        documents = read_documents(source, source_format, options.split)
        content = _prepare(documents, target_format, options, left_out)
        has_sentences = target_format in HAVE_SENTENCES and content.sequences == "sentences"
        joins_sentences = documents.sequences == "sentences" and not has_sentences
    else:
        kind, read = "instances", read_instances
        instances = read_instances(source, source_format, options.split)
        content = resized(instances, options.sequence_length, options.max_predictions)
    _write(target, target_format, _counted(content, source, count, on_progress), options)
    if options.verify:
        _compare(content, read(target, target_format, None), target)
    return ConvertReport(
        source=source,
        source_format=source_format,
        target=target,
        target_format=target_format,
        kind=kind,
        items=count.items,
        tokens=count.tokens,
        joined_sentences=joins_sentences,
        left_out_documents=left_out.items,
        left_out_tokens=left_out.tokens,
        verified=options.verify,
    )


def read_documents(path: Path, format_name: str, split: str | None = None) -> Documents:
    """Return the documents at ``path`` in a format of ``DOCUMENT_SOURCES``; ``split`` applies to stores.

    Raises UserError if a corpus has several splits and none is chosen, DataError if the source is missing or damaged.
    """
    readers: dict[str, Callable[[Path], Documents]] = {
        "store": partial(read_store, split=split),
        "megatron": partial(read_store, split=split),
        "tfrecord": read_gpt2_tfrecords,
        "pickle": read_pickle,
        "npy": read_npy,
        "nanogpt": read_nanogpt,
        "llm.c": read_llmc,
    }
    return readers[format_name](path)


def read_instances(path: Path, format_name: str, split: str | None = None) -> Instances:
    """Return the instances at ``path`` in a format of ``INSTANCE_SOURCES``; ``split`` applies to Arrow data sets.

    Raises UserError if there are several splits and none is chosen or an extra is not installed, DataError if the
    source is missing or damaged.
    """
    readers: dict[str, Callable[[Path], Instances]] = {
        "bert-tfrecord": read_plain,
        "bert-tfrecord-remasked": read_remasked,
        "bert-tfrecord-packed": read_packed,
        "bert-arrow": partial(read_arrow, split=split),
    }
    return readers[format_name](path)


def _refuse_useless(source: Path, source_format: str, target_format: str, options: ConvertOptions) -> None:
    """Raise UserError for an option that has no effect."""
    of_documents, is_remasked = source_format in DOCUMENT_SOURCES, target_format == "bert-tfrecord-remasked"
    has_splits = source_format == "bert-arrow" or (source_format == "store" and bool(splits_of(source)))
    uses_ends = target_format == "store" or options.end_of_text is not None or options.split_at_end_of_text
    useful = {
        "split": has_splits or target_format == "store",
        "tokenizer": of_documents,
        "end_of_text": of_documents,
        "end_of_text_id": of_documents and uses_ends,
        "split_at_end_of_text": of_documents,
        "stride": of_documents and options.sequence_length is not None and not options.crop,
        "crop": of_documents and options.sequence_length is not None,
        "sequence_length": target_format != "store",
        "max_predictions": target_format in ("bert-tfrecord", "bert-tfrecord-remasked"),
        "pad_position": is_remasked,
        "records_per_file": target_format in HAVE_FILES_OF_RECORDS,
    }
    for name, is_useful in useful.items():
        value = getattr(options, name)
        if value is not None and value is not False and not is_useful:
            raise UserError(
                f"`{name}` has no effect in this conversion from {source_format} to {target_format}; remove it"
            )
    if target_format == "store" and options.split not in (None, *SPLITS):
        raise UserError(f"`split` is {options.split!r:.40}; for a store, expected {' or '.join(SPLITS)}")


def _prepare(documents: Documents, target_format: str, options: ConvertOptions, left_out: Counts) -> Documents:
    """Apply the options to the documents. Raises UserError if they conflict, or a required one is missing."""
    if options.tokenizer:
        _refuse_other_end(documents, options.tokenizer, options)
        documents = with_tokenizer(documents, options.tokenizer)
    if options.end_of_text_id is not None:
        if documents.end_of_text_id not in (None, options.end_of_text_id):
            raise UserError(
                f"`end_of_text_id` is {options.end_of_text_id}, but the source or tokenizer has the end-of-text token "
                f"{documents.end_of_text_id}; remove `end_of_text_id`"
            )
        largest = (documents.vocab_size or 1 << 31) - 1
        if options.end_of_text_id > largest:
            raise UserError(f"`end_of_text_id={options.end_of_text_id}` is not a token id; expected 0 to {largest:,}")
        documents = replace(documents, end_of_text_id=options.end_of_text_id)
    end_of_text = _end_of_text(documents, options) if target_format == "store" else options.end_of_text
    if target_format == "store" and end_of_text is None:
        raise UserError(
            "a store records whether end-of-text tokens are stored, but the source does not; add "
            "`end_of_text='stored'` or `end_of_text='inserted'`"
        )
    changes_ends = end_of_text not in (None, "absent")
    needed = "`end_of_text`" if changes_ends else "`split_at_end_of_text`" if options.split_at_end_of_text else None
    if needed and documents.end_of_text_id is None:
        missing = "`end_of_text_id`" if documents.tokenizer else "`tokenizer` or `end_of_text_id`"
        raise UserError(f"{needed} requires the id of the end-of-text token; add {missing}")
    if options.split_at_end_of_text:
        documents = split_at_end_of_text(documents)
    if end_of_text:
        documents = with_end_of_text(documents, end_of_text)
    if options.sequence_length is None:
        return documents
    if options.crop:
        return crop(documents, options.sequence_length, left_out)
    return cut_stream(documents, options.sequence_length, options.stride or options.sequence_length, left_out)


def _end_of_text(documents: Documents, options: ConvertOptions) -> EndOfText | None:
    """Return ``end_of_text`` of a store of the documents; None if neither source nor options define it."""
    if documents.tokenizer is None or documents.tokenizer.end_of_text_id is not None:
        is_known = documents.end_of_text != "absent" or not options.split_at_end_of_text
        return options.end_of_text or (documents.end_of_text if is_known else None)
    useless = options.end_of_text_id is not None and not options.split_at_end_of_text
    for name, is_given in (("`end_of_text`", options.end_of_text), ("`end_of_text_id`", useless)):
        if is_given:
            raise UserError(f"the tokenizer has no end-of-text token, so the store has none; remove {name}")
    return "absent"


def _refuse_other_end(documents: Documents, tokenizer: Tokenizer, options: ConvertOptions) -> None:
    """Raise UserError if the documents, of an unknown tokenizer, end with another token than this tokenizer's."""
    found, own = documents.end_of_text_id, tokenizer.end_of_text_id
    is_known = documents.tokenizer is not None or own is None  # a tokenizer without one makes no such token
    if not is_known and found not in (None, own) and options.end_of_text is None:
        raise UserError(
            f"each document of {documents.files[0]} ends with token {found}, but the tokenizer's end-of-text token is "
            f"{own}; use the tokenizer that made the tokens, or add `end_of_text`"
        )


def _write(target: Path, target_format: str, content: Any, options: ConvertOptions) -> None:
    pad_position = PAD_POSITION if options.pad_position is None else options.pad_position
    split = options.split or getattr(content, "split", None) or "train"
    writers: dict[str, Callable[[Path, Any], None]] = {
        "store": partial(write_store, split=split),
        "megatron": write_megatron,
        "tfrecord": partial(write_gpt2_tfrecords, records_per_file=options.records_per_file),
        "pickle": write_pickle,
        "npy": write_npy,
        "bert-tfrecord": partial(write_plain, records_per_file=options.records_per_file),
        "bert-tfrecord-remasked": partial(
            write_remasked, records_per_file=options.records_per_file, pad_position=pad_position
        ),
        "bert-arrow": write_arrow,
    }
    writers[target_format](target, content)


def _counted(content: Any, source: Path, count: Counts, on_progress: OnProgress) -> Any:
    """Return the documents or instances, counted during iteration, which raises DataError if there are none."""

    def read() -> Iterator[TokenDocument | Instance]:
        count.items = count.tokens = 0
        for item in content:
            yield item
            count.items += 1
            count.tokens += len(item.tokens)
            if not count.items & 0x3FF:
                on_progress(count.items, count.tokens)
        if not count.items:
            raise DataError(f"{source}: nothing to write; the source is empty, or shorter than one sequence")

    return replace(content, read=read)


def _compare(content: Documents | Instances, written: Documents | Instances, target: Path) -> None:
    """Raise StorageError unless the target, read again, has the content that was to be written."""
    what = "document" if isinstance(content, Documents) else "instance"
    pairs: Iterator[tuple[Any, Any]] = zip_longest(content, written)
    for number, (old, new) in enumerate(pairs):
        if isinstance(old, Instance) and isinstance(new, Instance):
            same = old.equals(new)
        else:
            same = isinstance(old, TokenDocument) and isinstance(new, TokenDocument)
            same = same and np.array_equal(old.tokens, new.tokens)
            same = same and (old.sizes is None or new.sizes is None or np.array_equal(old.sizes, new.sizes))
        if not same:
            raise StorageError(
                f"{target} differs from what was written in {what} {number}; check the disk, remove the target and "
                "convert again"
            )
