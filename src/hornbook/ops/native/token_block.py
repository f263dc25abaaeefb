"""Generation on a CPU: one new token of each of a few texts through a pre-norm block in one call, and its logits.

::

    x [B, 1, D] --norm, qkv--> attention over the cache --out, + x--> norm --up, f, down, + --> y [B, 1, D]

Weights have the dtype of the activations and the layout of PyTorch; all that lies between them is fp32. For one token,
PyTorch's fifteen operators take as long to start as to compute.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.library import Form, Kernel
from hornbook.ops.native.operands import SUFFIXES
from hornbook.ops.native.products import ACTIVATIONS

_MOST_ROWS = 8
_WEIGHTS_PER_THREAD = 1 << 18
"""Below, waiting for another thread takes as long as its share of the work."""


class TokenBlock:
    """A pre-norm block with a cache of keys and values.

    Args:
        form: computes it.
        parameters: gain and bias of the first norm, weight and bias of query, key and value ``[3·H·K, D]``, of the
            output projection, gain and bias of the second norm, weight and bias of both layers of the feed-forward;
            biases may be None. Norms and biases are cast to fp32; weights are contiguous, all fp32 or all bf16.
        num_heads: H.
        head_size: K.
        activation: of ``products.ACTIVATIONS``.
        epsilon: of the norms.
    """

    def __init__(
        self,
        form: Form,
        parameters: Sequence[Tensor | None],
        *,
        num_heads: int,
        head_size: int,
        activation: str,
        epsilon: float,
    ) -> None:
        self._form = form
        weights = [tensor for tensor in parameters if tensor is not None and tensor.dim() > 1]
        self._dtype = weights[0].dtype
        self._parameters = [
            tensor if tensor is None or tensor.dim() > 1 else tensor.float().contiguous() for tensor in parameters
        ]
        self._addresses = torch.tensor([0 if tensor is None else tensor.data_ptr() for tensor in self._parameters])
        sizes = [weights[0].shape[1], num_heads, head_size, len(weights[2]), ACTIVATIONS.index(activation)]
        self._sizes, self._epsilon = torch.tensor(sizes), torch.tensor(epsilon, dtype=torch.float32)
        self._most_threads = max(1, sum(weight.numel() for weight in weights) // _WEIGHTS_PER_THREAD)

    def takes(self, x_BTD: Tensor, cache_B2HSK: Tensor, mask: Tensor | None) -> bool:
        """Tell whether a call can compute this: one token a text, a cache in fp32, a mask that is added."""
        is_one = x_BTD.shape[1] == 1 and x_BTD.dtype == self._dtype and cache_B2HSK.dtype == torch.float32
        return is_one and (mask is None or (mask.dtype == torch.float32 and mask.shape[1:3] == (1, 1)))

    def __call__(self, x_B1D: Tensor, cache_B2HSK: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """Return the hidden states behind the block; keys and values are written into the cache's last column."""
        x_B1D = x_B1D.contiguous()
        y_B1D, threads = torch.empty_like(x_B1D), min(torch.get_num_threads(), self._most_threads)
        *strides, _ = cache_B2HSK.stride()
        mask_row = 0 if mask_B11S is None else mask_B11S.stride(0)
        numbers = torch.tensor([*strides, cache_B2HSK.shape[3], mask_row])
        name = f"token_block_{SUFFIXES[self._dtype]}"
        for first in range(0, len(x_B1D), _MOST_ROWS):
            rows = slice(first, first + _MOST_ROWS)
            mask = None if mask_B11S is None else mask_B11S[rows]
            x, cache, y = x_B1D[rows], cache_B2HSK[rows], y_B1D[rows]
            self._form(name, x, len(x), self._addresses, self._sizes, self._epsilon, cache, numbers, mask, y, threads)
        return y_B1D


