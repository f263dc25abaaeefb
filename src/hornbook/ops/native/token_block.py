"""Generation on a CPU: blocks and logits for one new token of each of a few texts, in one call.

::

    x [B, 1, D] --norm, qkv--> attention over the cache --out, + x--> norm --up, f, down, + --> y [B, 1, D]

Weights have the dtype of the activations and PyTorch's layout; everything between them is fp32. For one token, calling
PyTorch's fifteen operators takes as long as their computation.
"""

import functools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.attention import Heads, entering
from hornbook.ops.native.kernels import SUFFIXES, Form
from hornbook.ops.native.layer_norm import exact_norm
from hornbook.ops.native.linear import ACTIVATIONS
from hornbook.ops.native.trials import Kernel

_WEIGHTS_PER_THREAD = 1 << 18
"""Below this, waiting for another thread takes as long as its share of the work."""
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of the new tokens, fp32 ``[B, R/2]``, contiguous; see `hornbook.ops.attention`."""


class TokenLinear(NamedTuple):
    """A linear layer: a contiguous weight ``[num_out, num_in]``, all of a model fp32 or all bf16, and a bias."""

    weight: Tensor
    bias: Tensor | None


class TokenNorm(NamedTuple):
    """A layer norm, or with ``is_rms`` an RMS norm."""

    gain: Tensor | None
    bias: Tensor | None
    epsilon: float
    is_rms: bool = False


class TokenValues(NamedTuple):
    """Embeddings that are added to the values, times 3 σ(gate · x) for each head; contiguous fp32."""

    table: Tensor
    """``[V, G·K]``."""
    gate: Tensor
    """``[G, C]``, of the first columns of attention's input."""


class TokenParts(NamedTuple):
    """The layers of a block; norms and what follows may be None."""

    attention_norm: TokenNorm | None
    qkv: tuple[TokenLinear, ...]
    """Query, key and value as one layer ``[3·H·K, D]``; or query, and key and value ``[2·G·K, D]``."""
    out: TokenLinear
    norm: TokenNorm | None
    up: TokenLinear
    """With ``TokenOptions.is_gated`` gate and up, ``[2·F, D]``."""
    down: TokenLinear
    query_norm: TokenNorm | None = None
    key_norm: TokenNorm | None = None
    attention_output_norm: TokenNorm | None = None
    output_norm: TokenNorm | None = None
    values: TokenValues | None = None
    scales: Tensor | None = None
    """Multiples of the hidden states and of the embedding that enter the block, fp32 ``[2]``."""


class TokenOptions(NamedTuple):
    """How the layers of a block compute."""

    num_heads: int
    head_size: int
    activation: str
    """Of ``linear.ACTIVATIONS``."""
    num_kv_heads: int | None = None
    is_gated: bool = False
    window: int | None = None
    """How many tokens each one attends to, with itself; None: all earlier ones."""
    scale: float | None = None
    """Of the scores; None for 1 / √K."""
    cap: float | None = None
    """Of the scores."""
    norms_all_heads: bool = False
    """Whether the norms of query and key are over all heads rather than over each."""


class TokenBlock:
    """A block with a cache of keys and values, for `TokenModel`; norms and biases are cast to fp32."""

    def __init__(self, parts: TokenParts, options: TokenOptions) -> None:
        layers = [*parts.qkv, parts.out, parts.up, parts.down]
        self.num_weights = sum(layer.weight.numel() for layer in layers)
        groups, inner = options.num_kv_heads or options.num_heads, options.num_heads * options.head_size
        query, key_value = parts.qkv if len(parts.qkv) == 2 else _split(parts.qkv[0], inner)
        scale = options.head_size**-0.5 if options.scale is None else options.scale
        factors = torch.tensor([scale, options.cap or 0.0], dtype=torch.float32)
        self._tensors: list[Tensor | None] = []
        self.words: list[int] = []
        """``Block`` of ``csrc/token_block.cpp``."""
        order: list[TokenNorm | TokenLinear | None] = [
            parts.attention_norm, query, key_value, parts.query_norm, parts.key_norm, parts.out,
            parts.attention_output_norm, parts.norm, parts.up, parts.down, parts.output_norm,
        ]  # fmt: skip
        for part in order:
            tensors, words = _words(part)
            self._tensors += tensors
            self.words += words
        gate_columns = 0 if parts.values is None else parts.values.gate.shape[1]
        others = [*(parts.values or (None, None)), parts.scales, factors]
        self._tensors += others
        self.words += [*map(_address, others), options.num_heads, groups, options.head_size, parts.down.weight.shape[1]]
        self.words += [ACTIVATIONS.index(options.activation), int(options.is_gated), options.window or 0]
        self.words += [int(options.norms_all_heads), gate_columns]


