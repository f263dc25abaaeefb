"""Activation memory: recomputation in the backward pass and offloading to host memory.

::

    recompute = "all"          x -> [block] -> y                       keeps x; the backward pass runs the block again
    recompute = "attention"    qkv -> [softmax(q kᵀ) v] -> out         keeps qkv and the result, not the weights between

Recomputing blocks follows Chen et al. 2016, recomputing attention only Korthikanti et al. 2022. The second forward pass
yields the same bits as the first, since dropout is a hash without random state. The functions wrap layers from outside:
names, parameters and checkpoints do not change, and forward passes without gradients are unaffected.

With a budget, the first layers keep their activations as long as they fit. The activations of a layer are measured
whenever a micro-batch has a new shape; the measured layer keeps them, which needs no more memory than recomputing a
layer.

Offloaded activations are in pinned host memory from the forward pass to the backward pass::

    forward    compute    | layer 1 | layer 2 | layer 3 |        backward   compute   | layer 3 | layer 2 | layer 1 |
               copies out           | layer 1 | layer 2 |                   copies in | layer 2 | layer 1 |

All copies are on one stream of their own, one after the other, and overlap with computation. When the backward pass of
a layer begins, the activations of the layer before it are copied back. Weights and what is computed from one weight
alone, such as its copy in the dtype of the activations, stay on the device, as do integers: layers share them, except
the bits of attention's dropout. Host memory is pinned at its first use and kept.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ReferenceType, finalize, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from hornbook.config import MemoryConfig
from hornbook.engine.spaces import pinned_bytes
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.attention import SelfAttention
from hornbook.ops.tensor_parallel import Slices, current
from hornbook.parallel.ranks import local

Compute = Callable[..., Tensor]
_MIB = 1 << 20


def recompute_layers(model: LanguageModel, config: MemoryConfig) -> None:
    """Make the layers of ``model`` that ``config`` selects recompute activations in the backward pass, in place.

    Raises:
        UserError: only attention is to be recomputed, and a layer does not use hornbook's self-attention.
    """
    budget = None if config.recompute_budget is None else Budget(round(config.recompute_budget * _MIB))
    for number, block in enumerate(model.blocks):
        if config.recompute_layers and number not in config.recompute_layers:
            continue
        owner, name = (block, "forward") if config.recompute == "all" else (_attention_of(block, number), "mix")
        compute = getattr(owner, name)
        setattr(owner, name, recomputed(compute) if budget is None else budget.limited(compute))


def recomputed(compute: Compute) -> Compute:
    """Return ``compute``, a function of tensors and other arguments, such that it keeps only its arguments.

    The second pass runs outside of a block's hooks, so it gets the slices of the first pass.
    """

    def run(*given: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return compute(*given)
        result: Tensor = checkpoint(
            partial(_with_slices, current.slices, compute), *given, use_reentrant=False, preserve_rng_state=False
        )
        return result

    run.is_incremental = True  # type: ignore[attr-defined]  # without gradients, it computes what ``compute`` does
    return run


def _with_slices(slices: Slices | None, compute: Compute, *given: Any) -> Tensor:
    with current.having(slices):
        return compute(*given)


class Budget:
    """The limit, in bytes, of the activations that a rank's layers keep for one micro-batch, first layers first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._layers: list[Compute] = []
        """Layers in the order of their first call; those of other pipeline ranks are never called."""
        self._measured: dict[tuple[torch.Size, torch.dtype], int] = {}
        """Bytes that a layer keeps, by shape and dtype of its input."""

    def limited(self, compute: Compute) -> Compute:
        """Return the layer ``compute`` such that it keeps its activations if they fit and recomputes them otherwise."""
        again = recomputed(compute)
        owner = getattr(compute, "__self__", None)

        def run(x: Tensor, *given: Any) -> Tensor:
            if not torch.is_grad_enabled():
                return compute(x, *given)
            if compute not in self._layers:
                self._layers.append(compute)
            key = (x.shape, x.dtype)
            if key not in self._measured:
                weights = owner.parameters() if isinstance(owner, nn.Module) else ()
                with counted_bytes(x, *map(local, weights)) as sizes:
                    result = compute(x, *given)
                self._measured[key] = sum(sizes.values())
                return result
            fits = (self._layers.index(compute) + 1) * self._measured[key] <= self._limit
            return compute(x, *given) if fits else again(x, *given)

        run.is_incremental = True  # type: ignore[attr-defined]
        return run


@contextmanager
def counted_bytes(*given: Tensor) -> Iterator[dict[int, int]]:
    """Count the bytes that operations in the ``with`` block keep for the backward pass, by address of their memory.

    Parameters do not count, nor does the memory of ``given``, which exists anyway: a layer's input, and its weights,
    of which views or detached copies may be kept.
    """
    sizes: dict[int, int] = {}
    outside = {tensor.untyped_storage().data_ptr() for tensor in given}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() not in outside:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def _attention_of(block: nn.Module, number: int) -> nn.Module:
    for module in block.modules():
        if isinstance(module, SelfAttention):
            return module
    raise UserError(
        f'memory.recompute = "attention": layer {number} does not use hornbook\'s self-attention; set it to "all"'
    )


