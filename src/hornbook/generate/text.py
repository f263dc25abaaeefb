r"""Continue prompts as texts: tokenization, stop strings, streaming and timing.

    writer = TextWriter(model, tokenizer, GenerationConfig(output_length=128, stop=("\n\n",)))
    writer.write([writer.request("Once upon a time")], on_text=...)
        -> [Text(prompt="Once upon a time", text=" there was", finish_reason="stop_string", ...)]

With a start token, a prompt is the beginning of a document: it is preceded by the end-of-text token, as every document
in training, if there is room. A truncated prompt is not a beginning. ``request`` makes all checks, so that of a
thousand prompts the last cannot fail after an hour; the price is that all prompts are encoded before the first text is
generated.

A `TextStream` decodes ids one at a time, with incomplete characters held back, up to a stop string::

    ids       "Caf"  C3  A9  " a"  "u la"  "it\n\nQ:"      stop string "\n\n"
    text      "Caf"  ""  "é" " a"  "u la"  "it"            has_stopped

Text that may be the beginning of a stop string is held back until that is decided, however the tokens split it. The
concatenated text is that of ``Tokenizer.decode`` for all ids. The text of a token may depend on the tokens before it (a
leading blank, the bytes of one character), so the last few are decoded again with each new one.
"""

import codecs
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hornbook.config.generation import GenerationConfig
from hornbook.config.options import show
from hornbook.errors import UserError
from hornbook.generate.decoder import generate_batch, make_decoder
from hornbook.generate.sampling import draws_of
from hornbook.model import LanguageModel
from hornbook.model.label_heads import ClassificationHead
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import BYTE_TOKEN, symbol_bytes

FinishReason = Literal["length", "stop_token", "stop_string", "interrupted"]
OnText = Callable[[int, str], None]
"""Called with (row, text) whenever a row's text grows."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """An encoded prompt."""

    prompt: str
    ids: tuple[int, ...]
    sample: int
    """Distinguishes texts of the same prompt."""
    num_cut: int
    """Number of tokens removed from the start of the prompt."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """The generated text of a request."""

    prompt: str
    sample: int
    text: str
    """The generated text, without the prompt."""
    tokens: int
    """Number of generated tokens, including those of a stop string but not a stop token."""
    finish_reason: FinishReason
    seconds: float
    """Time from the start of the batch to the end of this text."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with seconds rounded to microseconds."""
        return asdict(self) | {"seconds": round(self.seconds, 6)}


@dataclass(kw_only=True)
class Timing:
    """The total time and tokens of a writer's texts."""

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    """Part of these until a batch's first tokens, in which the prompts are read."""
    batches: int = 0
    steps: int = 0
    """Number of decoding steps after the first tokens."""
    stopped: int = 0
    """Number of texts that the stop token ended."""

    def summary(self) -> dict[str, Any]:
        """Return the counts and three rates derived from them; a rate is None if nothing was timed."""
        later = self.seconds - self.first_seconds
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 6),
            "first_token_seconds": round(self.first_seconds / self.batches, 6) if self.batches else None,
            "seconds_per_token": round(later / self.steps, 6) if self.steps else None,
            "tokens_per_second": round(self.tokens / self.seconds, 3) if self.seconds else None,
        }