class TokenLogits:
    """The final norm and the output projection.

    Args:
        form: computes it.
        gain_D: of the norm, cast to fp32.
        bias_D: likewise.
        table_VD: contiguous, fp32 or bf16.
        epsilon: of the norm.
    """

    def __init__(self, form: Form, gain_D: Tensor, bias_D: Tensor, table_VD: Tensor, epsilon: float) -> None:
        self._form, self._table_VD = form, table_VD
        self._gain_D, self._bias_D = gain_D.float().contiguous(), bias_D.float().contiguous()
        self._epsilon = torch.tensor(epsilon, dtype=torch.float32)
        self._most_threads = max(1, table_VD.numel() // _WEIGHTS_PER_THREAD)

    def __call__(self, x_ND: Tensor) -> Tensor:
        """Return logits ``[N, V]``, fp32, of hidden states in the dtype of the table."""
        x_ND, (vocabulary, size) = x_ND.contiguous(), self._table_VD.shape
        logits_NV = x_ND.new_empty(len(x_ND), vocabulary, dtype=torch.float32)
        threads = min(torch.get_num_threads(), self._most_threads)
        for first in range(0, len(x_ND), _MOST_ROWS):
            x, logits = x_ND[first : first + _MOST_ROWS], logits_NV[first:]
            self._form(
                f"token_logits_{SUFFIXES[x_ND.dtype]}", x, len(x), size, self._gain_D, self._bias_D, self._epsilon,
                self._table_VD, vocabulary, logits, threads,
            )  # fmt: skip
        return logits_NV


def _drawn(dtype: torch.dtype, size: int, inner: int, wide: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(size,), (size,), (3 * inner, size), (3 * inner,), (size, inner), (size,), (size,), (size,)]
    shapes += [(wide, size), (wide,), (size, wide), (size,)]
    drawn = [torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for shape in shapes]
    return [tensor.to(dtype) if tensor.dim() > 1 else tensor for tensor in drawn]


def exact_block(
    x_B1D: Tensor, cache_B2HSK: Tensor, mask: Tensor | None, parameters: Sequence[Tensor], activation: str
) -> Tensor:
    """Return what a block computes by its formula, in the dtype of ``x``, with an epsilon of 1e-5; writes the cache."""
    gain, bias, qkv, qkv_bias, out, out_bias, gain2, bias2, up, up_bias, down, down_bias = parameters
    batch, heads, size = len(x_B1D), cache_B2HSK.shape[2], cache_B2HSK.shape[4]
    f = {"none": lambda u: u, "relu": torch.relu, "gelu": functional.gelu}[activation]
    normed = functional.layer_norm(x_B1D, gain.shape, gain, bias, 1e-5)
    q, k, v = functional.linear(normed, qkv, qkv_bias).view(batch, 3, heads, 1, size).unbind(1)
    cache_B2HSK[:, :, :, -1:] = torch.stack((k, v), 1)
    keys, values = cache_B2HSK.unbind(1)
    scores = q @ keys.mT / size**0.5
    mixed = (scores if mask is None else scores + mask).softmax(-1) @ values
    x_B1D = x_B1D + functional.linear(mixed.transpose(1, 2).flatten(2), out, out_bias)
    normed = functional.layer_norm(x_B1D, gain2.shape, gain2, bias2, 1e-5)
    return x_B1D + functional.linear(f(functional.linear(normed, up, up_bias)), down, down_bias)


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64, on sizes that no vector divides."""
    size, heads, head_size, tolerance = 37, 3, 11, 1e-4 if dtype == torch.float32 else 2e-2
    parameters = _drawn(dtype, size, heads * head_size, 45)
    generator = torch.Generator().manual_seed(1)
    x_B1D, cache = torch.randn(9, 1, size, generator=generator).to(dtype), torch.randn(9, 2, heads, 20, head_size)
    block = TokenBlock(form, parameters, num_heads=heads, head_size=head_size, activation="gelu", epsilon=1e-5)
    exact_cache, exact = cache.double(), [tensor.double() for tensor in parameters]
    ours = block(x_B1D, cache, None), cache
    logits = TokenLogits(form, parameters[0], parameters[1], parameters[2], 1e-5)(x_B1D[:, 0])
    right = exact_block(x_B1D.double(), exact_cache, None, exact, "gelu"), exact_cache
    normed = functional.layer_norm(x_B1D[:, 0].double(), (size,), exact[0], exact[1], 1e-5)
    pairs = (*zip(ours, right, strict=True), (logits, normed @ exact[2].t()))
    return all(torch.allclose(own.double(), other, rtol=tolerance, atol=tolerance) for own, other in pairs)


@functools.cache
def _trial_parameters(dtype: torch.dtype) -> list[Tensor]:
    return _drawn(dtype, 384, 384, 1536)


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    parameters = _trial_parameters(dtype)
    x_B1D, cache = torch.ones(1, 1, 384, dtype=dtype), torch.ones(1, 2, 6, 128, 64)
    if form is None:
        exact_block(x_B1D, cache.to(dtype), None, [tensor.to(dtype) for tensor in parameters], "relu")
    else:
        block = TokenBlock(form, parameters, num_heads=6, head_size=64, activation="relu", epsilon=1e-5)
        block(x_B1D, cache, None)


KERNELS = (
    Kernel("token_block_f32", torch.float32, _agrees, _trial),
    Kernel("token_block_bf16", torch.bfloat16, _agrees, _trial),
)
