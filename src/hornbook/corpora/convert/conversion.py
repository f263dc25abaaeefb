"""From anybody's tokenized file to anybody else's.

    convert(Path("wiki.pkl"), Path("stores/wiki"), ConvertOptions(to="store", tokenizer=..., end_of_text="stored"))

    read -> split -> end-of-text -> cut or crop -> write        documents: store, megatron, tfrecord, pickle, npy ...
    read -> pad otherwise                       -> write        instances: bert-tfrecord, ...-remasked, bert-arrow
    source and target, read again, are the same                 with verify

Documents become documents, and instances become instances. The target appears by one rename when all of it is on the
disk, and nothing is overwritten.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from hornbook.corpora.convert import DOCUMENT_FORMATS, DOCUMENT_SOURCES, INSTANCE_FORMATS
from hornbook.corpora.convert.bert_arrow import read_arrow, write_arrow
from hornbook.corpora.convert.bert_instances import Instance, Instances, resized
from hornbook.corpora.convert.bert_packed import read_packed
from hornbook.corpora.convert.bert_tfrecord import PAD_POSITION, read_plain, read_remasked, write_plain, write_remasked
from hornbook.corpora.convert.detect import detect_source, detect_target
from hornbook.corpora.convert.gpt2_tfrecord import read_gpt2_tfrecords, write_gpt2_tfrecords
from hornbook.corpora.convert.npy_tokens import read_npy, write_npy
from hornbook.corpora.convert.pickled_lists import read_pickle, write_pickle
from hornbook.corpora.convert.stores import read_store, split_of, write_megatron, write_store
from hornbook.corpora.convert.token_documents import (
    Documents,
    EndOfText,
    LeftOut,
    TokenDocument,
    crop,
    cut_stream,
    split_at_end_of_text,
    with_end_of_text,
    with_tokenizer,
)
from hornbook.corpora.convert.token_streams import read_llmc, read_nanogpt
from hornbook.corpora.store import SPLITS, splits_of
from hornbook.corpora.verify import verify_hashes
from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import make_directory
from hornbook.storage.new_files import refuse_existing
from hornbook.text.tokenizer import Tokenizer

HAVE_SENTENCES: Final = ("store", "megatron")
HAVE_FILES_OF_RECORDS: Final = ("tfrecord", "bert-tfrecord", "bert-tfrecord-remasked")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How to convert; what is None is taken from the source, or left as it is there.

    Attributes:
        source_format: one of ``DOCUMENT_SOURCES`` or ``INSTANCE_SOURCES``; None: detected.
        target_format: one of ``DOCUMENT_FORMATS`` or ``INSTANCE_FORMATS``; None: detected.
        split: which split of a corpus or data set to read; also what a new store says that it is.
        verify: compare a store that is the source with its manifest first; at the end read source and target again, and
            compare them.
        tokenizer: what made the tokens; a new store needs it.
        end_of_text: ``"stored"``: each document of the target ends with the end-of-text token; ``"inserted"``: none.
        end_of_text_id: its id, where neither source nor tokenizer tells.
        split_at_end_of_text: the source's sequences are one stream; a document ends with each end-of-text token.
        sequence_length: of documents: cut them into sequences of so many tokens. Of instances: pad to so many.
        stride: tokens from one sequence's beginning to the next one's; None: no overlap.
        crop: keep the first ``sequence_length`` tokens of each document that has as many, instead of cutting all.
        max_predictions: predictions that instances are padded to.
        pad_position: the position of empty slots in remasked records.
        records_per_file: write TFRecords to a folder of files of so many records each.
    """

    source_format: str | None = None
    target_format: str | None = None
    split: str | None = None
    verify: bool = False
    tokenizer: Tokenizer | None = None
    end_of_text: Literal["stored", "inserted"] | None = None
    end_of_text_id: int | None = None
    split_at_end_of_text: bool = False
    sequence_length: int | None = None
    stride: int | None = None
    crop: bool = False
    max_predictions: int | None = None
    pad_position: int | None = None
    records_per_file: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        source, source_format, target, target_format: from where to where.
        kind: ``"documents"`` or ``"instances"``.
        items, tokens: how many of the kind were written, and the tokens in them.
        joined_sentences: the source's documents have sentences, which the target's do not.
        left_out_documents, left_out_tokens: what a cut did not keep.
        verified: source and target were read again and are the same.
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


@dataclass(kw_only=True)
class _Count:
    """Items and tokens of the iteration that began last."""

    items: int = 0
    tokens: int = 0


OnProgress = Callable[[int, int], None]


def convert(
    source: Path, target: Path, options: ConvertOptions, on_progress: OnProgress = lambda items, tokens: None
) -> ConvertReport:
    """Convert a tokenized file, folder or store to a new one.

    ``on_progress`` is called now and then with the items and tokens so far.

    Raises:
        UserError: an option does not apply, something is missing that only the user knows, or the target is there.
        DataError: the source is damaged, or not what its manifest says, or holds nothing.
        StorageError: the disk is full, read-only or failing, or the target is not the same when read again.
    """
    source_format = options.source_format or detect_source(source)
    target_format = options.target_format or detect_target(target, source_format)
    is_documents = source_format in DOCUMENT_SOURCES
    if is_documents is not (target_format in DOCUMENT_FORMATS):
        holds = "documents" if is_documents else "BERT's masked instances"
        fitting = ", ".join(DOCUMENT_FORMATS if is_documents else INSTANCE_FORMATS)
        raise UserError(
            f"{source_format} holds {holds}, of which no {target_format} can be made; choose one of {fitting}"
        )
    _refuse_useless(source, source_format, target_format, options)
    if target_format != "megatron":  # whose writer knows its two files, and a half that was left
        refuse_existing(target)
    make_directory(target.absolute().parent)
    left_out, count = LeftOut(), _Count()
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
        left_out_documents=left_out.documents,
        left_out_tokens=left_out.tokens,
        verified=options.verify,
    )


