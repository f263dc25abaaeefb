"""The kernels of a training step on a GPU, without one: their bytes and FLOPs, and where the host waits.

::

    recipe -> FakeTensorMode, device cuda -> the run's own step -> one `Launch` per operator

Tensors have shapes, dtypes and a device, but no values. Operators that mix devices raise errors, as on a GPU. A build
of PyTorch without CUDA needs `hornbook.measure.fake_cuda.load_device`.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hornbook.config import Recipe
from hornbook.engine import build_training as building
from hornbook.engine.step import train_step
from hornbook.measure.memory_timeline import MemoryTimeline
from hornbook.model import LanguageModel, encoder, language_model
from hornbook.ops.sequence_groups import group_sequences, space_sequences
from hornbook.ops.spans import Spans, spans_of_sequences, spans_of_windows
from hornbook.ops.triton import programs
from hornbook.ops.triton.programs import PRODUCT, SPARSE_TILES, TILE
from hornbook.parallel.world import World
from hornbook.samples.sources import complete, open_sources

# fmt: off
_VIEWS: Final = frozenset((
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "split", "unsqueeze", "squeeze",
    "alias", "detach", "as_strided", "unbind", "split_with_sizes", "narrow", "empty", "empty_like", "new_empty",
    "empty_strided", "new_empty_strided", "lift_fresh", "_reshape_alias", "chunk", "unfold", "diagonal", "is_pinned",
    "record_stream", "resize_", "set_", "is_same_size", "_local_scalar_dense", "device",
))
"""Operators that launch no kernel."""
_FILLS: Final = frozenset((
    "fill_", "zero_", "full", "zeros", "ones", "arange", "zeros_like", "full_like", "ones_like", "new_zeros",
    "new_full",
))
# fmt: on
"""Operators that only write."""
_LOOK_UPS: Final = frozenset(("gather", "index_select", "embedding", "index"))
"""Operators that read as much as they write, out of a larger tensor."""
_CHANGED_LISTS: Final = {"_fused_adamw_": (0, 2, 3), "_foreach_copy_": (), "_foreach_zero_": ()}
"""Numbers of the arguments that an operator on lists reads and writes, but does not return; (0,) for others."""
_BYTES_OF_A_MULTI_KERNEL: Final = 64 * 65536 * 4 * 5
"""Of PyTorch's operators on lists of tensors, one kernel's share: at most 320 chunks of 64 Ki fp32 elements."""

_ROWS_AT_A_TIME: Final = 132
"""Of the cross-entropy: one for each multiprocessor of an H100."""
_CACHE: Final = 25e6
"""Bytes: half of an H100's second-level cache."""

_FLOPS_OF_AN_INSTRUCTION: Final = 13.75
"""Of attention, in the time of one more instruction: 128 per clock of a multiprocessor, 1.7 GHz, 132 of an H100."""
_OF_FLASH_ATTENTION: Final = 8.0
"""Instructions for a weight that attention's share of the peak allows for: as long as its exponential takes."""
_INSTRUCTIONS: Final = {"forward": (10.9, 14.6), "of_queries": (9.0, 11.7), "of_keys": (10.7, 14.0)}
"""Of the main loops for a weight, without and with dropout: sm_90, 16 bits, heads of 64, tiles without hidden pairs."""
_OF_A_MASK: Final = 8.3
"""Further instructions for a weight in tiles that have hidden pairs."""
_HASHED: Final = (12.5, 7.4)
"""Instructions of the hash of a weight, and of them integer ones, of which a multiprocessor issues half as many."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One operator of a step."""

    name: str
    kernels: int
    bytes: float
    """Bytes that it reads and writes; small tables and broadcast dimensions count once."""
    flops: float
    """Of matrix products; of attention, also those that take as long as its hashes."""
    dtype: str
    cached: float = 0.0
    """Bytes that Triton's products and the cross-entropy read from the second-level cache."""
    width: int = 64
    """Columns of a tensor core's product, if it has fewer than 64."""


