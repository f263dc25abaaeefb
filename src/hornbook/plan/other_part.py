"""Memory of parts of blocks whose descriptions state it (`hornbook.config.parts.Other`)."""

import math

from hornbook.config.parts import Linear, Other
from hornbook.plan.layers import FP32, Layers


def compute(layers: Layers, block: str, part: Other, num_tokens: float, size: int, result: str) -> None:
    """Compute ``result``, ``size`` columns of each token.

    Args:
        layers: the recorder.
        block: name of the block.
        part: its part.
        num_tokens: of the micro-batch.
        size: columns of the hidden states.
        result: name of the result.
    """
    name = f"{block}.{part.name}"
    if layers.compute.weights != layers.compute.dtype:
        linears = [layer.num_weights for layer in part.layers if isinstance(layer, Linear)]
        layers.activation(f"{name}/cast", sum(linears))
    layers.activation(f"{name}/kept", num_tokens * part.kept)
    layers.activation(f"{name}/kept in fp32", num_tokens * part.kept_fp32, FP32)
    layers.tape.use(num_tokens * part.temporary_fp32 * FP32)
    layers.activation(result, num_tokens * size)


def compute_backward(
    layers: Layers, block: str, part: Other, num_tokens: float, size: int, gradient: str, result: str, *frees: str
) -> None:
    """Compute the gradient ``result`` of the input from ``gradient``, and free tensors; see ``compute``."""
    name = f"{block}.{part.name}"
    layers.tape.use(num_tokens * part.temporary_fp32 * FP32)
    layers.scratch(result, num_tokens * size)
    for layer in part.layers:
        num_weights = sum(math.prod(parameter.shape) for parameter in layer.parameters())
        layers.add_gradient(f"{block}.{layer.name}", num_weights, FP32)
    layers.tape.free(f"{name}/cast", f"{name}/kept", f"{name}/kept in fp32", *frees)
    layers.tape.free(*[gradient] * (gradient != "gradient"))
