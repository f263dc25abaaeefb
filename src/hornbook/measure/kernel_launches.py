"""What an operator of a step launches on a GPU: kernels, bytes and FLOPs.

::

    embedding_dense_backward   ->  itself, reads and writes;  kernels that sort and join tokens;  sums of rows

PyTorch's operators may launch kernels besides the one that they are named after. Those that take time are launches of
their own, as the sources of PyTorch and FlashAttention have them; `_beside` cites the places. What a product launches
besides (sums of its parts, if cuBLAS splits the depth) is in the share of the peak that products reach.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hornbook.ops.triton.programs import PRODUCT, SPARSE_TILES, SUMMED_ROWS, TILE

# fmt: off
_FILLS: Final = frozenset((
    "fill_", "zero_", "full", "zeros", "ones", "arange", "zeros_like", "full_like", "ones_like", "new_zeros",
    "new_full",
))
# fmt: on
"""Operators that only write."""
_LOOK_UPS: Final = frozenset(("gather", "index_select", "embedding", "index"))
"""Operators that read as much as they write, out of a larger tensor."""
_CHANGED_LISTS: Final = {
    "_fused_adamw_": (0, 2, 3),
    "triton_adamw": (0, 2, 3),
    "_foreach_copy_": (),
    "_foreach_zero_": (),
}
"""Numbers of the arguments that an operator on lists reads and writes, but does not return; (0,) for others."""
_BYTES_OF_A_MULTI_KERNEL: Final = 64 * 65536 * 4 * 5
"""Of PyTorch's operators on lists of tensors, one kernel's share: at most 320 chunks of 64 Ki fp32 elements."""

_FEW_TOKENS: Final = 3072
"""Up to which PyTorch does not sort the tokens of an embedding's gradient."""
_ROWS_OF_A_PART: Final = 10
"""Of an embedding's gradient that one program adds."""

_ROWS_AT_A_TIME: Final = 132
"""Of the cross-entropy: one for each multiprocessor of an H100."""
_CACHE: Final = 25e6
"""Bytes: half of an H100's second-level cache."""

_FLOPS_OF_AN_INSTRUCTION: Final = 13.75
"""Of attention, in the time of one more instruction: 128 per clock of a multiprocessor, 1.7 GHz, 132 of an H100."""
_OF_FLASH_ATTENTION: Final = 8.0
"""Instructions for a weight that attention's share of the peak allows for: as long as its exponential takes."""
_INSTRUCTIONS: Final = {"forward": (9.9, 13.7), "of_queries": (8.2, 10.8), "of_keys": (10.2, 12.8)}
"""Of the main loops for a weight, without and with dropout: sm_90, 16 bits, heads of 64, tiles without hidden pairs."""
_OF_A_MASK: Final = 6.7
"""Further instructions for a weight in tiles that have hidden pairs."""
_OF_AN_END: Final = (0.8, 1.9)
"""The same where tokens do not fill the last tile: in all tiles, and more in those that have hidden pairs."""
_HASHED: Final = (12.4, 7.25)
"""Instructions of the hash of a weight, and of them integer ones, of which a multiprocessor issues half as many."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One operator of a step, or kernels that it launches besides."""

    name: str
    kernels: int = 1
    bytes: float
    """Bytes that it reads and writes; small tables and broadcast dimensions count once."""
    flops: float = 0.0
    """Of matrix products; of attention, also those that take as long as its hashes."""
    dtype: str
    cached: float = 0.0
    """Bytes that Triton's products and the cross-entropy read from the second-level cache."""
    width: int = 64
    """Columns of a tensor core's product, if it has fewer than 64."""


def launches_of(
    name: str, args: Any, given: list[Tensor], made: list[Tensor], on_device: list[Tensor], pairs: tuple[float, float]
) -> list[Launch]:
    """Return what an operator launches.

    Args:
        name: of the operator, without its overload.
        args: its positional arguments.
        given: tensors among its arguments, in their order, those for results excepted.
        made: its results.
        on_device: the tensors of both on the device.
        pairs: of a query and a key in the tiles of Triton's attention, and of them those in tiles with hidden pairs.
    """
    return [_launch(name, args, given, made, on_device, pairs), *_beside(name, given, made)]


