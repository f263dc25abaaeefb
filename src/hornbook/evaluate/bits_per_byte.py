"""Bits per byte of held-out documents, next to those of general-purpose compressors."""

import gzip
import lzma

from hornbook.corpora.joined import JoinedStores, join
from hornbook.corpora.store import TokenStore
from hornbook.engine.validation import perplexity, validate
from hornbook.errors import DataError
from hornbook.evaluate.task_files import held_out_stores
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.objective import CausalLM
from hornbook.samples.batches import HeldOutWindows
from hornbook.samples.windows import EvaluationWindows
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted

_LARGEST_TO_COMPRESS = 64 << 20


def read(given: TaskInput) -> TokenStore | JoinedStores:
    """Return the held-out store.

    Raises:
        UserError, DataError: see `bits_per_byte`.
    """
    store = join(held_out_stores(given))
    assert store is not None, "held_out_stores returns at least one"
    if store.num_bytes is None:
        raise DataError("the store has no manifest with its number of bytes: build it with `hornbook corpus build`")
    return store


def bits_per_byte(given: TaskInput) -> list[Row]:
    """Score every byte of a held-out store.

    Raises:
        UserError, DataError: no store is named or known, or it does not record its number of bytes.
    """
    loaded, tokenizer = given.loaded, given.require_tokenizer()
    store = read(given)
    length, document_mask = given.window_length, loaded.recipe.data.document_mask
    overlap = given.overlap_or(length // 2)
    windows = EvaluationWindows(store, length, score_end_of_text=False, overlap=overlap)
    result = validate(
        loaded.model,
        HeldOutWindows(windows, document_mask=document_mask),
        CausalLM(),
        forward=given.forward,
        ranks=given.ranks,
        micro_batch_size=given.micro_batch_size,
        num_bytes=store.num_bytes,
    )
    assert result.bits_per_byte is not None, "all windows were scored and the bytes are known"
    reach = "no context from other documents" if document_mask else "the context runs across documents"
    context = f"windows of {length} tokens that overlap by {overlap}; {reach}"
    rows = [
        Row(metric="bits_per_byte", value=result.bits_per_byte, convention=f"{_scored(store)}; {context}"),
        Row(metric="nats_per_token", value=result.loss, convention=f"mean over {result.tokens:,} tokens; {context}"),
        Row(
            metric="token_perplexity",
            value=perplexity(result.loss),
            convention="exp(nats_per_token): depends on the tokenizer",
        ),
    ]
    return rows + compressors(store, tokenizer)


def _scored(store: TokenStore | JoinedStores) -> str:
    """Describe the scored bytes; without end-of-text tokens, the very first token is only context."""
    whole = f"{store.num_bytes:,} bytes of {counted(store.num_documents, 'document')}"
    if store.end_of_text == "absent":
        return f"every byte scored but those of the first token: {whole}, with no end-of-text token between them"
    return f"every byte scored: {whole}, each after an end-of-text token"


def compressors(store: TokenStore | JoinedStores, tokenizer: Tokenizer) -> list[Row]:
    """Return bits per byte of gzip and xz; nothing for stores above 64 MiB, for which xz takes minutes."""
    if store.num_bytes is None or store.num_bytes > _LARGEST_TO_COMPRESS:
        return []
    end = -1 if store.end_of_text == "stored" else None
    documents = (store.document(number)[:end].tolist() for number in range(store.num_documents))
    text = "".join(map(tokenizer.decode, documents)).encode()
    convention = f"the same documents concatenated, {len(text):,} bytes"
    sizes = {"gzip -9": len(gzip.compress(text, 9, mtime=0)), "xz -9": len(lzma.compress(text, preset=9))}
    return [
        Row(metric=name, value=8 * size / len(text), convention=convention, compute="none")
        for name, size in sizes.items()
    ]
