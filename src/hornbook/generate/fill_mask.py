"""Fill masks: predict the masked tokens of a text with an encoder.

    "The capital of France is [MASK]."   ->   paris 0.42   lyon 0.08   lille 0.06   ...

The text gets [CLS] and [SEP], as in training. Several masks of one text are predicted independently of each other, in a
single forward pass.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.head import EncoderHead, tokens_at
from hornbook.model.language_model import evaluation_mode, forward_resident
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Gapped:
    """An encoded text with masks to fill."""

    prompt: str
    sequence: TokenSequence
    """Its tokens; the masks are the predictions."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A predicted token for a mask."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A text with masks, and the predictions for each."""

    prompt: str
    text: str
    """The prompt with the most likely token for each mask."""
    gaps: list[list[Guess]]
    """The most likely tokens for each mask, best first."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with probabilities rounded to six places."""
        fields = asdict(self)
        for guess in (guess for gap in fields["gaps"] for guess in gap):
            guess["probability"] = round(guess["probability"], 6)
        return fields


class GapFiller:
    """Fills the masks of texts.

    Args:
        model: an encoder.
        tokenizer: the one that it was trained with.
        top_k: number of predictions for each mask.

    Raises:
        UserError: the model has no head for masked tokens; the tokenizer has no mask token, or has tokens outside the
            model's vocabulary; or ``top_k`` is out of range.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, *, top_k: int) -> None:
        self._model, self._tokenizer, self._top_k = model, tokenizer, top_k
        if not isinstance(model.head, EncoderHead):
            raise UserError(
                "the model was fine-tuned and no longer has a head for masked tokens; fill masks with the model from "
                "before the fine-tuning"
            )
        self._special = tokenizer.require_masking()
        self._mask_name = tokenizer.decode([self._special.mask])
        if tokenizer.vocab_size > model.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model {model.vocab_size:,}; "
                "use the tokenizer that it was trained with"
            )
        if top_k > tokenizer.vocab_size:
            raise UserError(f"top-k is {top_k:,}; expected 1 to {tokenizer.vocab_size:,}, the size of the vocabulary")

    def request(self, prompt: str, *, place: str = "the text") -> Gapped:
        """Encode a text with masks, called ``place`` in messages.

        Raises:
            UserError: it has no mask, or is too long for the model.
        """
        sequence = framed(self._tokenizer.encode_with_mask(prompt), self._special)
        gaps = (sequence.tokens == self._special.mask).nonzero()[0]
        if not len(gaps):
            raise UserError(f"{place} has no mask: write {self._mask_name} in place of each token to predict")
        length, most = len(sequence.tokens), self._model.max_positions
        if length > most:
            frame = self._tokenizer.decode([self._special.cls, self._special.sep])
            raise UserError(f"{place} has {length} tokens with {frame}, but the model has {most} positions; shorten it")
        return Gapped(prompt=prompt, sequence=sequence._replace(positions=gaps, labels=sequence.tokens[gaps]))

    def fill(self, requests: Sequence[Gapped]) -> list[Filled]:
        """Fill the masks of one or several texts in one batch."""
        sequences = [request.sequence for request in requests]
        width = max(len(sequence.tokens) for sequence in sequences)
        batch = lay_out(sequences, width=width, layout="padded", pad_id=self._special.pad)
        with evaluation_mode(self._model):
            logits_PV: Tensor = forward_resident(
                self._model, batch, lambda head, x_BTD, batch: head.logits(tokens_at(x_BTD, batch["predictions"]))
            )
        best = logits_PV.softmax(-1)[:, : self._tokenizer.vocab_size].topk(self._top_k)
        guesses = (
            [Guess(token=self._tokenizer.decode([number]), id=number, probability=share) for number, share in pairs]
            for pairs in map(zip, best.indices.tolist(), best.values.tolist())
        )
        filled = []
        for request in requests:
            text, *stretches = request.prompt.split(self._mask_name)
            gaps = list(islice(guesses, len(stretches)))
            for gap, stretch in zip(gaps, stretches, strict=True):
                text = self._joined(text, gap[0].token) + stretch
            filled.append(Filled(prompt=request.prompt, text=text, gaps=gaps))
        return filled

    def _joined(self, text: str, token: str) -> str:
        """Return a text followed by a token: byte-level tokens include their white space, ``##`` tokens have none."""
        prefix = self._tokenizer.continuing_prefix
        if prefix and not token.startswith(prefix):
            return text + token
        return text.rstrip() + token.removeprefix(prefix)