class TextWriter:
    """Generates texts with one model.

    Args:
        model: in evaluation mode; do not train it while the writer is in use.
        tokenizer: the model's tokenizer.
        options: for all texts.
        has_start_token: whether prompts begin with the end-of-text token where the options leave it open.

    Raises:
        UserError: an option does not suit the model, or the tokenizer is not the model's.
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, options: GenerationConfig, *, has_start_token: bool = True
    ) -> None:
        if isinstance(model.head, ClassificationHead):
            raise UserError("the model classifies texts and cannot generate: use `hornbook predict`, or another model")
        if options.input_length is not None and options.input_length > model.max_positions:
            raise UserError(
                f"the input length is {options.input_length}; expected 1 to {model.max_positions}, the model's "
                "positions"
            )
        if (end_of_text := tokenizer.require_end_of_text()) >= model.num_ids:
            raise UserError(f"the tokenizer ends texts by token {end_of_text}, {_not_in_vocabulary(model.vocab_size)}")
        self.tokenizer, self.options, self.timing = tokenizer, options, Timing()
        self.stop_id = find_stop_id(options.stop_token, tokenizer)
        self._has_start_token = has_start_token if options.start_token is None else options.start_token
        self._max_positions, self._vocab_size, self._num_ids = model.max_positions, model.vocab_size, model.num_ids
        self._decoder = make_decoder(model)

    def request(self, prompt: str, *, sample: int = 0, place: str = "the prompt") -> Request:
        """Encode a prompt; an empty one is the beginning of a document.

        Args:
            prompt: the text to continue.
            sample: number of the continuation; each gives a different text.
            place: name of the prompt in messages.

        Raises:
            UserError: it is longer than the model's positions and ``input_length`` is None, has a token outside the
                model's vocabulary, or is not valid Unicode.
        """
        ids, limit = self.tokenizer.encode(prompt), self.options.input_length or self._max_positions
        if max(ids, default=0) >= self._num_ids:
            raise UserError(f"{place} has token {max(ids)}, {_not_in_vocabulary(self._vocab_size)}")
        if len(ids) > limit and self.options.input_length is None:
            raise UserError(
                f"{place} has {len(ids)} tokens, but the model has {limit} positions; shorten it, or keep its last "
                f"{limit} tokens by `input_length={limit}`"
            )
        has_start = len(ids) < limit and (self._has_start_token or not ids)
        start = [self.tokenizer.require_end_of_text()] if has_start else []
        return Request(prompt=prompt, ids=(*start, *ids[-limit:]), sample=sample, num_cut=max(0, len(ids) - limit))

    def write(
        self, requests: Sequence[Request], *, on_text: OnText | None = None, interruptible: bool = False
    ) -> list[Text]:
        """Continue the prompts, as one batch.

        Args:
            requests: at least one request.
            on_text: called for every piece of text.
            interruptible: whether Ctrl-C ends generation and returns the texts so far.

        Raises:
            HornbookError: the model's logits are not finite.
        """
        batch = _Batch(requests, self, on_text)
        with suppress(KeyboardInterrupt) if interruptible else nullcontext():
            generate_batch(
                self._decoder,
                [request.ids for request in requests],
                num_tokens=self.options.output_length,
                vocab_size=min(self._vocab_size, self.tokenizer.vocab_size),
                draws=[draws_of(self.options.seed, request.ids, request.sample) for request in requests],
                sampling=self.options,
                stop_id=self.stop_id,
                on_token=batch.take,
            )
        return batch.finish(self.timing)


class _Batch:
    """The growing texts of one batch."""

    def __init__(self, requests: Sequence[Request], writer: TextWriter, on_text: OnText | None) -> None:
        self._requests, self._on_text = requests, on_text
        self._output_length, self._stop_id = writer.options.output_length, writer.stop_id
        start, stop = (writer.tokenizer.end_of_text_id,), writer.options.stop
        self._streams = [
            TextStream(writer.tokenizer, stop, request.ids[int(request.ids[:1] == start) :]) for request in requests
        ]
        self._texts, self._counts = [""] * len(requests), [0] * len(requests)
        self._ends: dict[int, tuple[FinishReason, float]] = {}
        self._started = time.perf_counter()
        self._first_seconds: float | None = None
        self._num_chosen = 0  # in the longest row

    def take(self, row: int, token: int) -> bool:
        """Add a token to a row; return whether the row ends."""
        if self._first_seconds is None:
            self._first_seconds = self._elapsed()
        self._num_chosen = max(self._num_chosen, self._counts[row] + 1)
        if token == self._stop_id:
            return self._end(row, "stop_token")
        self._counts[row] += 1
        self._add(row, self._streams[row].push(token))
        if self._streams[row].has_stopped:
            return self._end(row, "stop_string")
        return self._counts[row] == self._output_length and self._end(row, "length")

    def finish(self, timing: Timing) -> list[Text]:
        for row in range(len(self._requests)):
            if row not in self._ends:
                self._end(row, "interrupted")
        timing.texts += len(self._requests)
        timing.tokens += sum(self._counts)
        timing.seconds += self._elapsed()
        timing.first_seconds += self._first_seconds or self._elapsed()
        timing.batches += 1
        timing.steps += max(self._num_chosen, 1) - 1
        timing.stopped += sum(reason == "stop_token" for reason, _ in self._ends.values())
        return [
            Text(
                prompt=request.prompt,
                sample=request.sample,
                text=self._texts[row],
                tokens=self._counts[row],
                finish_reason=self._ends[row][0],
                seconds=self._ends[row][1],
            )
            for row, request in enumerate(self._requests)
        ]

    def _end(self, row: int, reason: FinishReason) -> bool:
        self._ends[row] = (reason, self._elapsed())
        self._add(row, self._streams[row].finish())
        return True

    def _add(self, row: int, piece: str) -> None:
        self._texts[row] += piece
        if piece and self._on_text is not None:
            self._on_text(row, piece)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started


def find_stop_id(name: str | None, tokenizer: Tokenizer) -> int | None:
    """Return the id of a stop token from its text.

    Args:
        name: a special token or a text of one token; None for the end-of-text token, ``"none"`` for none.
        tokenizer: the model's.

    Raises:
        UserError: the text is several tokens.
    """
    if name is None or name == "none":
        return tokenizer.end_of_text_id if name is None else None
    if name in tokenizer.special:
        return tokenizer.vocab[name]
    ids = tokenizer.encode(name)
    if len(ids) != 1:
        raise UserError(
            f"`stop_token` {show(name)} is {len(ids)} tokens; expected one; to stop at a string, use `stop`"
        )
    return ids[0]


def _not_in_vocabulary(vocab_size: int) -> str:
    return f"but the model's vocabulary is 0 to {vocab_size - 1}; use the tokenizer that it was trained with"


class TextStream:
    """An incremental decoder; invalid UTF-8 becomes U+FFFD.

    Args:
        tokenizer: decodes the ids.
        stop_strings: the text ends before the first of them that is complete, and ``has_stopped`` becomes true.
        context: ids before the first one pushed, whose text is not returned.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self.has_stopped = False
        self._tokenizer, self._stop_strings = tokenizer, stop_strings
        self._ids, self._num_decoded = list(context), len(context)
        self._decoded = tokenizer.decode(self._ids)
        self._held = ""

    def push(self, token: int) -> str:
        """Append an id; return the text that is now certain, possibly empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if BYTE_TOKEN.fullmatch(self._tokenizer.token(token)) or (text.endswith("\ufffd") and self._is_half()):
            return ""
        if self._extend(text):
            return self._release(len(self._held))
        longest = min(max(map(len, self._stop_strings), default=1) - 1, len(self._held))
        ends = (n for n in range(longest, 0, -1) if any(s.startswith(self._held[-n:]) for s in self._stop_strings))
        return self._release(len(self._held) - next(ends, 0))

    def finish(self) -> str:
        """Return the text held back, after the last id."""
        self._extend(self._tokenizer.decode(self._ids))
        return self._release(len(self._held))

    def _is_half(self) -> bool:
        """Return whether the ids end with the first bytes of a character."""
        bytes_of, data = symbol_bytes(), b""
        for token in map(self._tokenizer.token, self._ids):  # of a byte-level model, or any other
            data += bytes(map(bytes_of.__getitem__, token)) if bytes_of.keys() >= set(token) else token.encode()
        return codecs.utf_8_decode(data, "replace", False)[1] < len(data)

    def _extend(self, text: str) -> bool:
        """Append what is new in the text of the ids, and drop those of what was there before.

        Truncates at a stop string; returns whether one was found, now or before.
        """
        new = text[len(self._decoded) :]
        if new:
            self._ids, self._num_decoded = self._ids[self._num_decoded :], len(self._ids) - self._num_decoded
            self._decoded = self._tokenizer.decode(self._ids)
        if self.has_stopped:
            return True
        self._held += new
        spans = [(start + len(stop), start) for stop in self._stop_strings if (start := self._held.find(stop)) >= 0]
        if spans:
            _, start = min(spans)  # the one that is complete first, even if one id completes several
            self._held, self.has_stopped = self._held[:start], True
        return self.has_stopped

    def _release(self, end: int) -> str:
        certain, self._held = self._held[:end], self._held[end:]
        return certain
