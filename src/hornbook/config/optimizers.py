"""The optimizers and learning-rate schedules of ``[optimizer]`` and ``[schedule]``: a dataclass for each ``name``.

A value that changes during the run is a list of ``STEP=VALUE``, in files and on the command line:

    read_steps(("0=128", "2000=64")) -> {0: 128.0, 2000: 64.0}      value_at(that, 1999) -> 128.0
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from hornbook.config.options import Mistake, Problem, choice_of, option, show

ClipScope = Literal["global", "per_tensor"]
Role = Literal["matrix", "norm", "bias"]
MuonKind = Literal["hidden", "table", "head", "vector"]
Shape = tuple[int, ...]


def role_of(name: str, shape: Sequence[int]) -> Role:
    """Return the role of a parameter, given its name and shape: other vectors than biases are gains of norms."""
    if name.endswith("bias"):
        return "bias"
    return "matrix" if len(shape) > 1 else "norm"


def states_of(optimizer: object, name: str, shape: Shape) -> Mapping[str, Shape]:
    """Return the shapes of an optimizer's state tensors for a parameter, by their names; {} if it declares none.

    Everything that stores, counts or checks optimizer state asks this.

    Args:
        optimizer: the ``[optimizer]`` section, built-in or registered; ``OptimizerConfig.states`` declares them.
        name: of the parameter.
        shape: of the parameter, or of a rank's part of it.
    """
    declared = getattr(optimizer, "states", None)
    return {} if declared is None else declared(name, shape)


def read_steps(entries: Sequence[str]) -> dict[int, float]:
    """Return positive values by the step from which they apply, counted from 0, in order.

    Args:
        entries: ``STEP=VALUE`` each, in any order.

    Raises:
        Mistake: an entry is malformed, a value is not positive, a step occurs twice, or step 0 is missing.
    """
    values: dict[int, float] = {}
    for entry in entries:
        match, value = re.fullmatch(r"\s*(?P<step>[0-9][0-9_]{0,18})\s*=(?P<value>.+)", entry), 0.0
        with suppress(ValueError):
            value = float(match["value"]) if match else 0.0
        if match is None or not 0.0 < value < math.inf:
            raise Mistake(f"{show(entry)}: expected STEP=VALUE with a positive value, as in 2000=0.5")
        if (step := int(match["step"])) in values:
            raise Mistake(f"step {step} has two values; remove one")
        values[step] = value
    if 0 not in values:
        raise Mistake("step 0 has no value; add 0=VALUE")
    return dict(sorted(values.items()))


def value_at(values: Mapping[int, float], step: int) -> float:
    """Return the value of the largest key that is at most ``step``; keys are in ascending order and begin with 0."""
    steps = list(values)
    return values[steps[bisect_right(steps, step) - 1]]


def problems_of_steps(key: str, entries: Sequence[str]) -> list[Problem]:
    """Return the mistake of ``read_steps``, if any, as a problem of the option ``key``."""
    try:
        read_steps(entries)
    except Mistake as mistake:
        return [Problem((key,), str(mistake))]
    return []


def read_scales(entries: Sequence[str]) -> dict[str, float]:
    """Return factors of the learning rate by pattern, in order.

    Args:
        entries: ``PATTERN=FACTOR`` each.

    Raises:
        Mistake: an entry has no pattern, or its factor is not finite and at least 0.
    """
    scales: dict[str, float] = {}
    for entry in entries:
        pattern, _, text = entry.rpartition("=")
        try:
            scale = float(text)
        except ValueError:
            scale = math.nan
        if not pattern or not 0.0 <= scale < math.inf:
            raise Mistake(f"{show(entry)}: expected PATTERN=FACTOR with a factor of at least 0, as in embedding.*=0.1")
        if pattern in scales:
            raise Mistake(f"pattern {show(pattern)} has two factors; remove one")
        scales[pattern] = scale
    return scales


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The options of every optimizer; the defaults are those of AdamW."""

    name: str = option("", help="optimizer")
    learning_rate: float = option(6e-4, help="peak learning rate", above=0)
    weight_decay: float = option(0.1, help="weight decay of matrices; biases and norms have none", minimum=0)
    clip_norm: float | None = option(1.0, help="maximum norm of the gradients; none: no clipping", above=0)
    clip_scope: ClipScope = option("global", help="clip the norm of all gradients together, or that of each tensor")
    no_decay: tuple[str, ...] = option((), help="name patterns of parameters without weight decay, such as embedding.*")
    learning_rate_scale: tuple[str, ...] = option(
        (), help="PATTERN=FACTOR: learning rate factor of parameters by name pattern; the first match counts"
    )

    def states(self, name: str, shape: Shape) -> Mapping[str, Shape]:
        """Return the shapes of the state tensors of a parameter, by their names.

        Each dimension of a state is that of the parameter, or 1.

        Args:
            name: of the parameter, such as ``blocks.0.attention.out.weight``.
            shape: of the parameter.
        """
        return {}

    def problems(self) -> list[Problem]:
        try:
            read_scales(self.learning_rate_scale)
        except Mistake as mistake:
            return [Problem(("learning_rate_scale",), str(mistake))]
        return []


