"""Score encoders on held-out text: with masks as in training, or with each token masked in turn.

    masked_lm             15 % of the tokens masked at once, by a fixed seed   loss, accuracy, and those of the pairs
    pseudo_perplexity     each token masked by itself                          exp of the mean loss

A pseudo-perplexity (Salazar et al., "Masked language model scoring", 2020) does not depend on random masks. The price:
a text takes one forward pass per token, so only a part of the store is scored. It cannot be compared with a decoder's
perplexity, since tokens are predicted from both sides.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from hornbook.config import MaskedLMConfig, MaskingConfig
from hornbook.corpora.store import TokenStore
from hornbook.engine.validation import perplexity, validate
from hornbook.errors import DataError, UserError
from hornbook.evaluate.task_files import held_out_stores
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.objective import MaskedLM, build_objective
from hornbook.samples.batches import spread_evenly
from hornbook.samples.encoder_sources import HELD_OUT_SEED, instance_batches, sequence_source, store_batches
from hornbook.samples.given import MaskedCopies
from hornbook.samples.instances import holds_instances, open_instances
from hornbook.samples.layout import EncoderBatches, Layout, choose_layout
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.text.documents import read_documents
from hornbook.text.special_tokens import MaskingTokens
from hornbook.wording import counted

_COPIED_SEQUENCES: Final = 64
_READ_SEQUENCES: Final = 1024
_SOURCES: Final = {
    "joined": "concatenated documents, cut to {} tokens",
    "documents": "documents, each cut to {} tokens",
    "lines": "sentences of up to {} tokens",
}
_PAIRS: Final = "next-sentence pairs of up to {} tokens"


def read_masked(given: TaskInput) -> tuple[MaskingConfig, EncoderBatches]:
    """Return the objective, and the sequences of held-out stores or instances, masked by a fixed seed.

    Raises:
        UserError, DataError: no store is named or known, it does not fit, or the model has another objective.
        CheckpointError: there is no tokenizer; masked instances need none.
    """
    objective = _learned(given)
    named = given.data or given.loaded.recipe.data.validation
    if named and holds_instances(named):
        batches = _of_instances(given, objective, named)
    else:
        stores = held_out_stores(given)
        objective = _fitting(objective, stores)
        tokenizer, length = given.require_tokenizer(), given.window_length
        batches = store_batches(objective, stores, tokenizer, sequence_length=length, seed=HELD_OUT_SEED)
    return objective, replace(batches, layout=_layout(given, batches.mean_length()))


def masked_lm(given: TaskInput) -> list[Row]:
    """Score masked tokens of a held-out store and, if the model was trained on pairs, its pairs.

    Raises:
        UserError, DataError, CheckpointError: see `read_masked`.
    """
    objective, batches = read_masked(given)
    result = validate(
        given.loaded.model,
        batches,
        build_objective(objective),
        forward=given.forward,
        ranks=given.ranks,
        micro_batch_size=given.micro_batch_size,
        max_windows=given.max_sequences,
    )
    num_sequences = len(spread_evenly(batches.num_items, given.max_sequences))
    asked = f"{result.tokens:,} tokens of {counted(num_sequences, 'sequence')}, {_how_masked(objective, batches)}"
    loss, terms = result.terms["mlm"], result.terms
    rows = [
        Row(metric="loss", value=loss, convention=f"nats: mean over {asked}"),
        Row(metric="accuracy", value=terms["mlm_accuracy"], convention="share of them that are the most likely token"),
        Row(metric="perplexity", value=perplexity(loss), convention="exp(loss): of the chosen tokens, not of a text"),
    ]
    if "nsp" in terms:
        share = 100 * _share_of_others(batches, given)
        pairs = f"{counted(num_sequences, 'pair')}, {share:.0f} % with another document's text"
        rows += [
            Row(metric="next_sentence_loss", value=terms["nsp"], convention=f"nats: mean over {pairs}"),
            Row(
                metric="next_sentence_accuracy",
                value=terms["nsp_accuracy"],
                convention="share of them classified correctly",
            ),
        ]
    return rows


def read_copies(given: TaskInput) -> tuple[MaskedCopies, str]:
    """Return masked copies of the sequences of held-out stores or a text file, and a description.

    Raises:
        UserError, DataError: no store is named or known, or it has no text.
        CheckpointError: there is no tokenizer.
    """
    _learned(given)  # raises for a fine-tuned model, whose head does not predict tokens
    special, length = given.require_tokenizer().require_masking(), given.window_length
    most = given.max_sequences or _COPIED_SEQUENCES
    is_store = Path(given.data or "").suffix in (".bin", ".idx")
    if given.data and Path(given.data).is_file() and not is_store:
        found = list(_sequences_of_text(given, special))
        count, sequences = len(found), [found[number] for number in spread_evenly(len(found), most).tolist()]
    else:
        stores, kind = held_out_stores(given), MaskedLMConfig(sequences="documents")
        source = sequence_source(kind, stores, special, sequence_length=length, seed=HELD_OUT_SEED)
        count, sequences = source.num_sequences, source.sequences(spread_evenly(source.num_sequences, most))
    if not sequences:
        raise DataError(f"{given.data}: the file has no text; expected the text to score")
    mean = sum(len(sequence.tokens) for sequence in sequences) / len(sequences)
    copies = MaskedCopies(sequences, special, _layout(given, mean))
    return copies, f"{len(sequences):,} of {counted(count, 'sequence')}; {_SOURCES['documents'].format(length)}"


def pseudo_perplexity(given: TaskInput) -> list[Row]:
    """Score every token of some held-out sequences, each masked by itself.

    Raises:
        UserError, DataError, CheckpointError: see `read_copies`.
    """
    copies, what = read_copies(given)
    result = validate(
        given.loaded.model,
        copies,
        MaskedLM(),
        forward=given.forward,
        ranks=given.ranks,
        micro_batch_size=given.micro_batch_size,
    )
    scored = f"{result.tokens:,} tokens, each masked by itself (Salazar et al. 2020): {what}"
    means = "exp(nats_per_token): depends on the tokenizer, not comparable with a decoder's perplexity"
    return [
        Row(metric="pseudo_perplexity", value=perplexity(result.loss), convention=means),
        Row(metric="nats_per_token", value=result.loss, convention=f"mean over {scored}"),
    ]


def _learned(given: TaskInput) -> MaskingConfig:
    """Return the model's masked-language-modeling objective.

    Raises:
        UserError: the model was trained with another objective.
    """
    learned = given.loaded.recipe.objective
    if not isinstance(learned, MaskingConfig):
        raise UserError(
            f'{given.loaded.path} was last trained with "{learned.name}"; expected a model of masked tokens, with '
            'the objective "mlm" or "mlm_nsp"'
        )
    return learned


def _fitting(learned: MaskingConfig, stores: list[TokenStore]) -> MaskingConfig:
    """Return the model's objective, without pairs if a store has no sentences."""
    if isinstance(learned, MaskedLMConfig) or all(store.sequences == "sentences" for store in stores):
        return learned
    shared = {spec.name for spec in fields(MaskingConfig)}
    return MaskedLMConfig(**{name: getattr(learned, name) for name in shared - {"name"}})