@dataclass(kw_only=True)
class Trace:
    """What one step does."""

    num_tokens: int = 0
    peak: int = 0
    """Most bytes of tensors on the device at a time, without those inside of operators."""
    launches: list[Launch] = field(default_factory=list)
    attended: float = 0.0
    """Pairs of a query and a key in the tiles of Triton's attention, for one micro-batch; twice as many if causal."""
    masked: float = 0.0
    """Of them, those in tiles that have hidden pairs; those of a causal diagonal are all counted."""
    waits: list[str] = field(default_factory=list)
    """The places at which the host waits for the device, file and line, in their order."""


def traced_step(recipe: Recipe) -> Trace:
    """Return the trace of a training step of one process, the second one of a run.

    Args:
        recipe: with its data, or synthetic ones.
    """
    sources = open_sources(recipe)
    recipe = complete(recipe, sources)
    recipe = replace(recipe, training=replace(recipe.training, compile="none"))  # the compiler would hide operators
    samples = building.build_samples(recipe, sources, on_cpu=False)
    with building.build_loader(recipe, samples, World(), prefetch=0) as loader:
        batches = [next(loader) for _ in range(2)]
    fake, trace = FakeTensorMode(allow_non_fake_inputs=True), Trace()
    with _device(fake, trace), fake:
        state, config = building.build_training(recipe, 100, World(device=torch.device("cuda", 0)))
        state.model.train()
        train_step(state, batches[0], config)
        trace.waits.clear()
        # The timeline puts hooks on modules, which would stop fused kernels, so it gets the weights without them.
        weights = nn.ParameterList(state.model.parameters())
        with MemoryTimeline(weights, state.home) as timeline, _Counting(trace):
            train_step(state, batches[1], config)
    trace.peak = sum(held.bytes for held in timeline.at_peak())
    trace.num_tokens = sum(batch["tokens"].numel() for batch in batches[1])
    return trace


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds a launch to ``trace`` for each operator on the device."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        read = {key: value for key, value in (kwargs or {}).items() if key != "out"}
        given, made = (
            [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in ((args, read), result)
        )
        on_device = [tensor for tensor in given + made if tensor.device.type == "cuda"]
        if on_device and name not in _VIEWS:
            pairs = (self._trace.attended, self._trace.masked)
            self._trace.launches.append(_launch(name, args, given, made, on_device, pairs))
        return result


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
        again = _bytes(given[0])  # read in a second pass, from the second-level cache if the rows in work fit it
        cached = again if _ROWS_AT_A_TIME * again / len(given[0]) <= _CACHE else 0.0
        moved += again - cached
    elif name in _LOOK_UPS:
        moved = 2 * sum(map(_bytes, made))
    is_list = "foreach" in name or name.startswith("_fused_")
    if is_list and not made:
        moved += sum(map(_bytes, tree_leaves([args[number] for number in _CHANGED_LISTS.get(name, (0,))])))
    kernels = max(1, -(-int(sum(map(_bytes, given))) // _BYTES_OF_A_MULTI_KERNEL)) if is_list else 1
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
    (num_tokens, *_), values, (rows, _, starts, column_starts, _), kernel = args[0].shape, args[1], args[2], args[-1]
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
    *_, num_heads, size = args[4 if is_backward else 0].shape
    dropped = args[3] if is_backward else made[2]
    drops = dropped.shape[1] > 0
    pairs = attended * (0.5 if is_causal else 1.0)
    if window is not None:
        pairs = min(pairs, spans.shape[1] * (window * (1 if is_causal else 2) + TILE))
    loops = ("of_queries", "of_keys") if is_backward else ("forward",)
    instructions = sum(_INSTRUCTIONS[loop][drops] - _OF_FLASH_ATTENTION for loop in loops)
    instructions += max(_HASHED[0], 2 * _HASHED[1]) * (drops and not is_backward)
    hidden = min(masked, pairs) * _OF_A_MASK * len(loops)
    flops = pairs * ((14 if is_backward else 4) * size + instructions * _FLOPS_OF_AN_INSTRUCTION)
    flops = num_heads * (flops + hidden * _FLOPS_OF_AN_INSTRUCTION)
    if not is_causal:  # written and read, or read twice; of causal ones, only half of the words
        moved += _bytes(dropped)
    kernels = 2 if is_backward or drops else 1
    return Launch(name=name, kernels=kernels, bytes=moved, flops=float(flops), dtype=_name(made[0]))


def _pairs_of_tiles(spans_4N: Tensor) -> tuple[float, float]:
    """Return the pairs in the tiles that encoders' attention computes, and of them those in tiles with hidden pairs."""
    attended = masked = 0.0
    for first_n, end_n in zip(*(bounds_N.split(TILE) for bounds_N in spans_4N[:2]), strict=True):
        reach = float(end_n.max() - first_n.min())
        attended += len(first_n) * reach
        is_one = len(first_n) == TILE and bool((first_n == first_n[0]).all() and (end_n == end_n[0]).all())
        masked += len(first_n) * (reach % TILE if is_one else reach)
    return attended, masked


@contextmanager
def _device(fake: Any, trace: Trace) -> Iterator[None]:
    """Make PyTorch report a GPU in the ``with`` block, and note in ``trace`` where values of tensors are read."""

    def reads(name: str, value: Any) -> Callable[..., Any]:
        def read(tensor: Any) -> Any:
            if tensor.device.type == "cuda":
                trace.waits.append(_place())
            return [value] * tensor.numel() if name == "tolist" and tensor.dim() else value

        return read

    def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            with unset_fake_temporarily():
                made = function(*given[:-1], torch.device("cpu"))
            return {
                name: fake.from_tensor(tensor).to(given[-1]) if isinstance(tensor, Tensor) else tensor
                for name, tensor in made.items()
            }

        return call

    def of_sequences(firsts_S: Tensor, lengths_S: Tensor, num_tokens: int, device: torch.device) -> Spans:
        with unset_fake_temporarily():
            spans_4N, longest = spans_of_sequences(firsts_S, lengths_S, num_tokens, torch.device("cpu"))
            trace.attended, trace.masked = _pairs_of_tiles(spans_4N)
        return Spans(fake.from_tensor(spans_4N).to(device), longest)

    def of_windows(positions_BT: Tensor, documents_BT: Tensor | None) -> Spans:
        trace.attended = float(positions_BT.numel() * positions_BT.shape[1])  # documents have no values here
        trace.masked = float(positions_BT.numel() * TILE)
        return spans_of_windows(positions_BT, documents_BT)

    changes: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (torch.cuda, "get_device_name", lambda device=None: "NVIDIA H100 80GB HBM3"),
        (FakeTensorMode, "avoid_device_init", True),  # constants, too, have no values on the device
        (Tensor, "pin_memory", lambda tensor: tensor),
        (building, "initialize", lambda model, seed: None),
        (LanguageModel, "allocate", _allocate),
        (encoder, "group_sequences", on_host(group_sequences)),
        (encoder, "space_sequences", on_host(space_sequences)),
        (encoder, "spans_of_sequences", of_sequences),
        (language_model, "spans_of_windows", of_windows),
        (functional, "scaled_dot_product_attention", _attention),
        (programs, "why_not", lambda device: None),
        *((FakeTensor, name, reads(name, 1.0)) for name in ("tolist", "__float__", "item")),
        (FakeTensor, "__bool__", reads("__bool__", False)),
        (FakeTensor, "__int__", reads("__int__", 1)),
    ]
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _allocate(model: LanguageModel, device: torch.device, parts: Any = None) -> None:
    """Do what `LanguageModel.allocate` does: PyTorch cannot change a parameter to one without values in place."""
    new: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in new:
                new[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=device))
            setattr(module, name, new[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    model.tie()


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False, **options: Any
) -> Tensor:
    """Return what PyTorch's fused attention does on a GPU; a build without CUDA cannot choose its kernel."""
    fused: Tensor
    if attn_mask is None and q.dtype != torch.float32:
        fused = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]
        return fused
    if attn_mask is not None:
        bias = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(attn_mask.logical_not(), -math.inf)
        attn_mask = bias.expand(*q.shape[:3], k.shape[2])
    fused = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, 0.0, is_causal)[0]
    return fused


def _place() -> str:
    """Return file and line of the innermost function of hornbook that calls the caller."""
    frame: Any = sys._getframe(2)
    while frame is not None and "/hornbook/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename.rpartition('/hornbook/')[2]}:{frame.f_lineno}"
