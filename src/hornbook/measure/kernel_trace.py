"""The kernels of a training step on a GPU, without one: their bytes and FLOPs, and where the host waits.

::

    recipe -> FakeTensorMode, device cuda -> the run's own step -> `Launch`es, one or more per operator

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
from hornbook.measure.kernel_launches import Launch, launches_of
from hornbook.measure.memory_timeline import MemoryTimeline
from hornbook.model import LanguageModel, encoder, language_model
from hornbook.ops.native import linear
from hornbook.ops.sequence_groups import group_sequences, space_sequences
from hornbook.ops.spans import Spans, spans_of_sequences, spans_of_windows
from hornbook.ops.triton import programs
from hornbook.ops.triton.programs import TILE
from hornbook.parallel.world import World
from hornbook.samples.sources import complete, open_sources

# fmt: off
_VIEWS: Final = frozenset((
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "split", "unsqueeze", "squeeze",
    "alias", "detach", "as_strided", "unbind", "split_with_sizes", "narrow", "empty", "empty_like", "new_empty",
    "empty_strided", "new_empty_strided", "lift_fresh", "_reshape_alias", "chunk", "unfold", "diagonal", "is_pinned",
    "record_stream", "resize_", "set_", "is_same_size", "_local_scalar_dense", "device",
))
# fmt: on
"""Operators that launch no kernel."""


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


def traced_function(make: Callable[[], Callable[[], object]]) -> Trace:
    """Return the trace of the second call of a function, which ``make`` returns when there is a device; peaks are 0."""
    fake, trace = FakeTensorMode(allow_non_fake_inputs=True), Trace()
    with _device(fake, trace), fake:
        call = make()
        call()
        trace.waits.clear()
        with _Counting(trace):
            call()
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
            self._trace.launches += launches_of(name, args, given, made, on_device, pairs)
        return result


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
        (linear, "PLAIN", (Tensor, FakeTensor)),
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