@dataclass(frozen=True, kw_only=True)
class MomentsConfig(OptimizerConfig):
    """The options of the optimizers with two moments, after Adam (Kingma & Ba 2015)."""

    beta1: float = option(0.9, help="decay rate of the first moment", minimum=0, below=1)
    beta2: float = option(0.999, help="decay rate of the second moment", minimum=0, below=1)
    epsilon: float = option(1e-8, help="added to the square root of the second moment", above=0)
    bias_correction: bool = option(True, help="divide the moments by 1 - beta^step")
    epsilon_before_correction: bool = option(
        False, help="add epsilon before the bias correction of the second moment, as TensorFlow's Adam does"
    )

    def states(self, name: str, shape: Shape) -> Mapping[str, Shape]:
        return {"exp_avg": shape, "exp_avg_sq": shape}

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.epsilon_before_correction and not self.bias_correction:
            message = "epsilon_before_correction requires bias_correction; remove it or set bias_correction = true"
            problems.append(Problem(("epsilon_before_correction", "bias_correction"), message))
        return problems


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class AdamWConfig(MomentsConfig):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); defaults of GPT-3 (Brown et al. 2020, app. B)."""

    name: str = "adamw"
    beta2: float = 0.95


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class AdamConfig(MomentsConfig):
    """Adam (Kingma & Ba 2015); weight decay is added to the gradient, so the second moment scales it, too."""

    name: str = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class LambConfig(MomentsConfig):
    """LAMB (You et al. 2020); defaults of BERT's 64k batches. ``clip_norm`` 1 is NVLAMB's pre-normalization."""

    name: str = "lamb"
    learning_rate: float = 6e-3
    weight_decay: float = 0.01
    epsilon: float = 1e-6
    split_qkv: bool = option(True, help="separate trust ratios for query, key and value; false: one for all three")
    exempt_vectors: bool = option(
        True, help="no weight decay for biases and norms, no trust ratio for biases; false: treat all tensors alike"
    )
    weight_norm_cap: float | None = option(None, help="maximum weight norm in a trust ratio; none: no cap", above=0)


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """Gradient descent without state; weight decay is added to the gradient."""

    name: str = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class MomentumConfig(SGDConfig):
    """Gradient descent with momentum (Polyak 1964), or Nesterov's (Sutskever et al. 2013)."""

    name: str = "momentum"
    learning_rate: float = 0.01
    momentum: float = option(0.9, help="momentum factor", above=0, below=1)
    nesterov: bool = option(False, help="use Nesterov momentum")

    def states(self, name: str, shape: Shape) -> Mapping[str, Shape]:
        return {"momentum": shape}


@choice_of("optimizer")
@dataclass(frozen=True, kw_only=True)
class MuonConfig(MomentsConfig):
    """Muon (Jordan et al. 2024) for the matrices of blocks, dense or block-sparse; AdamW for all other parameters.

    ``learning_rate`` is Muon's. AdamW's rates follow the same schedule; its betas and epsilon are nanochat's.
    """

    name: str = "muon"
    learning_rate: float = 0.02
    momentum: float = option(0.95, help="decay rate of Muon's momentum", minimum=0, below=1)
    nesterov: bool = option(True, help="use Nesterov momentum")
    polynomials: Literal["polar_express", "polar_express_4", "newton_schulz"] = option(
        "polar_express", help="polynomials that orthogonalize: 5 or 4 of Amsel et al. 2025, or Jordan et al.'s"
    )
    products: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        help="dtype of the products that orthogonalize; auto: bf16 if the device supports it natively, else fp32",
    )
    scale: Literal["spectral", "rms"] = option(
        "spectral",
        help=(
            "factor of the learning rate of a matrix; spectral: sqrt(max(1, rows / columns)); rms: "
            "0.2 sqrt(max(rows, columns)), for learning rates of AdamW (Liu et al. 2025)"
        ),
    )
    per_head: bool = option(False, help="orthogonalize each head of query, key and value as its own matrix")
    row_moments: bool = option(
        False, help="divide each row of a dense update by its root mean square over time (NorMuon, Li et al. 2025)"
    )
    row_beta: float = option(0.95, help="decay rate of the rows' mean squares", minimum=0, below=1)
    cautious_decay: bool = option(False, help="decay only weights that the update moves towards zero")
    vector_learning_rate: float = option(3e-3, help="peak learning rate of vectors", above=0)
    table_learning_rate: float = option(3e-3, help="peak learning rate of the embeddings' tables", above=0)
    head_learning_rate: float = option(3e-3, help="peak learning rate of the head's matrices", above=0)
    beta1: float = 0.8
    beta2: float = 0.95
    table_beta1: float | None = option(None, help="beta1 of tables; none: beta1", minimum=0, below=1)
    table_beta2: float | None = option(None, help="beta2 of tables; none: beta2", minimum=0, below=1)
    head_beta1: float | None = option(None, help="beta1 of the head's matrices; none: beta1", minimum=0, below=1)
    head_beta2: float | None = option(None, help="beta2 of the head's matrices; none: beta2", minimum=0, below=1)
    epsilon: float = 1e-10

    def problems(self) -> list[Problem]:
        """Return options without effect and mistakes in the entries of lists."""
        problems = super().problems()
        if self.row_beta != MuonConfig.row_beta and not self.row_moments:
            message = "row_beta has no effect without row_moments; remove it or set row_moments = true"
            problems.append(Problem(("row_beta", "row_moments"), message))
        if self.cautious_decay and not self.weight_decay:
            message = "cautious_decay has no effect without weight decay; remove it or set weight_decay"
            problems.append(Problem(("cautious_decay", "weight_decay"), message))
        return problems

    def kind_of(self, name: str, role: Role) -> MuonKind:
        """Return how a parameter is updated: ``hidden`` by orthogonalized momentum, the others by AdamW."""
        place = name.partition(".")[0]
        if role != "matrix":
            return "vector"
        if place == "blocks" and not name.endswith("value_embedding.table"):
            return "vector" if name.endswith(("filter_weight", ".gate")) else "hidden"
        return "head" if place == "head" else "table"

    def states(self, name: str, shape: Shape) -> Mapping[str, Shape]:
        if self.kind_of(name, role_of(name, shape)) != "hidden":
            return super().states(name, shape)
        has_rows = self.row_moments and not name.endswith(".values")
        return {"momentum": shape} | ({"row_square": (*shape[:-1], 1)} if has_rows else {})


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The options of every schedule with a warm-up."""

    name: str = option("", help="learning-rate schedule")
    warmup_steps: int = option(0, help="warm-up steps; the last one reaches the peak", minimum=0)
    warmup_fraction: float | None = option(
        None,
        help="warm-up as a fraction of the run, or of decay_end if set; replaces warmup_steps",
        minimum=0,
        maximum=1,
    )


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Warm-up, then a constant learning rate."""

    name: str = "constant"