def _launch(
    name: str,
    args: Any,
    given: list[Tensor],
    made: list[Tensor],
    on_device: list[Tensor],
    pairs: tuple[float, float],
) -> Launch:
    moved, cached = sum(map(_bytes, on_device)), 0.0
    if name in _FILLS:
        moved = sum(map(_bytes, made))
    elif name == "triton_cross_entropy":
        moved += _bytes(given[0])  # the gradient is written in place of the logits
        is_second = given[-1].dim() == 3  # summaries are given, the first pass
        again = 0.0 if is_second else _bytes(given[0])  # in a second pass, from the cache if the rows in work fit it
        cached = again if _ROWS_AT_A_TIME * again / len(given[0]) <= _CACHE else 0.0
        moved += again - cached
    elif name in _LOOK_UPS:
        moved = 2 * sum(map(_bytes, made))
    elif name in ("triton_embedding", "triton_add_rows"):
        return _rows_launch(name, args, given, made, moved)
    elif name.startswith("nll_loss"):  # an element of each row; the gradient's other ones are zeros
        moved = sum(map(_bytes, made))
    elif name.endswith(("flash_attention_backward", "cudnn_attention_backward")):
        # adds to fp32 sums of the queries' gradients, which another kernel rounds; one before it has read the result y
        moved += 8.0 * made[0].numel() - _bytes(made[0]) - _bytes(given[4])
    is_list = "foreach" in name or name.startswith("_fused_") or name == "triton_adamw"
    if is_list and not made:
        moved += sum(map(_bytes, tree_leaves([args[number] for number in _CHANGED_LISTS.get(name, (0,))])))
    kernels = max(1, -(-int(sum(map(_bytes, given))) // _BYTES_OF_A_MULTI_KERNEL)) if is_list else 1
    if name == "triton_adamw":  # any number of tensors, whose addresses are copied to the device
        kernels = 2
    if "triton_attention" in name:
        return _attention_launch(name, args, made, moved, *pairs)
    if name.startswith("triton") and "gradient" in name:
        kernels = 2  # the second adds up the sums of the first one's programs, in the second-level cache
    if name.startswith("triton_activated"):
        return _activated_launch(name, given, made, moved, kernels)
    if name.startswith("block_sparse"):
        return _block_sparse_launch(name, args, made[0], moved)
    flops = _flops(name, args, given, made)
    typical = given[-1] if name.endswith("mm") else (made or given)[0]  # a product has the rate of its factors
    return Launch(name=name, kernels=kernels, bytes=moved, flops=flops, dtype=_name(typical), cached=cached)


def _beside(name: str, given: list[Tensor], made: list[Tensor]) -> Iterator[Launch]:
    """Yield what PyTorch launches besides the kernel that an operator is named after."""
    if name.endswith(("flash_attention_backward", "cudnn_attention_backward")):
        yield from _beside_attention(given[0], given[1], given[2], made)
    elif name == "_scaled_dot_product_efficient_attention_backward" and given[0].dtype == torch.float32:
        # Σ y dy: a product, its sums and a copy (attention_backward.cu, launchKernel); in 16 bits, the kernel sums
        yield Launch(name="attention_deltas", kernels=3, bytes=4 * _bytes(given[0]), dtype="float32")
    elif name == "native_layer_norm_backward":  # layer_norm_kernel.cu, LayerNormBackwardKernelImplInternal
        read = _bytes(given[0]) + _bytes(given[1])
        yield Launch(name="layer_norm_gains_backward", bytes=read, dtype=_name(given[0]))
    elif name == "embedding_dense_backward":
        yield from _beside_embedding(given[0], given[1], made[0])
    elif name == "sort":  # cub's radix sort: numbers of the elements, counts, their sums, eight bits at a time
        yield Launch(name="sort_passes", kernels=2 + given[0].element_size(), bytes=0.0, dtype=_name(given[0]))
    elif name == "_foreach_norm":  # ForeachReduceOp.cu: zeros for the sums of chunks, and a kernel that adds these
        yield Launch(name="_foreach_norm_sums", kernels=2, bytes=0.0, dtype=_name(given[0]))
    elif "log_softmax" in name and _ROWS_AT_A_TIME * given[0].shape[-1] * given[0].element_size() > _CACHE:
        # SoftMax.cu: rows are read for the maximum, for the sum and for the result, or gradients twice
        again = (1 if "backward" in name else 2) * _bytes(given[0])
        yield Launch(name=f"{name}_again", kernels=0, bytes=again, dtype=_name(given[0]))


def _beside_attention(gradient: Tensor, q: Tensor, k: Tensor, made: list[Tensor]) -> Iterator[Launch]:
    """Yield the kernels before and behind the gradients of FlashAttention.

    The first sums y dy and writes zeros, to which programs of keys add the queries' gradients in fp32; the second
    rounds these (Dao-AILab/flash-attention 0251105a, csrc/flash_attn/src/flash_bwd_launch_template.h, lines 85 and
    124, and flash_bwd_preprocess_kernel.h, lines 131 to 139). With fewer key heads, a sum each of the heads' keys and
    values follows (csrc/flash_attn/flash_api.cpp, lines 937 and 1003). cuDNN, which PyTorch prefers on an H100
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention), launches the same:
    profiles list ``compute_dot_do_o``, ``convert_dq_to_16bits`` and ``fmha_reduce_head``.
    """
    sums, dtype = 4.0 * q.numel(), _name(q)
    row_sums = sums / q.shape[-1]
    yield Launch(name="flash_bwd_dot_do_o", bytes=2 * _bytes(gradient) + sums + row_sums, dtype=dtype)
    yield Launch(name="flash_bwd_convert_dq", bytes=sums + _bytes(made[0]), dtype=dtype)
    if (per_key := q.shape[1] // k.shape[1]) > 1:
        read_and_written = sum((per_key + 1) * _bytes(of) for of in made[1:3])
        yield Launch(name="flash_bwd_sum_heads", kernels=2, bytes=read_and_written, dtype=dtype)


def _beside_embedding(gradient: Tensor, tokens: Tensor, made: Tensor) -> Iterator[Launch]:
    """Yield what adds the rows of equal tokens: PyTorch sorts tokens, and sums at most ten rows at a time.

    EmbeddingBackwardKernel.cu: zeros, a sort (four kernels, and the numbers), positions of different tokens (two),
    numbers of their parts, sums of these (two), number and positions of parts; sums of parts, and sums of these.
    Up to 3,072 tokens, Embedding.cu writes zeros and adds in one kernel.
    """
    if tokens.numel() <= _FEW_TOKENS:
        yield Launch(name="embedding_zeros", bytes=0.0, dtype=_name(made))  # the operator's bytes have them
        return
    parts = min(tokens.numel(), len(made) + tokens.numel() // _ROWS_OF_A_PART)
    row = 4.0 * made.shape[-1]
    yield Launch(name="embedding_sort", kernels=13, bytes=10 * _bytes(tokens), dtype=_name(tokens))
    written = min(tokens.numel(), len(made)) * row
    yield Launch(name="embedding_sums_of_parts", bytes=2 * parts * row + written, dtype=_name(made))


def _rows_launch(name: str, args: Any, given: list[Tensor], made: list[Tensor], moved: float) -> Launch:
    """Return Triton's embedding, or the sums of its gradient's rows: of the tables, only rows that occur."""
    if name == "triton_embedding":  # each token's row; those of positions stay in the second-level cache
        tables = [table for table in args[2:4] if table is not None]
        num_tokens, dtype = made[0].shape[:-1].numel(), _name(made[0])
        rows = num_tokens + sum(min(num_tokens, len(table)) for table in tables[1:])
    else:  # read and written, if all differ, and the parts of those that do not
        tables, (num_tokens,), dtype = given[:1], given[1].shape, _name(given[3])
        rows = 2 * (min(num_tokens, len(given[0])) + 2 * -(-num_tokens // SUMMED_ROWS))
    moved += 4.0 * rows * tables[0].shape[1] - sum(map(_bytes, tables))
    return Launch(name=name, kernels=1 + (name == "triton_add_rows"), bytes=moved, dtype=dtype)


def _activated_launch(name: str, given: list[Tensor], made: list[Tensor], moved: float, kernels: int) -> Launch:
    """Return a product with an activation; each tile reads its rows and its columns from the second-level cache."""
    x, weight = given[:2]
    num_rows, elements = x.shape[:-1].numel(), weight.numel()
    tiles = -(-num_rows // PRODUCT["height"]), elements // x.shape[-1] // PRODUCT["width"]
    read = (tiles[0] * elements + tiles[1] * x.numel()) * x.element_size()
    flops = 2.0 * num_rows * elements
    return Launch(name=name, kernels=kernels, bytes=moved, flops=flops, dtype=_name(made[0]), cached=float(read))


def _block_sparse_launch(name: str, args: Any, made: Tensor, moved: float) -> Launch:
    """Return a product of blocks, in Triton's largest tiles, or in a dense matrix."""
    (num_tokens, *_), values, kernel = args[0].shape, args[1], args[-1]
    rows, _, starts, column_starts, _ = args[2] if "gradient" in name else args[3]  # args[2] is a product's bias
    size, num_blocks, num_rows = args[3] if "weight" in name else values.shape[-1], len(rows), len(starts) - 1
    if kernel != "triton":
        flops = 2.0 * num_tokens * num_rows * (len(column_starts) - 1) * size**2
        return Launch(name=name, kernels=2, bytes=moved, flops=flops, dtype=_name(made))
    tile = SPARSE_TILES[size]
    if "weight" in name:  # the gradient of the output is read once for the blocks that a program joins
        joins = num_rows * -(-num_blocks * size // (num_rows * tile))
        read = num_tokens * size * (num_blocks + joins)
    else:
        read = num_blocks * size * (num_tokens + -(-num_tokens // tile) * size)
    flops, cached = 2.0 * num_tokens * num_blocks * size**2, float(read * made.element_size())
    return Launch(name=name, kernels=1, bytes=moved, flops=flops, dtype=_name(made), cached=cached, width=size)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: Tensor) -> float:
    """Return the bytes of a tensor's elements, those along a broadcast dimension once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sizes) * tensor.element_size() if tensor.numel() else 0


def _flops(name: str, args: Any, given: list[Tensor], made: list[Tensor]) -> float:
    """Return the FLOPs of a matrix product or an attention; 0 for other operators."""
    if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm"):
        return 2.0 * made[0].numel() * given[-2].shape[-1]
    if "attention" in name:
        first = "backward" in name
        q, k = given[first], given[first + 1]
        share = 0.5 if any(argument is True for argument in args) else 1.0
        return (10.0 if first else 4.0) * share * q.numel() * k.shape[-2]
    return 0.0


def _attention_launch(name: str, args: Any, made: list[Tensor], moved: float, attended: float, masked: float) -> Launch:
    """Return Triton's attention, or its gradients, which multiply seven times; its instructions count as FLOPs."""
    is_backward = name == "triton_attention_gradients"
    spans, is_causal, _, window, *_ = args[7:] if is_backward else args[3:]
    num_tokens, *_, num_heads, size = args[4 if is_backward else 0].shape
    dropped = args[3] if is_backward else made[2]
    drops = dropped.shape[1] > 0
    pairs = attended * (0.5 if is_causal else 1.0)
    if window is not None:
        pairs = min(pairs, spans.shape[1] * (window * (1 if is_causal else 2) + TILE))
    loops = ("of_queries", "of_keys") if is_backward else ("forward",)
    instructions = sum(_INSTRUCTIONS[loop][drops] - _OF_FLASH_ATTENTION for loop in loops)
    instructions += max(_HASHED[0], 2 * _HASHED[1]) * (drops and not is_backward)
    of_an_end = _OF_AN_END if num_tokens % TILE else (0.0, 0.0)
    instructions += of_an_end[0] * len(loops)
    hidden = min(masked, pairs) * (_OF_A_MASK + of_an_end[1]) * len(loops)
    flops = pairs * ((14 if is_backward else 4) * size + instructions * _FLOPS_OF_AN_INSTRUCTION)
    flops = num_heads * (flops + hidden * _FLOPS_OF_AN_INSTRUCTION)
    if not is_causal:  # written and read, or read twice; of causal ones, only half of the words
        moved += _bytes(dropped)
    kernels = 2 if is_backward or drops else 1
    kernels += len([each for each in made[:3] if each.numel()]) if is_backward else 0  # sums of programs' sums
    return Launch(name=name, kernels=kernels, bytes=moved, flops=float(flops), dtype=_name(made[0]))
