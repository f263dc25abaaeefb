"""LAMBADA (Paperno et al. 2016): predict the last word of a passage, which requires reading all of it.

    "... I can make it there on my own, Shane"
     context: up to the last blank      answer: " Shane" -> 1 to 5 tokens, scored with teacher forcing

The last *word* is correct if each of its tokens is the most likely one; the last *token* is easier if the word has
several, since the start of the answer is given. Published results use either, which is why they differ by a third. The
stop-word filter skips predictions that spell one of ``STOP_WORDS``: at the answer's first token for
words, at its last for tokens. There is no filtered perplexity: it would be infinite if an answer is itself a stop word.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hornbook.engine.validation import perplexity
from hornbook.errors import DataError
from hornbook.evaluate.spans import Score, Span, score
from hornbook.evaluate.task_files import read_passages
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted

_PUBLISHED: Final = {
    "last_word_accuracy": "acc of lm-evaluation-harness's lambada_openai; Megatron-LM's 66.51 % (8.3B, strict)",
    "last_token_accuracy": "the GPT-2 paper's 45.99 % (117M), 55.48, 60.12, 63.24 (1542M)",
    "last_word_perplexity": "perplexity of lm-evaluation-harness's lambada_openai",
}
PUBLISHED_PASSAGES: Final = 5153
"""Number of passages in the test file of the published figures."""
_LIST: Final = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
    its itself they them their theirs themselves what which who whom this that these those
    am is are was were be been being have has had having do does did doing can will just don should now s t
    a an the and but if or because as until while of at by for with about against between into through during before
    after above below to from up down in out on off over under
    again further then once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very
"""
STOP_WORDS: Final = frozenset(_LIST.split())
"""Words that rarely end a passage. The filter of GPT-2's paper (Radford et al. 2019, 3.3) has an unpublished list; this
is NLTK's English list of that time, 127 words, which reproductions have used."""


def split_last_word(passage: str) -> tuple[str, str]:
    """Return a passage up to its last blank, and the rest with the blanks before it ("" and all without one)."""
    text = passage.rstrip()
    context = text.rpartition(" ")[0].rstrip()
    return context, text[len(context) :]


def make_span(tokenizer: Tokenizer, passage: str) -> Span | None:
    """Return a passage as a span in which the last word is scored; None if nothing comes before that word."""
    context, _ = split_last_word(passage)
    ids = np.array(tokenizer.encode(passage.rstrip()), dtype=np.int64)
    return Span(tokens=ids, num_scored=len(ids) - len(tokenizer.encode(context))) if context else None


def read(given: TaskInput) -> list[Span]:
    """Return the passages of the task's file as tokens, in file order.

    Raises:
        UserError, DataError: no file is named, or a line is not a passage.
    """
    tokenizer, window = given.require_tokenizer(), given.window_length
    path = given.require_data("LAMBADA's passages, such as lambada_test.jsonl")
    spans = []
    for number, passage in enumerate(read_passages(path), 1):
        span = make_span(tokenizer, passage)
        if span is None or span.num_scored > window:
            raise DataError(
                f"{path}, line {number}: expected a text of several words whose last one has at most {window} tokens, "
                "the window; correct or delete the line"
            )
        spans.append(span)
    return spans


def lambada(given: TaskInput) -> list[Row]:
    """Score LAMBADA's passages by all conventions.

    Raises:
        UserError, DataError: see `read`.
    """
    model, window, spans = given.loaded.model, given.window_length, read(given)
    banned_V = stop_word_tokens(given.require_tokenizer(), model.vocab_size).to(given.device)
    cut = [span.cut(window) for span in spans]
    scores = score(
        model, cut, forward=given.forward, ranks=given.ranks, micro_batch_size=given.micro_batch_size, banned_V=banned_V
    )
    num_cut = sum(span.num_inputs > window for span in spans)
    shared = f"{counted(len(spans), 'passage')}, {num_cut:,} of them cut on the left to {window:,} tokens"
    published = _PUBLISHED if len(spans) == PUBLISHED_PASSAGES and num_cut == 0 else {}
    return [
        Row(metric=metric, value=value, convention=f"{says}; {shared}", comparable_with=published.get(metric))
        for metric, value, says in _values(scores)
    ]


def _values(scores: Sequence[Score]) -> list[tuple[str, float, str]]:
    """Return the name, value and convention of each metric."""
    count = len(scores)
    word = sum(bool(found.likeliest.all()) for found in scores)
    word_filtered = sum(bool(found.likeliest_allowed[0] and found.likeliest[1:].all()) for found in scores)
    token = sum(bool(found.likeliest[-1]) for found in scores)
    token_filtered = sum(bool(found.likeliest_allowed[-1]) for found in scores)
    word_nats = sum(float(found.nats.sum()) for found in scores)
    token_nats = sum(float(found.nats[-1]) for found in scores)
    whole = (
        "share of passages of which every token of the last word (the text after the last blank) is the most likely one"
    )
    last = "share of passages of which the last token is the most likely one, given the others"
    passing = "guesses that spell one of 127 stop words are passed over"
    return [
        ("last_word_accuracy", word / count, whole),
        ("last_word_accuracy_filtered", word_filtered / count, f"{whole}; {passing} at its first token"),
        ("last_token_accuracy", token / count, last),
        ("last_token_accuracy_filtered", token_filtered / count, f"{last}; {passing}"),
        ("last_word_perplexity", perplexity(word_nats / count), "exp of the mean nats of a last word, all its tokens"),
        ("last_token_perplexity", perplexity(token_nats / count), "exp of the mean nats of a last token"),
    ]


def stop_word_tokens(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Return bool ``[vocab_size]``: whether a token is a stop word after a blank, in upper or lower case."""
    known = min(vocab_size, tokenizer.vocab_size)
    texts = [tokenizer.decode([index]) for index in range(known)]
    banned = [text.startswith(" ") and text[1:].lower() in STOP_WORDS for text in texts]
    return torch.tensor([*banned, *[False] * (vocab_size - known)])