def read_documents(path: Path, format_name: str, split: str | None = None) -> Documents:
    """Return the documents at ``path``, in one of ``DOCUMENT_SOURCES``; ``split`` is for stores.

    Raises UserError if a corpus has several splits and none was chosen, DataError if the source is missing or damaged.
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
    """Return the instances at ``path``, in one of ``INSTANCE_SOURCES``; ``split`` is for Arrow data sets.

    Raises UserError if one of several splits has to be chosen or an extra is not installed, DataError as above.
    """
    readers: dict[str, Callable[[Path], Instances]] = {
        "bert-tfrecord": read_plain,
        "bert-tfrecord-remasked": read_remasked,
        "bert-tfrecord-packed": read_packed,
        "bert-arrow": partial(read_arrow, split=split),
    }
    return readers[format_name](path)


def _refuse_useless(source: Path, source_format: str, target_format: str, options: ConvertOptions) -> None:
    """Raise UserError if an option was given that would have no effect."""
    of_documents, is_remasked = source_format in DOCUMENT_SOURCES, target_format == "bert-tfrecord-remasked"
    has_splits = source_format == "bert-arrow" or (source_format == "store" and bool(splits_of(source)))
    places_ends = target_format == "store" or options.end_of_text is not None or options.split_at_end_of_text
    useful = {
        "split": has_splits or target_format == "store",
        "tokenizer": of_documents,
        "end_of_text": of_documents,
        "end_of_text_id": of_documents and places_ends,
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
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} has no effect from {source_format} to {target_format} as asked; leave it out")
    if target_format == "store" and options.split not in (None, *SPLITS):
        raise UserError(f"a store is of the split {' or '.join(SPLITS)}, not {options.split!r:.40}; change --split")


def _prepare(documents: Documents, target_format: str, options: ConvertOptions, left_out: LeftOut) -> Documents:
    """The documents as the target is to have them."""
    if options.tokenizer:
        _refuse_other_end(documents, options.tokenizer, options)
        documents = with_tokenizer(documents, options.tokenizer)
    if options.end_of_text_id is not None:
        if documents.end_of_text_id not in (None, options.end_of_text_id):
            raise UserError(
                f"the end-of-text token is {documents.end_of_text_id} by the source or tokenizer, not "
                f"{options.end_of_text_id}; leave out --end-of-text-id"
            )
        largest = (documents.vocab_size or 1 << 31) - 1
        if options.end_of_text_id > largest:
            raise UserError(f"--end-of-text-id {options.end_of_text_id} is no token: expected 0 to {largest:,}")
        documents = replace(documents, end_of_text_id=options.end_of_text_id)
    end_of_text = _end_of_text(documents, options) if target_format == "store" else options.end_of_text
    if target_format == "store" and end_of_text is None:
        raise UserError("a store says where end-of-text tokens are; give --end-of-text stored or inserted")
    is_placed = end_of_text not in (None, "absent")
    needed = "--end-of-text" if is_placed else "--split-at-end-of-text" if options.split_at_end_of_text else None
    if needed and documents.end_of_text_id is None:
        given = "--end-of-text-id" if documents.tokenizer else "--tokenizer or --end-of-text-id"
        raise UserError(f"{needed} needs to know the end-of-text token; give {given}")
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
    """Return how a store of the documents is to have end-of-text tokens; None where nobody says."""
    if documents.tokenizer is None or documents.tokenizer.end_of_text_id is not None:
        is_said = documents.end_of_text != "absent" or not options.split_at_end_of_text
        return options.end_of_text or (documents.end_of_text if is_said else None)
    useless = options.end_of_text_id is not None and not options.split_at_end_of_text
    for name, is_given in (("--end-of-text", options.end_of_text), ("--end-of-text-id", useless)):
        if is_given:
            raise UserError(f"the tokenizer has no end-of-text token, and so no store of its tokens; leave out {name}")
    return "absent"


def _refuse_other_end(documents: Documents, tokenizer: Tokenizer, options: ConvertOptions) -> None:
    """Raise UserError if a stranger's documents end with a token that this tokenizer has for something else."""
    found, own = documents.end_of_text_id, tokenizer.end_of_text_id
    is_known = documents.tokenizer is not None or own is None  # a tokenizer without one makes no such token
    if not is_known and found not in (None, own) and options.end_of_text is None:
        raise UserError(
            f"each document of {documents.files[0]} ends with token {found}, but the tokenizer has token {own} for "
            "that; name the one that made the tokens, or say what to do with --end-of-text"
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


def _counted(content: Any, source: Path, count: _Count, on_progress: OnProgress) -> Any:
    """The same documents or instances, counted while they are iterated; that there is none is an error."""

    def read() -> Iterator[TokenDocument | Instance]:
        count.items = count.tokens = 0
        for item in content:
            yield item
            count.items += 1
            count.tokens += len(item.tokens)
            if not count.items & 0x3FF:
                on_progress(count.items, count.tokens)
        if not count.items:
            raise DataError(f"{source}: nothing of it is left to write; it is empty, or shorter than one sequence")

    return replace(content, read=read)


def _compare(content: Documents | Instances, written: Documents | Instances, target: Path) -> None:
    """Raise StorageError unless the target, read again, holds what was to be written."""
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
                f"{target} is not what was written: {what} {number} differs from the source; check the disk, remove "
                "it and convert again"
            )
