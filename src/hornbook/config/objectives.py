"""What a recipe's ``[objective]`` section can ask for, one dataclass a ``name``."""

from dataclasses import dataclass

from hornbook.config.options import option
from hornbook.config.registry import register


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Predict the next token at every position."""

    name: str = option("causal_lm", help="what is learned")


register("objective", "causal_lm", CausalLMConfig)