class TokenHead:
    """The final norm and the output projection, for `TokenModel`.

    Args:
        norm: its gain and bias are cast to fp32.
        table_VD: contiguous, fp32 or bf16.
        cap: soft limit of the logits; None: none.
    """

    def __init__(self, norm: TokenNorm, table_VD: Tensor, cap: float | None = None) -> None:
        tensors, words = _words(norm)
        self._tensors = [*tensors, table_VD, torch.tensor(cap or 0.0, dtype=torch.float32)]
        self.num_weights, self.vocabulary = table_VD.numel(), len(table_VD)
        self.words = torch.tensor([*words, *map(_address, self._tensors[-2:]), self.vocabulary])
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

    def __call__(
        self,
        x_BD: Tensor,
        caches: Sequence[Tensor] = (),
        mask_B11S: Tensor | None = None,
        rotations: Sequence[Rotation | None] | None = None,
        tokens_B: Tensor | None = None,
        embedding_BD: Tensor | None = None,
        moved: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of one token of each text, or its hidden states, like ``x``.

        Args:
            x_BD: in the dtype of the weights.
            caches: for each block ``[B, 2, G, S, K]``, fp32, contiguous along K; the call writes the last column.
            mask_B11S: fp32, added to the scores; None for 0.
            rotations: of each block's queries and keys; None for none.
            tokens_B: int64, for embeddings of values.
            embedding_BD: like ``x``, for ``scales``.
            moved: of blocks with shifted keys, see `hornbook.model.decoder.KeyShift`, the columns that move,
                ``[B, 2, G, S, K/4]``, likewise; None: no block has them.
        """
        x_BD, head = x_BD.contiguous(), self.head
        embedding_BD = None if embedding_BD is None else embedding_BD.contiguous()
        tokens_B = None if tokens_B is None else tokens_B.contiguous()
        mask = (0, 0) if mask_B11S is None else (mask_B11S.data_ptr(), mask_B11S.stride(0))
        words = array("q")
        nothing = [None] * len(caches)
        for cache, rotation, own in zip(caches, rotations or nothing, moved or nothing, strict=True):
            words.extend((cache.data_ptr(), *cache.stride()[:4], cache.shape[3], *mask))
            words.extend((0, 0, 0) if rotation is None else (*map(_address, rotation), rotation[0].shape[1]))
            words.extend((0, 0, 0, 0, 0) if own is None else (own.data_ptr(), *own.stride()[:4]))
        num_rows, size = x_BD.shape
        out = torch.empty_like(x_BD) if head is None else x_BD.new_empty(num_rows, head.vocabulary, dtype=torch.float32)
        self._form(
            f"tokens_{SUFFIXES[x_BD.dtype]}", x_BD, embedding_BD, tokens_B, num_rows, size, len(caches), self._words,
            words.buffer_info()[0], None if head is None else head.words, out,
            min(torch.get_num_threads(), self.most_threads),
        )  # fmt: skip
        return out


def _words(part: TokenNorm | TokenLinear | None) -> tuple[list[Tensor | None], list[int]]:
    """Return the tensors and the words of a norm or a linear layer in ``csrc/token_block.cpp``."""
    if part is None:
        return [], [0, 0, 0, 0]
    vectors = (part.bias,) if isinstance(part, TokenLinear) else (part.gain, part.bias)
    as_read = [None if vector is None else vector.float().contiguous() for vector in vectors]
    if isinstance(part, TokenLinear):
        tensors = [part.weight, *as_read]
        return tensors, [*map(_address, tensors)]
    tensors = [*as_read, torch.tensor(part.epsilon, dtype=torch.float32)]
    return tensors, [*map(_address, tensors), int(part.is_rms)]


def _split(stacked: TokenLinear, num_first: int) -> tuple[TokenLinear, TokenLinear]:
    """Return the layer of the first outputs, and that of the others."""
    weight, bias = stacked
    biases = (None, None) if bias is None else (bias[:num_first], bias[num_first:])
    return TokenLinear(weight[:num_first], biases[0]), TokenLinear(weight[num_first:], biases[1])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def drawn_parts(
    dtype: torch.dtype, size: int, options: TokenOptions, wide: int, *, has_biases: bool = True, is_rms: bool = False
) -> TokenParts:
    """Return random layers for checks; GPT's, or with ``is_rms`` those of a decoder with all norms."""
    generator = torch.Generator().manual_seed(0)
    inner, groups = options.num_heads * options.head_size, options.num_kv_heads or options.num_heads

    def layer(num_out: int, num_in: int) -> TokenLinear:
        weight = (torch.randn(num_out, num_in, generator=generator) / num_in**0.5).to(dtype)
        return TokenLinear(weight, torch.randn(num_out, generator=generator) if has_biases else None)

    def norm(columns: int, epsilon: float = 1e-5) -> TokenNorm:
        gain, bias = torch.randn(2, columns, generator=generator)
        return TokenNorm(gain, None if is_rms else bias, epsilon, is_rms)

    kv = groups * options.head_size
    qkv = (layer(3 * inner, size),) if kv == inner else (layer(inner, size), layer(2 * kv, size))
    plain = TokenParts(
        norm(size), qkv, layer(size, inner), norm(size, 0.3), layer(wide * (1 + options.is_gated), size),
        layer(size, wide),
    )  # fmt: skip
    if not is_rms:
        return plain
    columns = min(size, 12)
    values = TokenValues(torch.randn(50, kv, generator=generator), torch.randn(groups, columns, generator=generator))
    widths = (inner, kv) if options.norms_all_heads else (options.head_size, options.head_size)
    return plain._replace(
        query_norm=norm(widths[0]),
        key_norm=norm(widths[1]),
        attention_output_norm=norm(size),
        output_norm=norm(size, 0.2),  # a narrow feed-forward may be near zero, where a norm magnifies rounding
        values=values,
        scales=torch.randn(2, generator=generator),
    )


def exact_block(
    x_BD: Tensor,
    cache_B2GSK: Tensor,
    mask: Tensor | None,
    parts: TokenParts,
    options: TokenOptions,
    rotation: Rotation | None = None,
    tokens_B: Tensor | None = None,
    embedding_BD: Tensor | None = None,
) -> Tensor:
    """Return the result of a block by its formula in float64; update the cache."""
    batch, size, groups = len(x_BD), options.head_size, cache_B2GSK.shape[2]
    if parts.scales is not None and embedding_BD is not None:
        x_BD = parts.scales[0] * x_BD + parts.scales[1] * embedding_BD
    normed = exact_of_norm(x_BD, parts.attention_norm)
    packed = torch.cat([_exact_linear(normed, layer) for layer in parts.qkv], 1).view(batch, -1, size)
    q, k, v = packed.tensor_split((options.num_heads, options.num_heads + groups), 1)
    if parts.values is not None and tokens_B is not None:
        table, gate = (tensor.double() for tensor in parts.values)
        shares_BG = 3 * torch.sigmoid(normed[:, : gate.shape[1]] @ gate.t())
        v = v + shares_BG.unsqueeze(2) * table[tokens_B].view_as(v)
    q, k = (_exact_entry(x, norm, options, rotation) for x, norm in ((q, parts.query_norm), (k, parts.key_norm)))
    cache_B2GSK[:, :, :, -1] = torch.stack((k, v), 1)
    keys, values = (x.repeat_interleave(options.num_heads // groups, 1) for x in cache_B2GSK.unbind(1))
    scores = q.unsqueeze(2) @ keys.mT * (size**-0.5 if options.scale is None else options.scale)
    scores = scores if options.cap is None else options.cap * torch.tanh(scores / options.cap)
    scores = scores if mask is None else scores + mask
    if options.window is not None:
        scores[..., : max(scores.shape[-1] - options.window, 0)] = -torch.inf
    mixed = (scores.softmax(-1) @ values).flatten(1)
    x_BD = x_BD + exact_of_norm(_exact_linear(mixed, parts.out), parts.attention_output_norm)
    u = _exact_linear(exact_of_norm(x_BD, parts.norm), parts.up)
    gate, up = u.chunk(2, 1) if options.is_gated else (u, torch.ones(()))
    f = {"none": lambda u: u, "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu}[options.activation]
    return x_BD + exact_of_norm(_exact_linear(f(gate) * up, parts.down), parts.output_norm)


def _exact_linear(x: Tensor, layer: TokenLinear) -> Tensor:
    return functional.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def exact_of_norm(x: Tensor, norm: TokenNorm | None) -> Tensor:
    """Return the norm of rows in float64; ``x`` if there is no norm."""
    return x if norm is None else exact_norm(x, norm.gain, norm.bias, x, None, norm.is_rms, norm.epsilon)[0]


def _exact_entry(x: Tensor, norm: TokenNorm | None, options: TokenOptions, rotation: Rotation | None) -> Tensor:
    normed = exact_of_norm(x.flatten(1) if options.norms_all_heads else x, norm).view_as(x)
    return normed if rotation is None else entering(normed, Heads(rotation[0].double(), rotation[1].double()), None)


_GPT = TokenOptions(3, 11, "gelu")
_DECODER = TokenOptions(4, 10, "silu", num_kv_heads=2, is_gated=True, window=13, scale=0.4, cap=3.0)


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64, on sizes that no vector divides: blocks of GPT and of a modern decoder."""
    size, tolerance = 37, 1e-4 if dtype == torch.float32 else 2e-2
    generator = torch.Generator().manual_seed(1)
    angles = torch.randn(9, 4, generator=generator)
    for options, rotation, cap in ((_GPT, None, None), (_DECODER, (angles.cos(), angles.sin()), 2.0)):
        parts = drawn_parts(dtype, size, options, 45, is_rms=rotation is not None)
        x_BD = torch.randn(9, size, generator=generator).to(dtype)
        tokens, start = torch.arange(9) * 5, torch.randn(9, size, generator=generator).to(dtype)
        cache = torch.randn(9, 2, options.num_kv_heads or options.num_heads, 20, options.head_size, generator=generator)
        table = torch.randn(75, size, generator=generator).to(dtype)
        assert parts.norm is not None
        block, head = TokenBlock(parts, options), TokenHead(parts.norm, table, cap)
        exact_cache = cache.double()
        y_BD = exact_block(x_BD.double(), exact_cache, None, parts, options, rotation, tokens, start.double())
        right = exact_of_norm(y_BD, parts.norm) @ table.double().t()
        pairs = (
            (
                TokenModel(form, [block], head)(x_BD, [cache], None, [rotation], tokens, start),
                right if cap is None else cap * torch.tanh(right / cap),
            ),
            (TokenModel(form, [block])(x_BD, [cache], None, [rotation], tokens, start), y_BD),
            (cache, exact_cache),
        )
        if not all(torch.allclose(own.double(), other, rtol=tolerance, atol=tolerance) for own, other in pairs):
            return False
    return True


@functools.cache
def _trial_block(dtype: torch.dtype) -> tuple[TokenParts, TokenOptions]:
    options = TokenOptions(6, 64, "relu")
    return drawn_parts(dtype, 384, options, 1536), options


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    parts, options = _trial_block(dtype)
    for batch in (1, 8):  # the time of one row is that of reading the weights, in every form
        x_BD, cache = torch.ones(batch, 384, dtype=dtype), torch.ones(batch, 2, 6, 128, 64)
        if form is None:
            _torch_block(x_BD, cache.to(dtype), parts)
        else:
            TokenModel(form, [TokenBlock(parts, options)])(x_BD, [cache])


def _torch_block(x_BD: Tensor, cache_B2HSK: Tensor, parts: TokenParts) -> None:
    """Compute the trial's block by PyTorch's operators in the dtype of ``x``."""

    def norm(x: Tensor, norm: TokenNorm | None) -> Tensor:
        assert norm is not None and norm.gain is not None and norm.bias is not None
        return functional.layer_norm(x, norm.gain.shape, norm.gain.to(x.dtype), norm.bias.to(x.dtype), norm.epsilon)

    q, k, v = _exact_linear(norm(x_BD, parts.attention_norm), parts.qkv[0]).view(-1, 3, 6, 1, 64).unbind(1)
    cache_B2HSK[:, :, :, -1:] = torch.stack((k, v), 1)
    keys, values = cache_B2HSK.unbind(1)
    x_BD = x_BD + _exact_linear(((q @ keys.mT / 8).softmax(-1) @ values).flatten(1), parts.out)
    active = torch.relu(_exact_linear(norm(x_BD, parts.norm), parts.up))
    x_BD + _exact_linear(active, parts.down)


KERNELS = (
    Kernel("token_block_f32", torch.float32, _agrees, _trial),
    Kernel("token_block_bf16", torch.bfloat16, _agrees, _trial),
)
