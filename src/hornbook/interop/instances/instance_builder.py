"""Build static instances: masked sentence pairs of a sentence store, written once, for any BERT.

    build_instances(store, Path("pretrain.tfrecord"), InstanceOptions(sequence_length=128, duplicates=6))

    pass 0    every chunk of every document once, in a random order         pair -> mask -> record
    pass 1    other chunks, other pairs, other masks, another order
    ...

The pairs are those that training on the store draws in its epochs (`hornbook.samples.sequences`), the masks those of
Google's script (`hornbook.samples.masking`), so an instance is a function of (seed, pass, index) and the same seed
gives the same file. Memory holds 8 bytes per chunk of one pass and a batch of instances; the text is not copied. The
price: passes follow one another in the file, so a reader that does not shuffle sees the copies of a pair far apart, but
one pass after another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hornbook.config.options import option
from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.interop.convert import INSTANCE_FORMATS
from hornbook.interop.convert.bert_arrow import write_arrow
from hornbook.interop.convert.bert_instances import Instance, Instances
from hornbook.interop.convert.bert_tfrecord import write_plain, write_remasked
from hornbook.samples.masking import MaskRules, static_mask, word_beginnings
from hornbook.samples.pairs import PairRules
from hornbook.samples.sequences import PairSequences, TokenSequence
from hornbook.storage import make_directory
from hornbook.storage.new_files import refuse_existing
from hornbook.text.tokenizer import Tokenizer

_BATCH: Final = 256

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class InstanceOptions:
    """The options of ``build_instances``; the defaults are those of system E."""

    sequence_length: int = option(128, help="tokens of an instance, [CLS] and [SEP] included", minimum=1)
    max_predictions: int = option(20, help="maximum number of masked tokens per instance", minimum=1)
    duplicates: int = option(6, help="passes through the text, each with its own pairs and masks", minimum=1)
    mask_probability: float = option(0.15, help="share of masked tokens", above=0, maximum=1)
    short_sequence_probability: float = option(
        0.1, help="share of pairs shortened to a random length", minimum=0, maximum=1
    )
    seed: int = option(1984, help="random seed", minimum=0)
    whole_words: bool = option(False, help="mask all pieces of a word together")
    records_per_file: int | None = option(None, help="write a folder of TFRecord files with N records each", minimum=1)
    format_name: str = INSTANCE_FORMATS[0]
    """One of ``INSTANCE_FORMATS``."""


@dataclass(kw_only=True)
class InstanceReport:
    """Counts of instances, random pairs, tokens, masked tokens, and full instances.

    Full instances have ``sequence_length`` tokens.
    """

    instances: int = 0
    random_pairs: int = 0
    tokens: int = 0
    masked: int = 0
    full: int = 0


def build_instances(
    store: TokenStore,
    output: Path,
    options: InstanceOptions,
    tokenizer: Tokenizer | None = None,
    on_progress: OnProgress = lambda instances, tokens: None,
) -> InstanceReport:
    """Write the instances of a sentence store to a new file or folder, which appears when it is complete.

    Args:
        store: a store of sentences.
        output: the file, or the folder if there are ``records_per_file`` or the format is Arrow.
        options: the instances to build.
        tokenizer: the one that made the store, if the store does not record it.
        on_progress: called after each batch with the instances and tokens so far.

    Raises:
        UserError: an option is out of range, the store has no sentences, its tokenizer has no [MASK] or is unknown,
            or the output already exists.
        DataError: the store is damaged.
        StorageError: the disk is full, read-only or failing; nothing is left behind.
    """
    _check(options)
    refuse_existing(output)
    known = _tokenizer(store, tokenizer)
    if options.format_name == "bert-tfrecord-remasked" and known.require_masking().pad:
        raise UserError(
            "remasked records use token 0 for padding, but this tokenizer does not; choose `format='bert-tfrecord'`"
        )
    report = InstanceReport()

    def read() -> Iterator[Instance]:
        return _instances(store, known, options, report, on_progress)

    instances = Instances(
        files=(str(store.path),),
        read=read,
        sequence_length=options.sequence_length,
        max_predictions=options.max_predictions,
    )
    make_directory(output.absolute().parent)
    if options.format_name == "bert-arrow":
        write_arrow(output, instances)
    else:
        write = write_remasked if options.format_name == "bert-tfrecord-remasked" else write_plain
        write(output, instances, options.records_per_file)
    return report


def describe_instances(instances: Instances) -> InstanceReport:
    """Return the counts of a file's instances, reading it once.

    Raises:
        DataError: an instance is damaged.
        StorageError: a file cannot be read.
    """
    report = InstanceReport()
    for instance in instances:
        _count(report, instance, instances.sequence_length)
    return report


def _instances(
    store: TokenStore, tokenizer: Tokenizer, options: InstanceOptions, report: InstanceReport, on_progress: OnProgress
) -> Iterator[Instance]:
    special = tokenizer.require_masking()
    pairs = PairRules(
        sequence_length=options.sequence_length,
        short_sequence_probability=options.short_sequence_probability,
        seed=options.seed,
    )
    masks = MaskRules(
        special=special,
        probability=options.mask_probability,
        begins_word=word_beginnings(tokenizer) if options.whole_words else None,
        seed=options.seed,
    )
    source = PairSequences(store, special, pairs)
    for number in range(options.duplicates):
        num_chunks = len(source.first_sentences(number))
        for start in range(0, num_chunks, _BATCH):
            indices = np.arange(start, min(start + _BATCH, num_chunks), dtype=np.int64)
            for instance in _masked(source.of_epoch(number, indices), report.instances, masks, options):
                _count(report, instance, options.sequence_length)
                yield instance
            on_progress(report.instances, report.tokens)


def _masked(
    sequences: list[TokenSequence], first_number: int, rules: MaskRules, options: InstanceOptions
) -> Iterator[Instance]:
    """Yield masked instances of pairs, the first of which is instance number ``first_number``."""
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    masked = static_mask(
        np.concatenate([sequence.tokens for sequence in sequences]),
        lengths,
        first_number + np.arange(len(sequences)),
        rules,
        most=options.max_predictions,
        room=options.sequence_length if options.format_name == "bert-tfrecord-remasked" else None,
    )
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(masked.indices, np.concatenate((ends - lengths, ends[-1:])))
    for number, sequence in enumerate(sequences):
        chosen = slice(cuts[number], cuts[number + 1])
        start, end = ends[number] - lengths[number], ends[number]
        tokens, positions = masked.tokens[start:end], masked.indices[chosen] - start
        yield Instance(tokens, sequence.segments, positions, masked.labels[chosen], sequence.pair_label)


def _count(report: InstanceReport, instance: Instance, sequence_length: int) -> None:
    report.instances += 1
    report.random_pairs += instance.next_sentence_label
    report.tokens += len(instance.tokens)
    report.masked += len(instance.positions)
    report.full += len(instance.tokens) == sequence_length


def _tokenizer(store: TokenStore, given: Tokenizer | None) -> Tokenizer:
    own = store.tokenizer()
    if own and given and own.digest != given.digest:
        raise UserError(f"{store.path} was made with another tokenizer; leave out `tokenizer`")
    if not (found := own or given):
        raise UserError(f"{store.path} does not record its tokenizer; name it with `tokenizer`")
    if not own and (largest := int(store.indexed.tokens.max())) >= found.vocab_size:
        raise UserError(
            f"{store.path} has token {largest}, but the tokenizer {found.vocab_size} tokens; name the right one"
        )
    return found


def _check(options: InstanceOptions) -> None:
    """Raise UserError if an option is out of range or has no effect."""
    room = options.sequence_length - 3
    if options.format_name not in INSTANCE_FORMATS:
        raise UserError(
            f"{options.format_name} is not a format of instances; choose one of {', '.join(INSTANCE_FORMATS)}"
        )
    if room < 2:
        raise UserError(f"a pair needs a sequence of at least 5 tokens; got {options.sequence_length}")
    if not 1 <= options.max_predictions <= room:
        raise UserError(
            f"{options.max_predictions} predictions do not fit a sequence of {options.sequence_length} tokens with "
            f"three special ones; expected 1 to {room}"
        )
    if options.duplicates < 1:
        raise UserError(f"expected at least one pass through the documents; got {options.duplicates} duplicates")
    if not 0 < options.mask_probability <= 1 or not 0 <= options.short_sequence_probability <= 1:
        raise UserError(
            "the probabilities of masks and of short sequences must be between 0 and 1, such as 0.15 and 0.1"
        )
    if options.records_per_file is not None and options.format_name == "bert-arrow":
        raise UserError("an Arrow data set is not split into files; leave out `records_per_file`")
