"""A tape of allocations and releases in the order of time, whose peak is the memory of a step.

::

    tape.hold("activations", "blocks.0/up", 4 * unit)     live  4
    tape.use(2 * unit)                                    peak  6, live 4: a temporary tensor
    tape.free("blocks.0/up")                              live  0

The layers of a model write it (`hornbook.plan.layers`), so that the peak is not an estimate. Sizes are in bytes.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Literal

Kind = Literal["weights", "gradients", "moments", "activations", "workspace"]

IN_FLIGHT: Final = "in flight"
"""The name of all tensors that are set aside."""


class Tape:
    """See above."""

    def __init__(self) -> None:
        self.peak = 0.0
        """Peak of the live bytes."""
        self.live = 0.0
        self._held: dict[str, tuple[Kind, float]] = {}
        self._moves: list[tuple[Kind, str, float]] = []
        self._num_at_peak = 0
        self.keeps_activations = False
        """Whether freed activations stay live, since the gradients of weights are computed later."""
        self._aside: dict[Hashable, dict[str, tuple[Kind, float]]] = {}

    def hold(self, kind: Kind, name: str, size: float) -> None:
        """Allocate a tensor; a live tensor of the same name is freed afterwards."""
        self._move(kind, name, size)
        if name in self._held:
            old_kind, old_size = self._held[name]
            self._move(old_kind, name, -old_size)
        self._held[name] = (kind, size)

    def free(self, *names: str) -> None:
        """Free tensors; those that are not live are ignored."""
        for name in names:
            if name in self._held and not (self.keeps_activations and self._held[name][0] == "activations"):
                kind, size = self._held.pop(name)
                self._move(kind, name, -size)

    def use(self, size: float, name: str = "temporary") -> None:
        """Allocate a tensor and free it immediately."""
        self._move("workspace", name, size)
        self._move("workspace", name, -size)

    def rename(self, name: str, new: str) -> None:
        """Rename a tensor; one that is not live is ignored."""
        if name in self._held:
            kind, size = self._held[new] = self._held.pop(name)
            self._moves += [(kind, name, -size), (kind, new, size)]

    def set_aside(self, key: Hashable, names: Iterable[str]) -> None:
        """Set live tensors aside under ``key``: they stay live as activations in flight, but their names are free."""
        self._aside[key] = {name: self._held.pop(name) for name in names}
        self._count(self._aside[key], in_flight=True)

    def take_back(self, key: Hashable) -> None:
        """Restore the names of tensors that were set aside under ``key``."""
        found = self._aside.pop(key)
        self._count(found, in_flight=False)
        self._held |= found

    def holds(self, name: str) -> bool:
        """Return whether a tensor is live."""
        return name in self._held

    def size(self, name: str) -> float:
        """Return the bytes of a live tensor."""
        return self._held[name][1]

    def names(self) -> list[str]:
        """Return the names of the live tensors, oldest first."""
        return list(self._held)

    def at_peak(self) -> Counter[tuple[Kind, str]]:
        """Return the live bytes at the peak by kind and name."""
        live: Counter[tuple[Kind, str]] = Counter()
        for kind, name, size in self._moves[: self._num_at_peak]:
            live[kind, name] += size  # type: ignore[assignment]
        return Counter({key: size for key, size in live.items() if size > 0})

    def _count(self, tensors: Mapping[str, tuple[Kind, float]], *, in_flight: bool) -> None:
        """Count live tensors as in flight, or by their names again."""
        sign = 1 if in_flight else -1
        self._moves += [(kind, name, -sign * size) for name, (kind, size) in tensors.items()]
        self._moves.append(("activations", IN_FLIGHT, sign * sum(size for _, size in tensors.values())))

    def _move(self, kind: Kind, name: str, size: float) -> None:
        self._moves.append((kind, name, size))
        self.live += size
        if self.live > self.peak:
            self.peak, self._num_at_peak = self.live, len(self._moves)
