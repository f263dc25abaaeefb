"""Track the memory of tensors during a step, by kind and module.

::

    with MemoryTimeline(model, home) as timeline:
        train_step(..., on_gradients=timeline.note_gradients)
    timeline.points()   ─► [(0.0, bytes), ..., (1.0, bytes)]
    timeline.at_peak()  ─► [Held("weights", ...), Held("activations", "blocks.0.feed_forward", ...), ...]

A dispatch mode observes every operation, forward and backward, and tracks the storage of each result until it is freed.
Temporary memory of operators, and memory of the process other than tensors, are not observed. Tracking takes some
microseconds per operation, so the step should not be timed.
"""

import time
import weakref
from collections import defaultdict
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hornbook.engine.home import Home
from hornbook.track.profile import Held

_MOST_POINTS = 400
_ROWS = 200


class _Life(NamedTuple):
    """A storage that was allocated during the step."""

    kind: str
    where: str
    bytes: int
    begin: float


class MemoryTimeline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that tracks the tensors of this process.

    Args:
        model: its weights exist from the start; the names of its modules label activations.
        home: identifies optimizer states and gradients.
    """

    def __init__(self, model: nn.Module, home: Home) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._home, self._model = home, model
        self._modules: list[str] = []
        self._lives: dict[int, _Life] = {}
        self._ends: dict[int, float] = {}
        self._gradients: set[int] = set()
        self._numbers: dict[int, int] = {}
        """Numbers of live storages, by their identity."""
        self._updating = False
        shards = home.tensors()
        self._there = {
            "weights": _storages(tensor for tensor in model.parameters()),
            "optimizer state": _storages(shard.values for shard in shards["optimizer"].values()),
        }

    def __enter__(self) -> Self:
        self._begin, self._handles = time.perf_counter(), []
        for name, module in self._model.named_modules():
            if name:
                self._handles.append(
                    module.register_forward_pre_hook(lambda *_, name=name: self._modules.append(name), prepend=True)
                )
                self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._resize = resize = torch.UntypedStorage.resize_

        def followed(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = followed  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for handle in self._handles:
            handle.remove()
        self._end = time.perf_counter()
        self._numbers.clear()

    def _leave(self, *_: Any) -> None:
        self._modules.pop()

    def note_gradients(self, count: int) -> None:
        """Record which storages are gradients; for ``on_gradients`` of `train_step`."""
        self._updating = True
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                storage = _local(parameter.grad).untyped_storage()
                if (number := self._numbers.get(storage._cdata)) is not None:
                    self._gradients.add(number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and track the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not leaf.is_meta:
                self._follow(leaf, func.overloadpacket.__name__)
        return result

    def _follow(self, tensor: Tensor, operator: str) -> None:
        storage = _local(tensor).untyped_storage()
        if storage._cdata in self._numbers or any(storage._cdata in there for there in self._there.values()):
            return
        in_backward = torch._C._current_graph_task_id() != -1
        if self._updating:
            self._start(storage, "temporary", f"update: {operator}")
        elif in_backward and not self._modules:
            self._start(storage, "temporary", f"backward: {operator}")
        else:
            self._start(storage, "activations", self._modules[-1] if self._modules else f"outside modules: {operator}")

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """Track a storage that is resized in place, as FSDP does with gathered weights."""
        self._stop(storage._cdata)
        if storage.nbytes():
            self._start(storage, "gathered weights", "all")

    def _start(self, storage: torch.UntypedStorage, kind: str, where: str) -> None:
        self._numbers[storage._cdata] = len(self._lives)
        self._lives[len(self._lives)] = _Life(kind, where, storage.nbytes(), time.perf_counter())
        weakref.finalize(storage, self._stop, storage._cdata)

    def _stop(self, key: int) -> None:
        if (number := self._numbers.pop(key, None)) is not None:
            self._ends[number] = time.perf_counter()

    def points(self) -> list[tuple[float, int]]:
        """Return (share of the step, bytes) over time: at most a few hundred, each the maximum of an interval."""
        level = sum(size for there in self._there.values() for size in there.values())
        length, levels = self._end - self._begin, [(0.0, level)]
        for at, change in self._changes():
            level += change
            levels.append(((at - self._begin) / length, level))
        found: dict[int, tuple[float, int]] = {}
        for at, size in levels:
            slot = int(at * _MOST_POINTS)
            found[slot] = max(found.get(slot, (at, -1)), (at, size), key=lambda point: point[1])
        return [*found.values(), (1.0, level)]

    def _changes(self) -> list[tuple[float, int]]:
        changes = [(life.begin, life.bytes) for life in self._lives.values()]
        changes += [(at, -self._lives[number].bytes) for number, at in self._ends.items() if at <= self._end]
        return sorted(changes)

    def at_peak(self) -> list[Held]:
        """Return the memory at the peak by kind and module, largest first, with small entries summed."""
        level = best = 0
        peak = self._begin
        for at, change in self._changes():
            level += change
            if level > best:
                best, peak = level, at
        totals = defaultdict[tuple[str, str], int](int)
        for kind, there in self._there.items():
            totals[kind, "all"] = sum(there.values())
        for number, life in self._lives.items():
            if life.begin <= peak < self._ends.get(number, self._end + 1):
                is_gradient = number in self._gradients
                totals[("gradients", "all") if is_gradient else (life.kind, life.where)] += life.bytes
        rows = sorted((Held(*key, size) for key, size in totals.items() if size), key=lambda held: -held.bytes)
        others = sum(held.bytes for held in rows[_ROWS:])
        return rows[:_ROWS] + ([Held("others", f"{len(rows) - _ROWS} places", others)] if others else [])


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return part


def _storages(tensors: Any) -> dict[int, int]:
    """Return the bytes of storages by their identity; tensors on the meta device have none."""
    found = {}
    for tensor in tensors:
        if not tensor.is_meta:
            storage = _local(tensor.detach()).untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found
