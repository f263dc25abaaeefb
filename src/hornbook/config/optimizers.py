"""The update rules of a recipe's ``[optimizer]`` section, one dataclass a ``name``."""

from dataclasses import dataclass

from hornbook.config.options import option
from hornbook.config.registry import register


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); defaults of GPT-3 (Brown et al. 2020, app. B)."""

    name: str = option("adamw", help="update rule")
    learning_rate: float = option(6e-4, help="peak learning rate", above=0)
    beta1: float = option(0.9, help="decay of the first moment", minimum=0, below=1)
    beta2: float = option(0.95, help="decay of the second moment", minimum=0, below=1)
    epsilon: float = option(1e-8, help="added to the root of the second moment", above=0)
    weight_decay: float = option(0.1, help="decoupled decay of matrices; vectors have none", minimum=0)
    clip_norm: float | None = option(1.0, help="largest global gradient norm; none: no clipping", above=0)


register("optimizer", "adamw", AdamWConfig)
