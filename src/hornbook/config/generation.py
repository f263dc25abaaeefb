"""The options of text generation, declared once: for `hornbook.Model.generate`, ``hornbook generate`` and sampling.

temperature: float = option(0.8, help="sampling temperature; 0: greedy", minimum=0)

Python         GenerationConfig(temperature=-1)        UserError("temperature is -1; expected 0, or at least 1e-06")
command line   --temperature -1, with the same help, default and bounds (`hornbook.cli.arguments.add_declared`)
"""

import math
from dataclasses import dataclass

from hornbook.config.options import describe, option
from hornbook.errors import UserError

MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The options for choosing the next token.

    Raises:
        UserError: a value is out of range.
    """

    temperature: float = option(0.8, help="sampling temperature; 0: greedy", minimum=0)
    """Divides the logits; 0 always chooses the most likely token, whatever ``top_k`` and ``top_p`` are."""
    top_k: int | None = option(50, help="sample from the K most likely tokens; none: all", minimum=1)
    """Number of most likely tokens to draw from; None for all."""
    top_p: float | None = option(
        None, help="sample from the smallest set of tokens with total probability P", above=0, maximum=1
    )
    """Draws from the fewest of these whose probabilities sum to this share (Holtzman et al. 2020); None for all."""
    repetition_penalty: float = option(
        1.0, help="penalty for tokens that occur in the prompt or text (CTRL); 1: off", above=0
    )
    """Divides the logits of tokens that occur in the text, stop and start tokens included."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise UserError("; ".join(problems))

    def _problems(self) -> list[str]:
        """Return what is out of range, one line each."""
        problems = []
        for name, spec in describe(type(self)).items():
            value = getattr(self, name)
            if spec.type not in (int, float) or value is None:
                continue
            is_tiny = name == "temperature" and 0.0 < value < MIN_TEMPERATURE
            if is_tiny or not math.isfinite(value) or spec.bounds.broken_by(value):
                expected = f"0, or at least {MIN_TEMPERATURE}" if name == "temperature" else spec.bounds.expected
                problems.append(f"{name} is {value}; expected {expected}")
        return problems


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Sampling):
    """The options of a request for texts.

    Raises:
        UserError: a value is out of range, or a stop string is empty or no text.
    """

    num_samples: int = option(1, help="texts per prompt", minimum=1)
    batch_size: int = option(8, help="prompts per batch; 1: bf16 texts are independent of each other", minimum=1)
    input_length: int | None = option(
        None,
        help="truncate prompts to their last N tokens (default: a prompt that is too long is an error)",
        minimum=1,
    )
    start_token: bool | None = option(
        None,
        help=(
            "put the end-of-text token before each prompt, as in training (default: yes; for Hugging "
            "Face and imported models no, as in transformers)"
        ),
    )
    """An empty prompt is that token in any case."""
    output_length: int = option(128, help="maximum new tokens", minimum=1)
    stop: tuple[str, ...] = option((), help="end the text before this string; repeatable")
    stop_token: str | None = option(
        None, help="end the text at this token; none: never (default: the end-of-text token)"
    )
    """A special token or a text of one token; None for the end-of-text token, ``"none"`` for no token."""
    seed: int = option(0, help="sampling seed")

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if not all(isinstance(stop, str) for stop in self.stop):
            problems.append(f"the stop strings are {self.stop!r:.80}; expected text; decode bytes first")
        if "" in self.stop:
            problems.append("`stop` is empty, which would end every text at once; remove it")
        return problems
