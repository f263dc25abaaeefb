"""Tensors that are split over ranks, assembled on one rank each, and handed back in parts.

::

    rank 0: rows 0-3 of A, of B     rank 1: rows 4-7 of A, of B
      -- assembled -->              rank 0: all of A                rank 1: all of B
      -- handed back -->            rank 0: rows 0-3 of both        rank 1: rows 4-7 of both

So a computation that needs whole tensors, such as an orthogonalization, is done once in all, not on every rank. Copies
of a part, as replicas have them, are not sent to the rank that assembles. Each direction is one all-to-all exchange.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.parallel.ranks import Ranks


class Box(NamedTuple):
    """The part of a tensor that a rank holds."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """Return a view of this part of ``whole``."""
        return whole[tuple(slice(first, first + size) for first, size in zip(self.begin, self.shape, strict=True))]

    @property
    def num_elements(self) -> int:
        """Number of elements of the part."""
        return math.prod(self.shape)

    def first_column(self) -> "Box":
        """Return the part of a tensor with one column."""
        return Box((*self.begin[:-1], 0), (*self.shape[:-1], 1))


class Parts:
    """Which part of each tensor each rank holds.

    Args:
        ranks: that hold parts or copies of the tensors.
        own: this rank's parts, by name; all ranks have the same names.
    """

    def __init__(self, ranks: Ranks, own: Mapping[str, Box]) -> None:
        self.ranks, self._own = ranks, dict(own)

    @cached_property
    def boxes(self) -> Mapping[str, Sequence[Box]]:
        """The boxes of each tensor, by rank. Ranks communicate on first use."""
        everywhere: list[dict[str, Box]] = self.ranks.gather(self._own)
        return {name: [own[name] for own in everywhere] for name in self._own}

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of the whole tensor."""
        return _whole_shape(self.boxes[name])


class _Piece(NamedTuple):
    number: int
    box: Box
    source: int
    target: int


class Assembly:
    """The assignment of tensors to the ranks that assemble them, their owners.

    Args:
        ranks: that hold the parts.
        boxes: of each tensor, by rank.
        owners: the rank that assembles each tensor; None: all ranks get about the same number of elements.
    """

    def __init__(self, ranks: Ranks, boxes: Sequence[Sequence[Box]], owners: Sequence[int] | None = None) -> None:
        self._ranks, self._boxes = ranks, boxes
        self._shapes = [_whole_shape(parts) for parts in boxes]
        self.owners = owners or _balanced([shape.numel() for shape in self._shapes], ranks.size)
        """The rank that assembles each tensor."""

    def assemble(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns, those of which it holds all as they are.

        ``parts`` are its parts of all tensors, of one dtype.
        """
        pieces = [
            _Piece(number, box, owner if boxes[owner] == box else boxes.index(box), owner)
            for number, (boxes, owner) in enumerate(zip(self._boxes, self.owners, strict=True))
            for box in dict.fromkeys(boxes)
        ]
        wholes = {
            number: part if part.shape == shape else part.new_empty(shape)
            for number, (part, shape, owner) in enumerate(zip(parts, self._shapes, self.owners, strict=True))
            if owner == self._ranks.rank
        }
        found = self._exchange(pieces, [parts[piece.number] for piece in self._leaving(pieces)], parts[0])
        copied = [(piece, values) for piece, values in found if values is not wholes[piece.number]]
        _copy([piece.box.of(wholes[piece.number]) for piece, _ in copied], [values for _, values in copied])
        return list(wholes.values())

    def hand_back(self, wholes: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """Return this rank's part of each tensor, those of its own tensors as views.

        Args:
            wholes: the tensors that this rank owns.
            like: has their dtype, in which they are sent, and the device.
        """
        pieces = [
            _Piece(number, box, owner, rank)
            for number, (boxes, owner) in enumerate(zip(self._boxes, self.owners, strict=True))
            for rank, box in enumerate(boxes)
        ]
        own = iter(wholes)
        held = {number: next(own) for number, owner in enumerate(self.owners) if owner == self._ranks.rank}
        leaving = [piece.box.of(held[piece.number]) for piece in self._leaving(pieces)]
        found = {piece.number: values for piece, values in self._exchange(pieces, leaving, like)}
        return [found[number] for number in range(len(self._boxes))]

    def _leaving(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Return the pieces that this rank has, in the order of their targets."""
        return sorted((piece for piece in pieces if piece.source == self._ranks.rank), key=lambda piece: piece.target)

    def _exchange(
        self, pieces: Sequence[_Piece], leaving: Sequence[Tensor], like: Tensor
    ) -> list[tuple[_Piece, Tensor]]:
        """Send the tensors of ``_leaving(pieces)``; return the pieces for this rank, its own as they are."""
        rank, own = self._ranks.rank, list(zip(self._leaving(pieces), leaving, strict=True))
        stays = [(piece, values) for piece, values in own if piece.target == rank]
        if all(piece.source == piece.target for piece in pieces):
            return stays
        leaves = [(piece, values) for piece, values in own if piece.target != rank]
        arriving = sorted(
            (piece for piece in pieces if piece.target == rank != piece.source), key=lambda piece: piece.source
        )
        sent, received = ([0] * self._ranks.size for _ in range(2))
        for piece, values in leaves:
            sent[piece.target] += values.numel()
        for piece in arriving:
            received[piece.source] += piece.box.num_elements
        flat = like.new_empty(sum(sent))
        _copy(_views(flat, [piece.box for piece, _ in leaves]), [values for _, values in leaves])
        flat = self._ranks.exchange(flat, sent, received)
        return [*stays, *zip(arriving, _views(flat, [piece.box for piece in arriving]), strict=True)]


def _views(flat: Tensor, boxes: Sequence[Box]) -> list[Tensor]:
    """Return the parts of ``flat`` that hold ``boxes`` one after the other."""
    parts = torch.split(flat, [box.num_elements for box in boxes])
    return [part.view(box.shape) for part, box in zip(parts, boxes, strict=True)]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors to others, on a GPU in one kernel if all are dense."""
    if targets:
        torch._foreach_copy_(targets, sources)


def _whole_shape(boxes: Sequence[Box]) -> torch.Size:
    ends = [[first + size for first, size in zip(box.begin, box.shape, strict=True)] for box in boxes]
    return torch.Size(map(max, zip(*ends, strict=True)))


def _balanced(sizes: Sequence[int], num_ranks: int) -> list[int]:
    """Return a rank for each size: from the largest on, that with the smallest sum so far."""
    sums, owners = [0] * num_ranks, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owners[number] = min(range(num_ranks), key=lambda rank: sums[rank])
        sums[owners[number]] += sizes[number]
    return owners
