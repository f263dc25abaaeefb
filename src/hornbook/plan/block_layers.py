"""Memory of what the parts of a block share: the layers before and after them, which ranks may split, and dropouts."""

from dataclasses import dataclass

from hornbook.config.description import Block as BlockDescription
from hornbook.config.parts import Linear
from hornbook.plan.attention import Tokens
from hornbook.plan.layers import Layers, NormKind


def own_tokens(tokens: Tokens, num_slices: int) -> int:
    """Return how many tokens a rank holds outside of the layers that are cut."""
    return -(-tokens.num // num_slices)


def add_residual(layers: Layers, size: float, kind: NormKind | None = "layer") -> None:
    """Add the gradient ``branch`` to ``gradient``, both with ``size`` elements, of the input of a norm, if any."""
    if kind is None or not layers.compute.adds_in_norms:
        layers.scratch("sum", size)
        layers.tape.free("gradient", "branch")
        layers.tape.free("sum")
    layers.tape.free("branch")
    layers.scratch("gradient", size)


@dataclass(frozen=True)
class BlockLayers:
    """A block of this rank."""

    block: BlockDescription
    index: int
    tokens: Tokens
    num_parts: int
    num_slices: int
    mixes_again: bool

    @property
    def name(self) -> str:
        """Name of the module."""
        return f"blocks.{self.index}"

    @property
    def size(self) -> int:
        """D."""
        return self.block.size

    @property
    def own(self) -> int:
        """Number of the rank's tokens between the split layers."""
        return own_tokens(self.tokens, self.num_slices)

    def gather(self, layers: Layers, result: str) -> None:
        """Compute ``result``, the tokens of all ranks, concatenated."""
        for name in ("slices", result):
            layers.scratch(name, self.tokens.num * self.size)
        layers.tape.free("slices")

    def scatter(self, layers: Layers, result: str) -> None:
        """Compute the rank's slice of the sum of ``result`` over the ranks, which send copies of its slices."""
        layers.scratch("slices", self.tokens.num * self.size)
        layers.scratch(result, self.own * self.size)
        layers.tape.free("slices")

    def enter(self, layers: Layers, linear: Linear, result: str) -> None:
        """Compute ``result``, for all tokens, by a linear layer that is split by outputs."""
        if self.num_slices > 1:
            self.gather(layers, "all tokens")
        num_out = linear.num_out // self.num_parts
        layers.linear(f"{self.name}.{linear.name}", self.tokens.num, self.size, num_out, result)
        layers.tape.free("all tokens")

    def enter_backward(self, layers: Layers, linear: Linear, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input; with slices, the input is gathered once more."""
        whole, num_out = result, linear.num_out // self.num_parts
        if self.num_slices > 1:
            whole, numbers = "all tokens", self.tokens.num * self.size
            layers.scratch(result, numbers)
            self.scatter(layers, result)
            layers.tape.use(numbers * layers.itemsize)
        name = f"{self.name}.{linear.name}"
        layers.linear_backward(name, self.tokens.num, self.size, num_out, gradient, whole, *frees, bias=linear.bias)
        layers.tape.free("all tokens")

    def leave(self, layers: Layers, linear: Linear, result: str) -> None:
        """Compute ``result`` by a linear layer that is split by inputs."""
        num_in = linear.num_in // self.num_parts
        layers.linear(f"{self.name}.{linear.name}", self.tokens.num, num_in, self.size, result)
        if self.num_slices > 1:
            self.scatter(layers, result)

    def leave_backward(self, layers: Layers, linear: Linear, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input, and free ``gradient`` unless it is that of the residual."""
        whole, num_in = gradient, linear.num_in // self.num_parts
        if self.num_slices > 1:
            self.gather(layers, whole := "all gradients")
        name = f"{self.name}.{linear.name}"
        layers.linear_backward(name, self.tokens.num, num_in, self.size, whole, result, *frees, bias=linear.bias)
        layers.tape.free("all gradients", *[gradient] * (gradient != "gradient"))

    def drop(self, layers: Layers, name: str) -> None:
        """Drop elements before a residual addition."""
        layers.dropout(self.own, self.size, name, probability=self.block.dropout)

    def drop_backward(self, layers: Layers) -> str:
        """Return the name of the gradient before the dropout."""
        if self.block.dropout == 0.0:
            return "gradient"
        layers.dropout(self.own, self.size, "dropped gradient", probability=self.block.dropout)
        return "dropped gradient"