def offload_layers(model: LanguageModel) -> None:
    """Make the layers of ``model`` keep their activations in host memory, in place."""
    copies = _Copies()
    for block in model.blocks:
        block.forward = _offloaded(block.forward, block, copies)


class _Copies:
    """The stream and the host memory of all layers; on a CPU, copies are immediate and memory is not pinned."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._free: dict[int, list[Tensor]] = {}
        self.last: ReferenceType[_Layer] | None = None

    def on_stream(self, tensor: Tensor) -> AbstractContextManager[Any]:
        """Return a context in which copies of ``tensor``'s device begin after its work so far."""
        if not tensor.is_cuda:
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        return torch.cuda.stream(self._stream)

    def used_by_stream(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor of the computation from being reused before the copies so far end."""
        if tensor.is_cuda:
            tensor.record_stream(self._stream)

    def finished(self, tensor: Tensor) -> Any:
        """Return an event after the copies so far, for ``wait``."""
        return self._stream.record_event() if tensor.is_cuda else None

    def host_memory(self, like: Tensor) -> Tensor:
        """Return host memory for a copy of a tensor, with dense strides as near to its own as possible."""
        free = self._free.setdefault(like.nbytes, [])
        pages = free.pop() if free else _host_bytes(like)
        strides = torch.empty_like(like, device="meta").stride()
        host = pages.view(like.dtype).as_strided(like.shape, strides)
        finalize(host, free.append, pages)
        return host


@dataclass(kw_only=True, weakref_slot=True, slots=True)
class _Layer:
    """One forward pass of a layer."""

    before: "ReferenceType[_Layer] | None"
    kept: "list[ReferenceType[_Kept]]" = field(default_factory=list)

    def fetch(self, copies: _Copies) -> None:
        """Copy the activations back to the device."""
        for reference in self.kept:
            if (kept := reference()) is not None:
                kept.fetch(copies)


@dataclass(kw_only=True, weakref_slot=True, slots=True)
class _Kept:
    """A tensor in host memory."""

    layer: _Layer
    host: Tensor
    device: torch.device
    uses: int = 0
    fetched: Tensor | None = None
    finished: Any = None

    def fetch(self, copies: _Copies) -> None:
        """Begin to copy the tensor to the device, unless it is there."""
        if self.fetched is None and self.uses:
            like = torch.empty(0, device=self.device)
            with copies.on_stream(like):
                self.fetched = self.host.to(self.device, non_blocking=True)
            self.finished = copies.finished(like)

    def tensor(self, copies: _Copies) -> Tensor:
        """Return the tensor for one of its uses; the copy is released after the last one."""
        self.fetch(copies)
        fetched = self.fetched
        assert fetched is not None
        if self.finished is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self.finished)
            fetched.record_stream(stream)
        self.uses -= 1
        if not self.uses:
            self.fetched = None
        return fetched


def _offloaded(compute: Callable[..., Tensor], module: nn.Module, copies: _Copies) -> Callable[..., Tensor]:
    """Return ``compute``, the forward pass of ``module``, such that it keeps activations in host memory."""

    def run(*given: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return compute(*given)
        weights = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
        layer = _Layer(before=copies.last)
        copies.last = ref(layer)
        packed: dict[tuple[Any, ...], tuple[_Kept, Tensor]] = {}

        def pack(tensor: Tensor) -> Tensor | _Kept:
            if not tensor.is_floating_point() or _is_of_weight(tensor, weights):
                return tensor
            place = (
                tensor.untyped_storage()._cdata,
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
            )
            if place not in packed:
                host = copies.host_memory(tensor)
                with copies.on_stream(tensor):
                    host.copy_(tensor.detach(), non_blocking=True)
                copies.used_by_stream(tensor)
                kept = _Kept(layer=layer, host=host, device=tensor.device)
                layer.kept.append(ref(kept))
                packed[place] = kept, tensor.detach()  # which keeps its place from being reused
            kept = packed[place][0]
            kept.uses += 1
            return kept

        def unpack(kept: Tensor | _Kept) -> Tensor:
            if isinstance(kept, Tensor):
                return kept
            before, kept.layer.before = kept.layer.before, None
            tensor = kept.tensor(copies)
            if before is not None and (earlier := before()) is not None:
                earlier.fetch(copies)
            return tensor

        with saved_tensors_hooks(pack, unpack):
            result = compute(*given)
        packed.clear()
        return result

    return run


def _is_of_weight(tensor: Tensor, weights: set[int]) -> bool:
    """Return whether a tensor is one of the weights, given their storages, or computed from one of them alone."""
    if tensor.untyped_storage()._cdata in weights:
        return True
    node = tensor.grad_fn
    while node is not None:
        inputs = [function for function, _ in node.next_functions if function is not None]
        if not inputs:
            variable = getattr(node, "variable", None)
            return variable is not None and variable.untyped_storage()._cdata in weights
        node = inputs[0] if len(inputs) == 1 else None
    return False


def _host_bytes(like: Tensor) -> Tensor:
    return pinned_bytes(like.nbytes) if like.is_cuda else torch.empty(like.nbytes, dtype=torch.uint8)
