"""Initial weights as a function of (seed, parameter name), whatever the topology.

Each parameter is drawn whole, on the CPU, over its logical shape, from a generator of its own, copied into the model,
which may be on any device, and freed, so that the host never holds a second copy of the model::

    ("blocks.3.attention.out.weight", seed 1234)  ->  sha256  ->  generator  ->  normal(0, std)

so that a model cut over ranks or pipeline stages starts from the same numbers as a model in one piece: nothing depends
on the order in which modules are built. The price is that each rank draws what it then cuts.

A model may ask for a normal distribution that ends at so many deviations (``initial_cut``; ``truncated_normal`` in
TensorFlow). It is drawn by the inverse of the distribution, one number a weight, since PyTorch's is 11 times slower
than ``normal_`` on a CPU. What is left has a smaller deviation: 0.88 std where it is cut at 2.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from hornbook.parallel.ranks import box_of, local


class Draw:
    """Fills the parameters of the module called ``prefix``; no weight is further than ``cut`` deviations from zero.

    Buffers are written in place by the module itself, as in ``self.pattern.copy_(torch.arange(8))``.
    """

    def __init__(self, seed: int, prefix: str, cut: float | None = None) -> None:
        self.seed = seed
        self.prefix = prefix
        self.cut = cut

    def normal(
        self, parameter: Tensor, name: str, std: float, *, num_rows: int | None = None, is_uniform: bool = False
    ) -> None:
        """Draw ``parameter`` from N(0, std²), or from what is left of it inside the cut.

        Args:
            parameter: any shape, fp32; written in place.
            name: the parameter's name inside its module.
            std: standard deviation.
            num_rows: rows that exist logically; those after it are padding and become zero.
            is_uniform: whether to draw from the uniform distribution of that deviation instead, within ±√3 std.
        """
        if parameter.is_meta:  # another rank of the pipeline holds it
            return
        rows = parameter.shape[0] if num_rows is None else num_rows
        values = torch.empty((rows, *parameter.shape[1:]))
        random = generator(self.seed, f"{self.prefix}.{name}")
        if is_uniform:
            values.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=random)
        elif self.cut is None:
            values.normal_(0.0, std, generator=random)
        else:
            edge = math.erf(self.cut / math.sqrt(2))
            values.uniform_(-edge, edge, generator=random).erfinv_().mul_(math.sqrt(2) * std)
            values.clamp_(-self.cut * std, self.cut * std)
        begin, shape = box_of(parameter)
        values = values[tuple(slice(first, first + size) for first, size in zip(begin, shape, strict=True))]
        with torch.no_grad():
            own = local(parameter).zero_()
            own[: len(values)].copy_(values)

    def constant(self, parameter: Tensor | None, value: float) -> None:
        """Set every element of ``parameter``, if there is one, to ``value``."""
        if parameter is not None:
            with torch.no_grad():
                local(parameter).fill_(value)


def generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator whose state depends on ``(seed, name)`` alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def initialize(model: nn.Module, seed: int) -> None:
    """Give each parameter and buffer of ``model`` its initial value: each module with a ``draw`` method fills its own.

    A floating-point tensor is filled if no NaN is left in it, another one if it was written in place or replaced.

    Args:
        model: may have ``initial_cut``, a number of standard deviations that no initial weight exceeds.
        seed: of the run.

    Raises:
        TypeError: a parameter or buffer is filled by no ``draw``; it would differ from run to run and from rank to
            rank, since models are built without memory and then get some that holds anything.
    """
    with torch.no_grad():
        for _, tensor in _tensors(model):
            if tensor.is_floating_point():
                local(tensor).fill_(math.nan)
    before = {id(tensor): (tensor, tensor._version) for _, tensor in _tensors(model)}
    for name, module in model.named_modules():
        _draw(model, name, module, seed)
    left = []
    for name, tensor in _tensors(model):
        untouched = id(tensor) in before and before[id(tensor)][1] == tensor._version
        if bool(local(tensor.detach()).isnan().any()) if tensor.is_floating_point() else untouched:
            left.append(name)
    if left:
        raise TypeError(f"no draw method fills {', '.join(left)}: give the module that holds it one")


def fill_unsaved_buffers(model: nn.Module, seed: int) -> None:
    """Fill the buffers that checkpoints do not hold (``persistent=False``), by the ``draw`` of the modules with some.

    The parameters of these modules are drawn, too; the caller copies saved ones over them.
    """
    unsaved = {name for name, _ in model.named_buffers()} - model.state_dict().keys()
    for owner in sorted({name.rpartition(".")[0] for name in unsaved}):
        _draw(model, owner, model.get_submodule(owner), seed)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in named if not tensor.is_meta]


def _draw(model: nn.Module, name: str, module: nn.Module, seed: int) -> None:
    draw = getattr(module, "draw", None)
    if draw is not None:
        draw(Draw(seed, name, getattr(model, "initial_cut", None)))