def _of_instances(given: TaskInput, objective: MaskingConfig, path: str) -> EncoderBatches:
    instances = open_instances(path, seed=HELD_OUT_SEED)
    if instances.sequence_length != given.window_length:
        raise UserError(
            f"{path} has instances of {instances.sequence_length} tokens, but the window is {given.window_length}: "
            f"pass `window={instances.sequence_length}`, or other instances"
        )
    if instances.is_masked:
        objective = replace(objective, max_predictions=None)  # the file has its own masks
        return instance_batches(objective, instances, None, seed=HELD_OUT_SEED)
    return instance_batches(objective, instances, given.require_tokenizer(), seed=HELD_OUT_SEED)


def _layout(given: TaskInput, mean_length: float) -> Layout:
    asked, on_cpu = given.loaded.recipe.data.layout, given.device.type == "cpu"
    return choose_layout(mean_length, given.window_length, on_cpu=on_cpu, asked=asked)


def _how_masked(objective: MaskingConfig, batches: EncoderBatches) -> str:
    length = batches.source.sequence_length
    if batches.rules is None:
        return f"masked when they were made; instances of up to {length} tokens"
    sequences = _SOURCES[objective.sequences] if isinstance(objective, MaskedLMConfig) else _PAIRS
    words = "whole words, " if objective.whole_words else ""
    return (
        f"each chosen with probability {objective.mask_probability:g}, {words}{batches.most_masked} of a sequence at "
        f"most, 80 % masked, 10 % replaced, 10 % kept, drawn by seed {HELD_OUT_SEED}; {sequences.format(length)}"
    )


def _share_of_others(batches: EncoderBatches, given: TaskInput) -> float:
    """Return the share of the scored pairs whose second text is from another document.

    For long documents it is a half. A document of a single sentence has no next one, so short documents raise it.
    """
    numbers = spread_evenly(batches.num_items, given.max_sequences)
    parts = (numbers[start : start + _READ_SEQUENCES] for start in range(0, len(numbers), _READ_SEQUENCES))
    labels = (sequence.pair_label for part in parts for sequence in batches.source.sequences(part))
    return sum(label == 1 for label in labels) / len(numbers)


def _sequences_of_text(given: TaskInput, special: MaskingTokens) -> Iterator[TokenSequence]:
    """Yield the documents of a file, cut as `hornbook.samples.sequences.DocumentSequences` cuts those of a store."""
    tokenizer, room = given.require_tokenizer(), given.window_length - 2
    for document in read_documents([given.require_data("a store or a file of text")]):
        ids = tokenizer.encode(document.text)
        for start in range(0, len(ids), room):
            yield framed(ids[start : start + room], special)
