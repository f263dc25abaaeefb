"""A tape of what is allocated and freed in the order of time, whose peak is the memory that a step needs.

::

    tape.hold("activations", "blocks.0/up", 4 * unit)     live  4
    tape.use(2 * unit)                                    peak  6, live 4: a temporary tensor
    tape.free("blocks.0/up")                              live  0

The layers of a model write it (`hornbook.plan.layers`), so that a peak is found and not guessed. Sizes are in bytes.
"""

from collections import Counter
from typing import Literal

Kind = Literal["weights", "gradients", "moments", "activations", "workspace"]


class Tape:
    """See above."""

    def __init__(self) -> None:
        self.peak = 0.0
        """The most bytes that were live at once."""
        self.live = 0.0
        self._held: dict[str, tuple[Kind, float]] = {}
        self._moves: list[tuple[Kind, str, float]] = []
        self._num_at_peak = 0

    def hold(self, kind: Kind, name: str, size: float) -> None:
        """Allocate a tensor; one of the same name that is live is replaced once the new one is there."""
        self._move(kind, name, size)
        if name in self._held:
            old_kind, old_size = self._held[name]
            self._move(old_kind, name, -old_size)
        self._held[name] = (kind, size)

    def free(self, *names: str) -> None:
        """Free tensors; those that are not live are passed over."""
        for name in names:
            if name in self._held:
                kind, size = self._held.pop(name)
                self._move(kind, name, -size)

    def use(self, size: float, name: str = "temporary") -> None:
        """Allocate and free a tensor."""
        self._move("workspace", name, size)
        self._move("workspace", name, -size)

    def holds(self, name: str) -> bool:
        """Tell whether a tensor is live."""
        return name in self._held

    def size(self, name: str) -> float:
        """Return the bytes of a live tensor."""
        return self._held[name][1]

    def names(self) -> list[str]:
        """Return the live tensors, the oldest first."""
        return list(self._held)

    def at_peak(self) -> Counter[tuple[Kind, str]]:
        """Return what is live at the peak: bytes by kind and name."""
        live: Counter[tuple[Kind, str]] = Counter()
        for kind, name, size in self._moves[: self._num_at_peak]:
            live[kind, name] += size  # type: ignore[assignment]
        return Counter({key: size for key, size in live.items() if size > 0})

    def _move(self, kind: Kind, name: str, size: float) -> None:
        self._moves.append((kind, name, size))
        self.live += size
        if self.live > self.peak:
            self.peak, self._num_at_peak = self.live, len(self._moves)
