"""The dtypes of a training, in ``[precision]``: of activations, and of what is stored between steps."""

from dataclasses import dataclass
from typing import Literal

from hornbook.config.optimizers import problems_of_steps
from hornbook.config.options import Problem, option


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Precision of the forward and backward passes; master weights are always fp32."""

    compute: Literal["auto", "fp32", "bf16"] = option(
        "auto", help="dtype of the activations; auto: bf16 where the device multiplies it natively"
    )
    loss_scale: float = option(1.0, help="factor on the loss in the backward pass; fp32 and bf16 need none", above=0)
    loss_scale_by_step: tuple[str, ...] = option(
        (), help="STEP=SCALE, from that step on, counted from 0; replaces loss_scale"
    )

    @property
    def scales_loss(self) -> bool:
        """Whether any step's loss has a factor other than 1."""
        return self.loss_scale != 1.0 or bool(self.loss_scale_by_step)

    def problems(self) -> list[Problem]:
        """List the first mistake in the table."""
        return problems_of_steps("loss_scale_by_step", self.loss_scale_by_step) if self.loss_scale_by_step else []
