"""WikiText perplexity by every convention in use: several named metrics for one text.

    wiki.test.tokens -> raw, detokenized, rows joined  -> one long token sequence each
                     -> windows, each token scored once -> nats ÷ words, tokens or bytes

GPT-2 (Radford et al. 2019, 3.1) and Megatron-LM (Shoeybi et al. 2019) detokenize the text and scale the loss by tokens
÷ original words, so their perplexities are per *word* of the file although the model sees other tokens. They differ in
the windows: reproductions of GPT-2's table use windows without overlap; Megatron-LM scores the last 32 tokens of each,
which gives all but the first window a long context at window ÷ 32 times the computation. lm-evaluation-harness scores
article by article. The price of reporting all: one pass over the text for each of its forms.
"""

import hashlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.engine.validation import perplexity, validate
from hornbook.errors import DataError
from hornbook.evaluate.spans import Span, score
from hornbook.evaluate.task_files import read_text
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.objective import CausalLM
from hornbook.samples.batches import HeldOutWindows
from hornbook.samples.windows import EvaluationWindows
from hornbook.wording import counted

MEGATRON_STRIDE: Final = 32
_UNITS: Final = ("word_perplexity", "token_perplexity", "bits_per_byte")
_HARNESS: Final = ("harness_word_perplexity", "harness_byte_perplexity", "harness_bits_per_byte")
METRICS: Final = (*(f"{form}{unit}" for form in ("", "raw_", "joined_") for unit in _UNITS), *_HARNESS)
_GPT2: Final = "the GPT-2 paper's"
_PUBLISHED: Final = {
    ("wikitext103", "detokenized", "word_perplexity", 1024, 0): f"{_GPT2} 37.50 (117M), 26.37, 22.05, 17.48 (1542M)",
    ("wikitext103", "detokenized", "word_perplexity", 1024, 1024 - MEGATRON_STRIDE): "Megatron-LM's 10.81 (8.3B)",
    ("wikitext2", "joined", "token_perplexity", 1024, 0): f"{_GPT2} 29.41 (117M), 22.76, 19.93, 18.34 (1542M)",
}
"""By task, form of the text, unit, window and overlap."""
PUBLISHED_WORDS: Final = {"wikitext103": 245_566, "wikitext2": 245_570}
"""`count_words` of the files of the published figures: WikiText-103's ``wiki.test.tokens``, and WikiText-2's
``wiki.test.raw``."""
_FORMS: Final = {
    "detokenized": "detokenized by Megatron-LM's rules",
    "raw": "raw, the file as it is",
    "joined": "rows of the file joined by a blank line, as in Hugging Face's guide to perplexity",
}
_MARKS: Final = (
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_PAIRS: Final = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_REST: Final = (
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to score the file: a form of its text, and windows."""

    prefix: str
    """Prefix of the names of its metrics."""
    form: str
    """A key of `_FORMS`."""
    text: str
    overlap: int


class OneDocument:
    """Token ids as a `hornbook.samples.windows.TokenSource` of one document, without an end-of-text token.

    Args:
        tokens: int[n].
    """

    num_documents = 1
    end_of_text = "absent"
    end_of_text_id = None

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens, dtype=np.int64)
        self.document_lengths = np.array([len(self._tokens)], dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the ids."""
        return hashlib.sha256(self._tokens.tobytes()).hexdigest()

    def read(self, document: int, start: int, count: int) -> NDArray[np.int64]:
        """Return tokens ``start .. start + count - 1``."""
        return self._tokens[start : start + count]


def count_words(text: str) -> int:
    """Return Megatron-LM's number of original tokens: the length of the stripped text split at single blanks."""
    return len(text.strip().split(" "))


def join_rows(text: str) -> str:
    """Return the text of Hugging Face's perplexity guide: the rows of ``datasets`` with a blank line between them.

    A row is a line with its end; a blank line is an empty row.
    """
    return "\n\n".join(row if row.strip() else "" for row in io.StringIO(text))


def articles(text: str) -> Iterator[str]:
    """Split a text into articles at the lines ``= Title =``, as the data set of lm-evaluation-harness does."""
    lines: list[str] = []
    for line in text.split("\n"):
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" ="):
            if "".join(lines).strip():
                yield "\n".join(lines)
            lines = []
        lines.append(line)
    yield "\n".join(lines)


def rolling_spans(ids: Sequence[int], prefix: int, length: int) -> Iterator[Span]:
    """Yield lm-evaluation-harness's windows of a text: each token is a target once, the first after ``prefix``.

    The windows are disjoint except the last, which begins earlier so that it, too, has ``length`` inputs.
    """
    stream = np.array([prefix, *ids], dtype=np.int64)
    for start in range(0, len(ids), length):
        stop = min(start + length, len(ids))
        yield Span(tokens=stream[max(0, stop - length) : stop + 1], num_scored=stop - start)


def measure(task: str, given: TaskInput) -> list[Row]:
    """Score a WikiText file by all conventions.

    Raises:
        UserError, DataError: no file is named, or it has no text that can be scored.
    """
    text = read(given)
    rows = [row for reading in readings(text, given) for row in _reading_rows(task, reading, text, given)]
    return rows + _harness_rows(task, text, given)


def read(given: TaskInput) -> str:
    """Return the text of the task's file.

    Raises:
        UserError, DataError: see `measure`.
    """
    given.require_tokenizer()
    given.overlap_or(0)
    path = given.require_data("WikiText's test file, such as wiki.test.tokens")
    text = read_text(path)
    if count_words(text) < 2:
        raise DataError(f"{path}: the file has only one word; expected the text to score")
    return text


def readings(text: str, given: TaskInput) -> list[Reading]:
    """Return the readings of a text: three forms with the requested overlap, and Megatron-LM's windows if none was."""
    overlap, detokenized = given.overlap_or(0), detokenize_wikitext(text)
    found = [
        Reading(prefix="", form="detokenized", text=detokenized, overlap=overlap),
        Reading(prefix="raw_", form="raw", text=text, overlap=overlap),
        Reading(prefix="joined_", form="joined", text=join_rows(text), overlap=overlap),
    ]
    if given.overlap is None and given.window_length > MEGATRON_STRIDE:
        most = given.window_length - MEGATRON_STRIDE
        found.append(Reading(prefix="megatron_", form="detokenized", text=detokenized, overlap=most))
    return found


def _reading_rows(task: str, reading: Reading, text: str, given: TaskInput) -> list[Row]:
    """Return perplexity per original word and per token, and bits per byte, of one reading."""
    length, stride = given.window_length, given.window_length - reading.overlap
    ids = given.require_tokenizer().encode(reading.text)
    windows = EvaluationWindows(OneDocument(ids), length, score_end_of_text=True, overlap=reading.overlap)
    result = validate(
        given.loaded.model,
        HeldOutWindows(windows),
        CausalLM(),
        forward=given.forward,
        ranks=given.ranks,
        micro_batch_size=given.micro_batch_size,
    )
    nats, num_bytes, num_words = result.loss * result.tokens, len(reading.text.encode()), count_words(text) - 1
    is_whole = num_words + 1 == PUBLISHED_WORDS[task]
    shared = (
        f"{_FORMS[reading.form]}; windows of {length:,} tokens, overlap {reading.overlap:,} (stride {stride:,}); "
        f"{result.tokens:,} tokens scored, all but the first"
    )
    values = {
        "word_perplexity": (perplexity(nats / num_words), f"per word: ÷ {num_words:,}, the file's words less 1"),
        "token_perplexity": (perplexity(result.loss), "per token"),
        "bits_per_byte": (nats / math.log(2) / num_bytes, f"÷ {num_bytes:,} bytes of that text"),
    }
    return [
        Row(
            metric=reading.prefix + unit,
            value=value,
            convention=f"{shared}; {divisor}",
            comparable_with=_PUBLISHED.get((task, reading.form, unit, length, reading.overlap)) if is_whole else None,
        )
        for unit, (value, divisor) in values.items()
    ]


def _harness_rows(task: str, text: str, given: TaskInput) -> list[Row]:
    """Return the three metrics of lm-evaluation-harness's task ``wikitext`` (version 2), which reads WikiText-2 raw."""
    tokenizer, model = given.require_tokenizer(), given.loaded.model
    pages, length = list(articles(text)), model.max_positions
    encoded, end_of_text = tokenizer.encode_batch([*map(detokenize_wikitext, pages)]), tokenizer.require_end_of_text()
    spans = [span for ids in encoded for span in rolling_spans(ids.tolist(), end_of_text, length)]
    scores = score(model, spans, forward=given.forward, ranks=given.ranks, micro_batch_size=given.micro_batch_size)
    nats = sum(float(found.nats.sum()) for found in scores)
    num_words = sum(len(re.split(r"\s+", page)) for page in pages)
    num_bytes = sum(len(page.encode()) for page in pages)
    is_theirs = task == "wikitext2" and count_words(text) == PUBLISHED_WORDS[task]
    shared = (
        f"each of {counted(len(pages), 'article')} after an end-of-text token, detokenized; disjoint windows of "
        f"{length:,} tokens, the last of an article filled up on the left; ÷"
    )
    values = {
        "harness_word_perplexity": (perplexity(nats / num_words), f"{num_words:,} words, split at white space"),
        "harness_byte_perplexity": (perplexity(nats / num_bytes), f"{num_bytes:,} bytes of the file"),
        "harness_bits_per_byte": (nats / math.log(2) / num_bytes, f"{num_bytes:,} bytes of the file"),
    }
    return [
        Row(
            metric=metric,
            value=value,
            convention=f"{shared} {divisor}",
            comparable_with=f"{metric.removeprefix('harness_')} of lm-evaluation-harness's wikitext"
            if is_theirs
            else None,
        )
        for metric, (value, divisor) in values.items()
    ]


def detokenize_wikitext(text: str) -> str:
    r"""Return ``text`` without WikiText's blanks around punctuation, by Megatron-LM's rules.

    ::

        "the M @-@ 82 's end , near ( Fremont ) \n"    ->    "the M-82's end, near (Fremont)\n"

    A model of plain text has never seen these blanks and would be charged for them. The rules, which
    lm-evaluation-harness shares, are applied in this order, each to the whole text of 1.2 million characters, so a lone
    quotation mark pairs with the next one, however far away. Published results depend on them, so they are kept
    exactly, including mistakes.
    """
    for old, new in _MARKS:
        text = text.replace(old, new)
    for opening, closing in _PAIRS:
        text = _trim_inside(text, opening, closing)
    for old, new in _REST:
        text = text.replace(old, new)
    return text


def _trim_inside(text: str, opening: str, closing: str) -> str:
    """Remove the blanks just inside each pair of brackets or quotation marks, without nesting.

    Text after the last closing mark has no pair and is left out: a search from each opening mark would be quadratic.
    """
    head, last, tail = text.rpartition(closing)
    pattern = rf"{re.escape(opening)}([^{re.escape(closing)}]*){re.escape(closing)}"
    return re.sub(pattern, lambda match: f"{opening}{match[1].strip()}{closing}", head + last) + tail
