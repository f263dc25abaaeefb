"""Choose the decoder to train in a given time: one dial, from which width, depth, batch, rates and steps follow.

    options_of(width=4, tokens=2_500_000)
        -> {"model.num_layers": 4, "model.hidden_size": 256, "training.global_batch_size": 16, ...}
    choose(1800, unique=2_622_203, token_seconds=lambda width: ...)
        -> Choice(width=4, tokens=..., loss=...), and its neighbors

All other options are those of the recipe `BASE`. A width counts heads of 64 columns, and a model has as many layers, as
in nanochat, but at least four: at small widths the head costs most, and layers little. Muon's rate does not
depend on the width, since its updates have a fixed spectral norm; AdamW's rates of tables and head fall with its
square root. Rates grow with the square root of the batch, and the batch with a power of the tokens.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hornbook.config.recipe_files import Tree
from hornbook.errors import UserError
from hornbook.plan.scaling_resamples import RESAMPLES

BASE: Final = "decoder-demo"
HEAD_SIZE: Final = 64
MOST_WIDTH: Final = 48
LEAST_STEPS: Final = 50
"""Fewer teach nothing: the rates only rise and fall."""
_WIDTH, _WINDOWS, _RATE, _TABLE_RATE, _HEAD_RATE = 4, 16, 0.022, 0.045, 0.014
_LEAST_LAYERS = 4
_BATCH_TOKENS, _BATCH_EXPONENT, _LEAST_BATCH = 2**20, 0.6, 2048
_MOST_SCALE = math.sqrt(2)  # that of the longest measured run; a larger batch does not raise rates further
_LONGEST_WARM_UP = 100
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {"b": 1, "mb": 1e6, "gb": 1e9, "tb": 1e12, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 365 * 86_400
MOST_EPOCHS: Final = 3
"""More made former shapes no better, or by a few percent (docs/dial.md); the law does not know that they overfit."""


DIALS: Final = ("time", "params", "tokens", "flops", "memory")
_SMALLEST, _LARGEST = 1.0, 1e30
_SIZE_AND_LENGTH = {
    "model": ("num_layers", "hidden_size", "num_heads"),
    "training": ("steps", "epochs", "tokens", "global_batch_size"),
}


@dataclass(frozen=True, kw_only=True)
class Dial:
    """What the user gives of a training: its time in seconds, or parameters, tokens, FLOPs, or bytes of memory."""

    name: str
    words: str
    value: float
    begun: float = field(default_factory=time.time)
    """`time.time` when it was set, from which a time counts."""

    def __str__(self) -> str:
        """Return it as the user wrote it."""
        return f"{self.name} {self.words}"

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "Dial":
        """Read the dial that is set, a number or text by name, None if it is not.

        Raises:
            UserError: it is none, several or unknown, or not a positive number of sensible size.
        """
        known = {name: str(value) for name, value in given.items() if value is not None}
        if unknown := [name for name in known if name not in DIALS]:
            raise UserError(f"the recipe auto has no `{unknown[0]}`: it takes one of {', '.join(DIALS)}")
        if len(known) != 1:
            told = " and ".join(f"`{name}`" for name in known) or "none"
            raise UserError(f"the recipe auto takes one of {', '.join(f'`{name}`' for name in DIALS)}, got {told}")
        (name, words), *_ = known.items()
        if name == "time":
            return cls(name=name, words=words, value=read_time(words))
        match = re.fullmatch(r"(\d+(?:[_,]\d{3})*(?:\.\d+)?(?:e\+?\d+)?)\s*([a-z]*)", words.strip().lower())
        units = _BYTES if name == "memory" else _COUNTS
        if match is None or match[2] not in units:
            example = "8GB" if name == "memory" else "30M or 3e7"
            raise UserError(f"`{name}` is {words!r}: expected a number such as {example}")
        value = float(re.sub("[_,]", "", match[1])) * units[match[2]]
        if not _SMALLEST <= value <= _LARGEST:
            raise UserError(f"`{name}` is {words!r}: expected a number from {_SMALLEST:g} to {_LARGEST:g}")
        return cls(name=name, words=words, value=value)


SIZE_UNIT: Final = 1e5
TOKENS_UNIT: Final = 2.0**18
"""Units of a model's weights and of its tokens in the `Law`."""
SIZE_EXPONENT: Final = 0.35
"""Of the weights, by Besiroglu et al. 2024, arXiv 2404.10102; our few sizes fit 0.30 to 0.50 nearly as well."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """Loss of a model with N weights in its blocks after D tokens, without the part that does not depend on them.

    ::

        loss = size · (N / 10^5)^-0.35 + data · (D' / 2^18)^-beta      Hoffmann et al. 2022, arXiv 2203.15556
        D' = U (1 + r (1 - exp(-repeats / r)))            Muennighoff et al. 2023, arXiv 2305.16264, of U tokens

    Attributes:
        data: bits per byte that more than 2^18 tokens can gain.
        beta: exponent of the tokens.
        size: bits per byte that more than 10^5 weights can gain.
        repeats: r, number of repeats after which more of them teach little.
        largest, longest: N and D of the largest and the longest measured run.
    """

    data: float
    beta: float
    size: float
    repeats: float
    largest: float
    longest: float

    def loss(self, width: int, tokens: float, unique: float) -> float:
        """Return the loss in bits per byte above a constant of the corpus, which has ``unique`` tokens."""
        again = max(0.0, tokens / unique - 1)
        worth = min(tokens, unique) * (1 + self.repeats * -math.expm1(-again / self.repeats))
        of_size = self.size * (num_weights(width) / SIZE_UNIT) ** -SIZE_EXPONENT
        return float(of_size + self.data * (worth / TOKENS_UNIT) ** -self.beta)


FITTED: Final = ("data", "beta", "size", "repeats")
"""Attributes of the law that are fitted, in the order of `RESAMPLES`."""

LAW: Final = Law(
    data=0.8388,
    beta=0.3793,
    size=0.1674,
    repeats=1.127,
    largest=12 * 256**2 * 4,
    longest=10_454_545,
)
"""Fitted by ``benchmarks/scaling_fit.py`` to 68 runs of ``benchmarks/scaling_runs.py`` on 16 corpora."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Held-out losses of the smallest model after two short trainings; see `hornbook.measure.pilot`.

    Attributes:
        tokens: of the longer one, one of `PILOTS`.
        early: loss after `EARLY_TOKENS`, in bits per byte or any other unit.
        late: loss after ``tokens``, in the same.
    """

    tokens: int
    early: float
    late: float


EARLY_TOKENS: Final = 2**16
"""Of the shorter training of a `Pilot`."""


@dataclass(frozen=True, kw_only=True)
class PilotFit:
    """How a pilot of some length predicts a corpus, fitted by ``benchmarks/scaling_fit.py``.

    Attributes:
        line: coefficients of `Corpus.of`, that of the pilot's share last.
        error: share of the predicted fall below the pilot's loss by which another corpus may differ: the root mean
            square error for corpora that are each left out, times Student's 80 % for their number.
    """

    line: tuple[float, float]
    error: float


PILOTS: Final = {
    2**17: PilotFit(line=(0.0946, 1.088), error=0.2592),
    2**18: PilotFit(line=(0.0232, 1.02), error=0.2659),
    2**19: PilotFit(line=(0.0659, 0.8606), error=0.1458),
    2**20: PilotFit(
        line=(-0.0342, 0.8962), error=0.1458
    ),  # that of 2^19: six corpora give 0.0649, but the demo's was 6 % off
}
"""By the tokens of the longer training."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Floor and scale of a corpus's loss: ``floor + scale * Law.loss``, in the unit of its pilot.

    Attributes:
        floor: loss that no model here would go below.
        scale: of the rest.
    """

    floor: float
    scale: float

    @classmethod
    def of(cls, pilot: Pilot, unique: float, law: Law = LAW, line: Sequence[float] = ()) -> "Corpus":
        """Extrapolate a pilot, whose late loss is one of the corpus's losses.

        The share of it by which further training lowers the loss is a line over the share by which the pilot's own
        second part lowered it, both relative to the law.

        Args:
            pilot: losses.
            unique: tokens of the training split.
            law: another fit of it, for an interval.
            line: the coefficients for that fit.
        """
        first, slope = line or PILOTS[pilot.tokens].line
        share = max(0.05, first + slope * pilot_share(pilot, unique, law))
        return cls(floor=pilot.late * (1 - share), scale=pilot.late * share / law.loss(1, pilot.tokens, unique))


def pilot_share(pilot: Pilot, unique: float, law: Law) -> float:
    """Return by which share of itself the pilot's loss fell in its second part, relative to that of the law."""
    early, late = law.loss(1, EARLY_TOKENS, unique), law.loss(1, pilot.tokens, unique)
    return (1 - pilot.late / pilot.early) / (1 - late / early)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A width and the tokens that it trains on in the given time.

    Attributes:
        width: see `options_of`.
        tokens: of the run.
        epochs: the same in epochs.
        seconds: of the steps, without start and end.
        loss: see `Law`.
        extrapolates: whether the model is larger, or the run longer, than those that the law was fitted to.
    """

    width: int
    tokens: int
    epochs: float
    seconds: float
    loss: float
    extrapolates: bool


def choose(
    seconds: float, unique: float, token_seconds: Callable[[int], float], widths: range, law: Law = LAW
) -> list[Choice]:
    """Return what each width would reach in the given time, in the order of the loss, the best first.

    Args:
        seconds: of the training steps.
        unique: tokens of the training split, infinite if it is not known.
        token_seconds: returns the seconds per token of a width.
        widths: those that may be chosen.
        law: of the loss.
    """
    found = list[Choice]()
    for width in widths:
        # the law has no term for overfitting, so on little text it would choose the largest model of all
        if found and num_weights(width) > MOST_EPOCHS * unique:
            break
        tokens = int(min(seconds / token_seconds(width), MOST_EPOCHS * unique))
        beyond = num_weights(width) > law.largest or tokens > law.longest
        found.append(
            Choice(
                width=width,
                tokens=tokens,
                epochs=tokens / unique,
                seconds=tokens * token_seconds(width),
                loss=law.loss(width, max(1, tokens), unique),
                extrapolates=beyond,
            )
        )
    return sorted(found, key=lambda choice: choice.loss)


def interval(width: int, tokens: float, unique: float, pilot: Pilot, loss: float) -> tuple[float, float]:
    """Return the bounds of a prediction, 80 % between them.

    They combine the spread of the law over resampled runs, which grows beyond the measured ones, and the error of
    the pilot.

    Args:
        width: see `Law.loss`.
        tokens: the same.
        unique: the same.
        pilot: see `Corpus.of`.
        loss: the prediction.
    """
    found, place = list[float](), 2 * [*PILOTS].index(pilot.tokens)
    for resample in RESAMPLES:
        law = replace(LAW, **dict(zip(FITTED, resample, strict=False)))
        corpus = Corpus.of(pilot, unique, law, resample[len(FITTED) + place :][:2])
        found.append(corpus.floor + corpus.scale * law.loss(width, tokens, unique))
    found.sort()
    tenth, error = len(found) // 10, PILOTS[pilot.tokens].error * (pilot.late - loss)
    low, high = (max(0.0, sign * (bound - loss)) for sign, bound in ((-1, found[tenth]), (1, found[-1 - tenth])))
    return max(0.0, loss - math.hypot(low, error)), loss + math.hypot(high, error)


def best_tokens(width: int, vocabulary: int) -> int:
    """Return the tokens of a model's compute-optimal run: more FLOPs help it as much by size as by tokens."""
    power = 3 if width > _LEAST_LAYERS else 2  # of the width, with which the blocks grow; the head grows with the first
    of_blocks = 6 * num_weights(width) / num_flops(width, vocabulary)
    flops_growth = of_blocks + (1 - of_blocks) / power  # with the weights of the blocks, as an exponent
    of_size = LAW.size * SIZE_EXPONENT * (num_weights(width) / SIZE_UNIT) ** -SIZE_EXPONENT
    return int(TOKENS_UNIT * (LAW.data * LAW.beta * flops_growth / of_size) ** (1 / LAW.beta))


def num_flops(width: int, vocabulary: int) -> float:
    """Return the FLOPs of a token's training: six for each weight of the blocks' and the head's products."""
    return 6.0 * (num_weights(width) + HEAD_SIZE * width * vocabulary)


def read_time(text: str) -> float:
    """Return the seconds of a time such as ``30m``, ``1.5h``, ``1h30m``, ``90s`` or ``2d``.

    Raises:
        UserError: it is no time, or longer than a year.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", text.lower())
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(f"{number}{unit}" for number, unit in parts) != re.sub(r"\s", "", text.lower()) or seconds <= 0:
        raise UserError(f"`time` is {text!r}: expected a time such as 30m, 1.5h, 1h30m or 2d")
    if seconds > _LONGEST:
        raise UserError(f"`time` is {text!r}: expected at most 365d")
    return seconds


def refuse_contradictions(overrides: Tree, dial: str) -> None:
    """Raise UserError if options of the recipe set the size or the length, which the dial chooses."""
    for section, names in _SIZE_AND_LENGTH.items():
        for name in names:
            if (section, name) in overrides:
                raise UserError(f"`{section}.{name}` contradicts `{dial}`, which sets it: remove one of them")


def num_weights(width: int) -> int:
    """Return the weights of the blocks' linear layers: twelve times the square of the width in each."""
    return 12 * (HEAD_SIZE * width) ** 2 * _num_layers(width)


def shape_of(width: int) -> str:
    """Return layers and columns as a line says them."""
    return f"{_num_layers(width)} layers of {HEAD_SIZE * width} columns"


def _num_layers(width: int) -> int:
    return max(_LEAST_LAYERS, width)  # two are 1 % behind after 2^20 tokens, 3 % after 2^22 (LOG.md)


def options_of(width: int, tokens: int, *, windows: int | None = None, length: int = 256) -> dict[str, int | float]:
    """Return options of `BASE` by dotted name.

    Args:
        width: number of heads of `HEAD_SIZE` columns.
        tokens: to train on, repeats included.
        windows: of a batch; None: by the number of tokens.
        length: tokens of a window.
    """
    windows = windows or batch_windows(tokens, length)
    steps = max(1, tokens // (windows * length))
    scale, narrow = min(_MOST_SCALE, math.sqrt(windows * length / (_WINDOWS * 256))), math.sqrt(_WIDTH / width)
    return {
        "model.num_layers": _num_layers(width),
        "model.hidden_size": HEAD_SIZE * width,
        "model.num_heads": width,
        "training.global_batch_size": windows,
        "training.micro_batch_size": min(windows, _WINDOWS),
        "training.steps": steps,
        "schedule.warmup_steps": max(1, min(_LONGEST_WARM_UP, steps // 10)),
        "optimizer.learning_rate": _rounded(_RATE * scale),
        "optimizer.table_learning_rate": _rounded(_TABLE_RATE * scale * narrow),
        "optimizer.head_learning_rate": _rounded(_HEAD_RATE * scale * narrow),
    }


def batch_windows(tokens: int, length: int = 256) -> int:
    """Return the windows of a batch for a number of tokens: a power of two, so that micro-batches divide it."""
    best = max(_LEAST_BATCH, _WINDOWS * 256 * (tokens / _BATCH_TOKENS) ** _BATCH_EXPONENT)
    return max(1, 1 << max(0, round(math.log2(best / length))))


def _rounded(rate: float) -> float:
    """Return a rate with three digits, as a person would write it."""
    return float(f"{rate:.3g}")
