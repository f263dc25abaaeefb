"""The update rules of a recipe's ``[optimizer]`` section, one dataclass a ``name``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hornbook.config.options import Problem, option
from hornbook.config.registry import register
from hornbook.config.values import Mistake, show

ClipScope = Literal["global", "per_tensor"]


def _name(default: str) -> str:
    return option(default, help="update rule")


def _learning_rate(default: float) -> float:
    return option(default, help="peak learning rate", above=0)


def _weight_decay(default: float) -> float:
    return option(default, help="decay of matrices; biases and norms have none", minimum=0)


def _beta2(default: float) -> float:
    return option(default, help="decay of the second moment", minimum=0, below=1)


def _epsilon(default: float) -> float:
    return option(default, help="added to the root of the second moment", above=0)


def read_scales(entries: Sequence[str]) -> dict[str, float]:
    """Return factors of the learning rate by pattern, in order.

    Args:
        entries: ``PATTERN=FACTOR`` each.

    Raises:
        Mistake: an entry has no pattern, or no factor that is finite and at least 0.
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
    """What every update rule here has; the defaults are those of AdamW."""

    name: str = _name("")
    learning_rate: float = _learning_rate(6e-4)
    weight_decay: float = _weight_decay(0.1)
    clip_norm: float | None = option(1.0, help="largest norm of the gradients; none: no clipping", above=0)
    clip_scope: ClipScope = option("global", help="whose norm: that of all gradients together, or of each tensor")
    no_decay: tuple[str, ...] = option((), help="PATTERN of names of parameters without decay, as in embedding.*")
    learning_rate_scale: tuple[str, ...] = option(
        (), help="PATTERN=FACTOR of the learning rate; of several that match a name, the first"
    )

    def problems(self) -> list[Problem]:
        """List the mistakes that concern several fields or the entries of lists."""
        try:
            read_scales(self.learning_rate_scale)
        except Mistake as mistake:
            return [Problem(("learning_rate_scale",), str(mistake))]
        return []


@dataclass(frozen=True, kw_only=True)
class MomentsConfig(OptimizerConfig):
    """What the rules with two moments have, after Adam (Kingma & Ba 2015)."""

    beta1: float = option(0.9, help="decay of the first moment", minimum=0, below=1)
    beta2: float = _beta2(0.999)
    epsilon: float = _epsilon(1e-8)
    bias_correction: bool = option(True, help="divide the moments by 1 - beta^update, which lifts the first ones")
    epsilon_before_correction: bool = option(
        False, help="add epsilon to the root of the uncorrected second moment, as TensorFlow's Adam does"
    )

    def problems(self) -> list[Problem]:
        """List the mistakes that concern several fields or the entries of lists."""
        problems = super().problems()
        if self.epsilon_before_correction and not self.bias_correction:
            message = "there is no correction to add epsilon before; leave epsilon_before_correction out"
            problems.append(Problem(("epsilon_before_correction", "bias_correction"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(MomentsConfig):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); defaults of GPT-3 (Brown et al. 2020, app. B)."""

    name: str = _name("adamw")
    beta2: float = _beta2(0.95)


@dataclass(frozen=True, kw_only=True)
class AdamConfig(MomentsConfig):
    """Adam (Kingma & Ba 2015); weight decay is added to the gradient, so the second moment divides it, too."""

    name: str = _name("adam")
    learning_rate: float = _learning_rate(1e-3)
    weight_decay: float = _weight_decay(0.0)


@dataclass(frozen=True, kw_only=True)
class LambConfig(MomentsConfig):
    """LAMB (You et al. 2020); defaults of BERT's 64k batches. ``clip_norm`` 1 is NVLAMB's pre-normalization."""

    name: str = _name("lamb")
    learning_rate: float = _learning_rate(6e-3)
    weight_decay: float = _weight_decay(0.01)
    epsilon: float = _epsilon(1e-6)
    split_qkv: bool = option(True, help="trust ratios of their own for query, key and value; false: one for the three")
    exempt_vectors: bool = option(
        True, help="no decay of biases and norms, and no trust ratio of biases; false: all tensors alike"
    )
    weight_norm_cap: float | None = option(
        None, help="largest norm of weights that a trust ratio sees; none: no cap", above=0
    )


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """Gradient descent without any state; weight decay is added to the gradient."""

    name: str = _name("sgd")
    learning_rate: float = _learning_rate(0.1)
    weight_decay: float = _weight_decay(0.0)


@dataclass(frozen=True, kw_only=True)
class MomentumConfig(SGDConfig):
    """Gradient descent with a heavy ball (Polyak 1964), or Nesterov's (Sutskever et al. 2013)."""

    name: str = _name("momentum")
    learning_rate: float = _learning_rate(0.01)
    momentum: float = option(0.9, help="decay of the sum of gradients", above=0, below=1)
    nesterov: bool = option(False, help="look one step of the momentum ahead")


register("optimizer", "adamw", AdamWConfig)
register("optimizer", "adam", AdamConfig)
register("optimizer", "lamb", LambConfig)
register("optimizer", "sgd", SGDConfig)
register("optimizer", "momentum", MomentumConfig)
