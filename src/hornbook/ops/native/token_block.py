"""Generation on a CPU: pre-norm blocks and logits for one new token of each of a few texts, in one call.

::

    x [B, 1, D] --norm, qkv--> attention over the cache --out, + x--> norm --up, f, down, + --> y [B, 1, D]

Weights have the dtype of the activations and PyTorch's layout; everything between them is fp32. For one token, calling
PyTorch's fifteen operators takes as long as their computation.
"""

import functools
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.library import SUFFIXES, Form, Kernel
from hornbook.ops.native.products import ACTIVATIONS

_WEIGHTS_PER_THREAD = 1 << 18
"""Below this, waiting for another thread takes as long as its share of the work."""


class TokenBlock:
    """A pre-norm block with a cache of keys and values, for `TokenModel`.

    Args:
        parameters: gain and bias of the first norm, weight and bias of query, key and value ``[3·H·K, D]``, of the
            output projection, gain and bias of the second norm, weight and bias of both layers of the feed-forward;
            biases may be None. Norms and biases are cast to fp32; weights are contiguous, all fp32 or all bf16.
        num_heads: H.
        head_size: K.
        activation: of ``products.ACTIVATIONS``.
        epsilons: of both norms.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor | None],
        *,
        num_heads: int,
        head_size: int,
        activation: str,
        epsilons: tuple[float, float],
    ) -> None:
        weights = [tensor for tensor in parameters if tensor is not None and tensor.dim() > 1]
        self.num_weights = sum(weight.numel() for weight in weights)
        numbers = (torch.tensor(epsilon, dtype=torch.float32) for epsilon in epsilons)
        self._tensors = [*map(_as_read, parameters), *numbers]
        sizes = [num_heads, head_size, len(weights[2]), ACTIVATIONS.index(activation)]
        self.words = [*map(_address, self._tensors), *sizes]
        """``Block`` of ``csrc/token_block.cpp``."""


class TokenHead:
    """The final norm and the output projection, for `TokenModel`.

    Args:
        gain_D: of the norm, cast to fp32.
        bias_D: of the norm, cast to fp32.
        table_VD: contiguous, fp32 or bf16.
        epsilon: of the norm.
    """

    def __init__(self, gain_D: Tensor, bias_D: Tensor, table_VD: Tensor, epsilon: float) -> None:
        self._tensors = [_as_read(gain_D), _as_read(bias_D), table_VD, torch.tensor(epsilon, dtype=torch.float32)]
        self.num_weights, self.vocabulary = table_VD.numel(), len(table_VD)
        self.words = torch.tensor([*map(_address, self._tensors), self.vocabulary])
        """``Head`` of ``csrc/token_block.cpp``."""


class TokenModel:
    """Blocks and an optional head, in one call.

    Args:
        form: of the operators.
        blocks: in order; empty: only the head.
        head: None: the result are the hidden states after the last block.
    """

    def __init__(self, form: Form, blocks: Sequence[TokenBlock], head: TokenHead | None = None) -> None:
        self._form, self._blocks, self.head = form, blocks, head
        self._words = torch.tensor([block.words for block in blocks])
        largest = max(part.num_weights for part in (*blocks, head) if part is not None)
        self.most_threads = max(1, largest // _WEIGHTS_PER_THREAD)

    def __call__(self, x_BD: Tensor, caches: Sequence[Tensor] = (), mask_B11S: Tensor | None = None) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of one token of each text, or its hidden states, like ``x``.

        Args:
            x_BD: in the dtype of the weights.
            caches: for each block ``[B, 2, H, S, K]``, fp32, contiguous along K; the call writes the last column.
            mask_B11S: fp32, added to the scores; None for 0.
        """
        x_BD, head = x_BD.contiguous(), self.head
        mask = (0, 0) if mask_B11S is None else (mask_B11S.data_ptr(), mask_B11S.stride(0))
        words = array("q")
        for cache in caches:
            words.extend((cache.data_ptr(), *cache.stride()[:4], cache.shape[3], *mask))
        num_rows, size = x_BD.shape
        out = torch.empty_like(x_BD) if head is None else x_BD.new_empty(num_rows, head.vocabulary, dtype=torch.float32)
        self._form(
            f"tokens_{SUFFIXES[x_BD.dtype]}", x_BD, num_rows, size, len(caches), self._words, words.buffer_info()[0],
            None if head is None else head.words, out, min(torch.get_num_threads(), self.most_threads),
        )  # fmt: skip
        return out