@dataclass(frozen=True, kw_only=True)
class DecayConfig(ScheduleConfig):
    """The options of every schedule that decays to a final learning rate."""

    final_fraction: float = option(0.0, help="final learning rate, as a fraction of the peak", minimum=0, maximum=1)
    decay_end: int | None = option(
        None, help="step at which the decay ends, including the warm-up; none: the end of the run", minimum=1
    )

    def problems(self) -> list[Problem]:
        if self.decay_end is not None and self.warmup_steps >= self.decay_end:
            message = "the decay must end after the warm-up; raise decay_end or lower warmup_steps"
            return [Problem(("warmup_steps", "decay_end"), message)]
        return []


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class LinearConfig(DecayConfig):
    """Warm-up, then a linear decay."""

    name: str = "linear"


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class CosineConfig(DecayConfig):
    """Warm-up, then half a period of a cosine (Loshchilov & Hutter 2017)."""

    name: str = "cosine"


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class WarmupStableDecayConfig(DecayConfig):
    """Warm-up, a constant rate, then a decay over the last part of the run (Hu et al. 2024)."""

    name: str = "warmup_stable_decay"
    decay_fraction: float = option(
        0.2, help="decay steps as a fraction of the run, or of decay_end if set", above=0, maximum=1
    )
    decay_power: float = option(1.0, help="exponent of the decay's progress; 1: linear, 0.5: 1 - sqrt", above=0)
    lengths: tuple[str, ...] = option(
        (), help="STEP=LENGTH: steps of the run as planned from a step on, instead of the end; `train auto` writes them"
    )

    def problems(self) -> list[Problem]:
        return super().problems() + (problems_of_steps("lengths", self.lengths) if self.lengths else [])


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class PolynomialConfig(DecayConfig):
    """Warm-up and decay by powers of progress; GroupBERT's warm-up has the power 0.5."""

    name: str = "polynomial"
    warmup_power: float = option(1.0, help="exponent of the warm-up; 0.5: square root", above=0)
    decay_power: float = option(1.0, help="exponent of the decay; 1: linear", above=0)
    decay_steps: int | None = option(
        None, help="steps of the decay after the warm-up; none: up to decay_end", minimum=1
    )


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class NaturalExponentialConfig(ScheduleConfig):
    """Warm-up, then a stepwise exponential decay."""

    name: str = "natural_exponential"
    stair_steps: int = option(500, help="steps between reductions", minimum=1)
    stair_decay: float = option(0.05, help="each reduction divides the learning rate by e to this power", minimum=0)


@choice_of("schedule")
@dataclass(frozen=True, kw_only=True)
class ByStepConfig:
    """A table of factors; with ``optimizer.learning_rate`` 1 they are learning rates."""

    name: str = option("by_step", help="learning-rate schedule")
    factors: tuple[str, ...] = option(
        ("0=1",), help="STEP=FACTOR: factor of the peak from that step on, counted from 0"
    )

    def problems(self) -> list[Problem]:
        return problems_of_steps("factors", self.factors)
