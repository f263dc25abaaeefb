"""The dtypes of a training, in ``[precision]``: of activations, and of what is stored between uses.

::

    bytes a parameter        weight + gradient + exp_avg + exp_avg_sq
      all fp32                 4    +    4     +    4    +     4        16
      moments bf16             4    +    4     +    2    +     2        12
      all bf16                 2    +    2     +    2    +     2         8
      all bf16, momentum       2    +    2     +    2                    6
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hornbook.config.optimizers import problems_of_steps
from hornbook.config.options import Problem, option

Dtype = Literal["fp32", "bf16", "fp16"]
Compute = Literal["auto", "fp32", "bf16", "fp16"]
LossScaling = Literal["static", "dynamic", "histogram"]
DTYPE_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
_MOMENTS: Final = {"exp_avg": "first_moment", "momentum": "first_moment", "exp_avg_sq": "second_moment"}


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Dtypes of activations, weights, gradients and optimizer state, and the loss scale."""

    compute: Compute = option(
        "auto", help="dtype of the activations; auto: bf16 where the device multiplies it natively, else fp32"
    )
    kernels: Literal["auto", "torch", "native"] = option(
        "auto", help="whose operators compute on a CPU; auto: hornbook's own for bf16 where they are faster"
    )
    partials: Literal["auto", "fp32", "half"] = option(
        "auto",
        help="dtype in which a GPU adds up the parts of a product of bf16 or fp16: fp32; half: their own, which is "
        "faster and less exact; auto: PyTorch's choice",
    )
    weights: Dtype = option(
        "fp32", help="dtype of the stored weights; below fp32 there is no fp32 copy, and updates round stochastically"
    )
    gradients: Dtype = option("fp32", help="dtype in which the gradients of the micro-batches add up")
    first_moment: Dtype = option("fp32", help="dtype of the stored mean of gradients (exp_avg, momentum)")
    second_moment: Dtype = option("fp32", help="dtype of the stored mean of squared gradients (exp_avg_sq)")
    loss_scaling: Literal["auto", "static", "dynamic", "histogram"] = option(
        "auto",
        help="loss scale: static; dynamic, halved when gradients overflow; histogram, halved when some come near the "
        "largest number; auto: dynamic for fp16 activations without a scale of their own, else static",
    )
    loss_scale: float | None = option(
        None,
        help="factor on the loss in the backward pass, the first one unless static; none: 1 if static, else 32768",
        above=0,
    )
    loss_scale_by_step: tuple[str, ...] = option(
        (), help="STEP=SCALE, from that step on, counted from 0; replaces loss_scale"
    )
    loss_scale_interval: int = option(
        2000, help="updates without an overflow after which a dynamic loss scale doubles", minimum=1
    )

    @property
    def effective_loss_scaling(self) -> LossScaling:
        """Kind of loss scale, given or derived."""
        if self.loss_scaling != "auto":
            return self.loss_scaling
        is_given = self.loss_scale is not None or self.loss_scale_by_step
        return "dynamic" if self.compute == "fp16" and not is_given else "static"

    @property
    def is_plain(self) -> bool:
        """Whether everything that is stored between uses is fp32."""
        return {self.weights, self.gradients, self.first_moment, self.second_moment} == {"fp32"}

    def dtype_of_state(self, name: str) -> Dtype:
        """Return the dtype of an optimizer state by its name; fp32 for those of an optimizer of one's own."""
        dtype: Dtype = getattr(self, _MOMENTS[name]) if name in _MOMENTS else "fp32"
        return dtype

    def stored_name(self, name: str) -> str:
        """Return the name under which an optimizer state is stored: in fp16 a mean of squares is stored as its root."""
        return "exp_avg_rms" if name == "exp_avg_sq" and self.second_moment == "fp16" else name

    def bytes_per_parameter(self, states: Iterable[str]) -> int:
        """Return the bytes of a weight, its gradient, and its optimizer ``states``."""
        stored = [self.weights, self.gradients, *map(self.dtype_of_state, states)]
        return sum(DTYPE_BYTES[dtype] for dtype in stored)

    def problems(self) -> list[Problem]:
        """List mistakes in the table, and options that have no effect."""
        problems = []
        if self.partials == "half" and self.compute == "fp32":
            message = "fp32 products have no partial sums in 16 bits; remove partials, or set compute to bf16 or fp16"
            problems.append(Problem(("partials", "compute"), message))
        return [*problems, *self._problems_of_scale()]

    def _problems_of_scale(self) -> list[Problem]:
        if not self.loss_scale_by_step:
            return []
        if self.effective_loss_scaling != "static":
            message = 'loss_scale_by_step is a static loss scale; remove it, or set loss_scaling = "static"'
            return [Problem(("loss_scale_by_step", "loss_scaling"), message)]
        return problems_of_steps("loss_scale_by_step", self.loss_scale_by_step)