def _as_read(parameter: Tensor | None) -> Tensor | None:
    """Return a matrix unchanged, and a vector in fp32."""
    return parameter if parameter is None or parameter.dim() > 1 else parameter.float().contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _drawn(dtype: torch.dtype, size: int, inner: int, wide: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(size,), (size,), (3 * inner, size), (3 * inner,), (size, inner), (size,), (size,), (size,)]
    shapes += [(wide, size), (wide,), (size, wide), (size,)]
    drawn = [torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for shape in shapes]
    return [tensor.to(dtype) if tensor.dim() > 1 else tensor for tensor in drawn]


def exact_block(
    x_BD: Tensor,
    cache_B2HSK: Tensor,
    mask: Tensor | None,
    parameters: Sequence[Tensor],
    activation: str,
    epsilons: tuple[float, float] = (1e-5, 1e-5),
) -> Tensor:
    """Return the result of a block by its formula, in the dtype of ``x``; update the cache."""
    gain, bias, qkv, qkv_bias, out, out_bias, gain2, bias2, up, up_bias, down, down_bias = parameters
    batch, heads, size = len(x_BD), cache_B2HSK.shape[2], cache_B2HSK.shape[4]
    f = {"none": lambda u: u, "relu": torch.relu, "gelu": functional.gelu}[activation]
    normed = functional.layer_norm(x_BD, gain.shape, gain, bias, epsilons[0])
    q, k, v = functional.linear(normed, qkv, qkv_bias).view(batch, 3, heads, 1, size).unbind(1)
    cache_B2HSK[:, :, :, -1:] = torch.stack((k, v), 1)
    keys, values = cache_B2HSK.unbind(1)
    scores = q @ keys.mT / size**0.5
    mixed = (scores if mask is None else scores + mask).softmax(-1) @ values
    x_BD = x_BD + functional.linear(mixed.flatten(1), out, out_bias)
    normed = functional.layer_norm(x_BD, gain2.shape, gain2, bias2, epsilons[1])
    return x_BD + functional.linear(f(functional.linear(normed, up, up_bias)), down, down_bias)


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64, on sizes that no vector divides."""
    size, heads, head_size, tolerance = 37, 3, 11, 1e-4 if dtype == torch.float32 else 2e-2
    parameters = _drawn(dtype, size, heads * head_size, 45)
    generator = torch.Generator().manual_seed(1)
    x_BD, cache = torch.randn(9, size, generator=generator).to(dtype), torch.randn(9, 2, heads, 20, head_size)
    block = TokenBlock(parameters, num_heads=heads, head_size=head_size, activation="gelu", epsilons=(1e-5, 1e-3))
    head = TokenHead(parameters[0], parameters[1], parameters[2], 1e-5)
    exact_cache, exact = cache.double(), [tensor.double() for tensor in parameters]
    y_BD = exact_block(x_BD.double(), exact_cache, None, exact, "gelu", (1e-5, 1e-3))
    right = functional.layer_norm(y_BD, (size,), exact[0], exact[1], 1e-5) @ exact[2].t()
    pairs = (
        (TokenModel(form, [block], head)(x_BD, [cache]), right),
        (TokenModel(form, [block])(x_BD, [cache]), y_BD),
        (cache, exact_cache),
    )
    return all(torch.allclose(own.double(), other, rtol=tolerance, atol=tolerance) for own, other in pairs)


@functools.cache
def _trial_parameters(dtype: torch.dtype) -> list[Tensor]:
    return _drawn(dtype, 384, 384, 1536)


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    parameters = _trial_parameters(dtype)
    x_BD, cache = torch.ones(1, 384, dtype=dtype), torch.ones(1, 2, 6, 128, 64)
    if form is None:
        exact_block(x_BD, cache.to(dtype), None, [tensor.to(dtype) for tensor in parameters], "relu")
    else:
        block = TokenBlock(parameters, num_heads=6, head_size=64, activation="relu", epsilons=(1e-5, 1e-5))
        TokenModel(form, [block])(x_BD, [cache])


KERNELS = (
    Kernel("token_block_f32", torch.float32, _agrees, _trial),
    Kernel("token_block_bf16", torch.bfloat16, _agrees, _trial),
)
