"""Statistics and samples of a store, as printed by ``hornbook corpus inspect``.

document lengths 3, 5, 6, 200   ->   bins that double in width: {"start": 2, "end": 4, "documents": 1}, ...
"""

from typing import Any

import numpy as np

from hornbook.corpora.store import TokenStore

_SAMPLE_TOKENS = 48


def describe_store(store: TokenStore, num_samples: int) -> dict[str, Any]:
    """Return the description of a store that ``hornbook corpus inspect --json`` prints."""
    sources = store.manifest.sources if store.manifest else ()
    return {
        "store": store.name,
        "documents": store.num_documents,
        "sentences": store.num_sentences,
        "tokens": store.num_tokens,
        "bytes": store.num_bytes,
        "tokens_per_byte": tokens_per_byte(store),
        "vocab_size": store.vocab_size,
        "dtype": store.indexed.dtype.name,
        "end_of_text": store.end_of_text,
        "end_of_text_id": store.end_of_text_id,
        "fingerprint": store.fingerprint,
        "lengths": describe_lengths(store),
        "num_sources": len(sources),
        "sources": list(sources[:10]),
        "samples": samples(store, num_samples),
    }


def describe_lengths(store: TokenStore) -> dict[str, Any]:
    """Return the distribution of tokens per document, stored end-of-text tokens included, with power-of-two bins."""
    lengths = store.document_lengths
    exponents = np.frexp(np.maximum(lengths, 1))[1] - 1  # 2**e <= length < 2**(e + 1); frexp is exact below 2**53
    counts = np.bincount(exponents).tolist()
    return {
        "shortest": int(lengths.min()),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "bins": [
            {"start": 1 << e, "end": 2 << e, "documents": counts[e]} for e in range(int(exponents.min()), len(counts))
        ],
    }


def samples(store: TokenStore, count: int) -> list[dict[str, Any]]:
    """Return the beginnings of ``count`` evenly spaced documents, as text, or as ids if the tokenizer is unknown."""
    tokenizer = store.tokenizer() if count else None
    found = []
    for number in np.unique(np.linspace(0, store.num_documents - 1, count).astype(np.int64)).tolist():
        tokens = store.read(number, 0, min(_SAMPLE_TOKENS, int(store.document_lengths[number])))
        text = tokenizer.decode(tokens) if tokenizer else " ".join(map(str, tokens.tolist()))
        source, unit = store.source(number), store.offset_unit(number)
        found.append({"document": number, "text": text, "source": source, "unit": unit})
    return found


def tokens_per_byte(store: TokenStore) -> float | None:
    """Return the number of tokens, without stored end-of-text tokens, per byte of text; None if bytes are unknown."""
    if not store.num_bytes:
        return None
    return (store.num_tokens - store.num_documents * (store.end_of_text == "stored")) / store.num_bytes
