"""A home outside of the device: weights, gradients and optimizer state in files or in the host's memory.

::

    fetched(parts)    embedding, blocks.0, ... one part's weights on the device, the next one's on their way
    keep(part, ..)    its gradients summed over ranks, their norms noted, written while the next part is computed
    slots(tensor)     weight, gradient and moments of one tensor on the device, the next one's on their way

The model's parameters and their ``.grad`` are at rest: tensors on files, or in pinned memory. Whatever looks at the
model still finds them, and checkpoints and initial weights go through them a tensor at a time. What computes are copies
on the device. Storage dtypes are those of ``NarrowHome``.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hornbook.config import Recipe
from hornbook.engine.home import Held, Shards
from hornbook.engine.narrow_home import NarrowHome, part_of
from hornbook.engine.spaces import Lane, Space
from hornbook.model import LanguageModel
from hornbook.optim.slots import Slot, norms_of
from hornbook.optim.updates import Update
from hornbook.parallel.device import DTYPES
from hornbook.parallel.ranks import box_of, is_cut, local
from hornbook.parallel.world import World

_ALIGNMENT = 64
_WEIGHT, _GRADIENT = "weight", "gradient"
_TIED = "head.table"
"""A tied head's gradient of the token table, which waits for that of the embedding."""

Leaves = dict[str, Tensor]
"""A part's weights on the device, by their names inside of the part; gradients add up in their ``.grad``."""


class Place(NamedTuple):
    """Where a tensor lies in a space."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """Where the next tensor may begin."""
        size = math.prod(self.shape) * self.dtype.itemsize
        return self.offset + -(-size // _ALIGNMENT) * _ALIGNMENT


class PhasedHome(NarrowHome):
    """See above. A part, as the step sees it, is one tensor.

    Args:
        model: on the meta device; its parameters become the weights at rest, to be filled in.
        update: names the optimizer's state, which is zero.
        recipe: gives the dtypes and the seed.
        world: gives the device, and the ranks that add up gradients or hold shards.
        space: for the state, all of which is reserved.
        rows: space for the hidden states between layers, which the executor lays out.
    """

    def __init__(
        self, model: LanguageModel, update: Update, recipe: Recipe, world: World, space: Space, rows: Space
    ) -> None:
        self._space, self.rows, self._places = space, rows, lay_out(model, update, recipe)
        space.reserve(max(place.end for place in self._places.values()))
        for name, parameter in list(model.own_parameters()):
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, nn.Parameter(_like(parameter, self._at_rest(name, _WEIGHT))))
        model.tie()
        super().__init__(model, update, recipe, world)
        self._by_name = {held.name: held for held in self._held}
        self._parts = {name: {name: 0} for name in self._by_name}
        self.parts = tuple(self._parts)
        self.reader, self.writer = Lane("weights-in"), Lane("weights-out")
        self._moved_before = self._moved()
        self._norms: dict[str, Tensor] = {}
        """Of the gradients that are kept, by name."""
        self._has_tied = False
        self._ahead: tuple[str, Future[dict[str, Tensor]]] | None = None
        """The tensor whose slot is on its way."""

    def restart_traffic(self) -> None:
        """Let a step's ``traffic`` begin here."""
        self._moved_before = self._moved()

    def _moved(self) -> tuple[int, int]:
        spaces = (self._space, self.rows)
        return sum(space.num_read for space in spaces), sum(space.num_written for space in spaces)

    def _at_rest(self, name: str, kind: str) -> Tensor:
        return self._space.at_rest(*self._places[name, kind])

    def _zeros(self, model: LanguageModel, update: Update, where: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
        """Return the moments at rest."""
        states: dict[str, dict[str, Tensor]] = {name: {} for name, _ in model.own_parameters()}
        for name, kind in self._places:
            if kind not in (_WEIGHT, _GRADIENT):
                states[name][kind] = self._at_rest(name, kind)
        return states

    def fetched(self, parts: Sequence[str]) -> Generator[Leaves, None, None]:
        """Yield the weights of each part on the device, those of the next one being on their way."""
        self.settle()
        reads = [partial(self._load, self._names_in(part)) for part in parts]
        with closing(self.reader.ahead(reads)) as loaded:
            yield from map(self._to_leaves, parts, loaded)

    def _names_in(self, part: str) -> dict[str, str]:
        """Return the names of a part's parameters, by their names inside of the part; a tied head has the table."""
        names = {name[len(part) + 1 :]: name for name in self._by_name if part_of(name) == part}
        return names | ({"table": "embedding.tokens"} if part == "head" and self.model.head.is_tied else {})

    def _load(self, names: Mapping[str, str]) -> dict[str, Tensor]:
        return {key: self._space.load(*self._places[name, _WEIGHT]) for key, name in names.items()}

    def _to_leaves(self, part: str, loaded: dict[str, Tensor]) -> Leaves:
        leaves: Leaves = {}
        for key, name in self._names_in(part).items():
            whole = _whole(self._by_name[name].parameter, loaded.pop(key))
            leaves[key] = nn.Parameter(whole)
            if whole.dtype != self._gradient_dtype:
                leaves[key].grad_dtype = self._gradient_dtype
        return leaves

    def keep(self, part: str, leaves: Leaves) -> None:
        """Store the sums over data-parallel ranks of the gradients that backward passes left in ``leaves``.

        These are emptied, so that their memory is free. A tied table's gradient from the head waits, not summed, for
        that from the embedding, which comes later.
        """
        gradients = {f"{part}.{key}": leaf.grad for key, leaf in leaves.items()}
        leaves.clear()
        tied = gradients.pop(_TIED) if part == "head" and self.model.head.is_tied else None
        if part == "embedding" and self._has_tied:
            self.settle()
            table, own = self._space.load(*self._places[_TIED, _GRADIENT]), gradients["embedding.tokens"]
            gradients["embedding.tokens"] = table if own is None else own.add_(table)
        kept = self._summed(gradients)
        if tied is not None:
            kept[_TIED], self._has_tied = {_GRADIENT: tied}, True
        self.writer.behind(partial(self._save, kept, [_GRADIENT]))

    def _summed(self, gradients: dict[str, Tensor | None]) -> dict[str, dict[str, Tensor]]:
        """Return what this rank keeps of the sums, and note their norms; a rank without a gradient adds zeros."""
        ranks, kept = self._world.data, dict[str, dict[str, Tensor]]()
        counts = ranks.sum_integers([gradient is not None for gradient in gradients.values()])
        for name, count in zip(list(gradients), counts, strict=True):
            gradient, parameter = gradients.pop(name), self._by_name[name].parameter
            if not count:
                continue
            if gradient is None:
                gradient = torch.zeros(parameter.shape, dtype=self._gradient_dtype, device=self._world.device)
            kept[name] = {_GRADIENT: _own_part(parameter, ranks.sum_tensor(gradient))}
            parameter.grad = _like(parameter, self._at_rest(name, _GRADIENT))
        held = [self._by_name[name] for name in kept]
        shaped = [_shaped(own, kept[own.name][_GRADIENT]).float() for own in held]
        if held:
            norms = norms_of(shaped, [own.holders for own in held])
            self._norms.update((own.name, norms[n : n + 1]) for n, own in enumerate(held))
        return kept

    def _save(self, tensors: dict[str, dict[str, Tensor]], kinds: Sequence[str]) -> None:
        """Write tensors by name and kind, and forget each."""
        for name in list(tensors):
            values = tensors.pop(name)
            for kind in kinds:
                self._space.save(self._places[name, kind].offset, values[kind])

    def settle(self) -> None:
        """Wait until all is written."""
        self.writer.settle()

    def gradient_norms(self, part: str) -> Tensor:
        """See ``Home``."""
        norms = self._norms.get(part)
        return torch.zeros(0, device=self._world.device) if norms is None else norms / self._divisor

    @contextmanager
    def _stored(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``NarrowHome``; what was opened is written while the next tensor is updated."""
        if part not in self._norms:
            yield []
            return
        held, stored = self._by_name[part], self._arrived(part)
        gradient = self._opened(_shaped(held, stored.pop(_GRADIENT)), self._world.device)
        if self._divisor != 1.0:
            gradient.div_(self._divisor)
        yield [
            Slot(
                name=part,
                parameter=stored[_WEIGHT].view(gradient.shape),
                gradient=gradient,
                state={key: tensor.view(gradient.shape) for key, tensor in stored.items() if key != _WEIGHT},
                role=held.role,
                num_parts=held.num_parts,
                holders=held.holders,
            )
        ]
        self.writer.behind(partial(self._save, {part: stored}, list(stored)))

    def _arrived(self, name: str) -> dict[str, Tensor]:
        """Return all that is stored of a tensor, on the device, and begin to read the next one that has a gradient."""
        ahead, self._ahead = self._ahead, None
        values = ahead[1].result() if ahead and ahead[0] == name else self._load_all(name)
        later = self.parts[self.parts.index(name) + 1 :]
        following = next((other for other in later if other in self._norms), None)
        if following is not None:
            self._ahead = following, self.reader.begin(partial(self._load_all, following))
        return values

    def _load_all(self, name: str) -> dict[str, Tensor]:
        kinds = [_WEIGHT, _GRADIENT, *self.moments[name]]
        return {kind: self._space.load(*self._places[name, kind]) for kind in kinds}

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients, when they are opened."""
        self._divisor *= divisor

    def drop_gradients(self) -> None:
        """See ``Home``; all is written then."""
        super().drop_gradients()
        self._ahead, self._has_tied = None, False
        self._norms.clear()
        self.settle()
        names = ("bytes_read", "bytes_written")
        self.traffic = {
            name: now - before for name, now, before in zip(names, self._moved(), self._moved_before, strict=True)
        }

    def tensors(self) -> Shards:
        """See ``Home``; the tensors are at rest, so that whoever goes through them has one at a time in memory."""
        self.settle()
        return super().tensors()


def lay_out(model: LanguageModel, update: Update, recipe: Recipe) -> dict[tuple[str, str], Place]:
    """Return where each parameter's weight, gradient and optimizer state lie, by name and kind.

    Args:
        model: on the meta device.
        update: names the optimizer's state.
        recipe: gives the dtypes.
    """
    precision, places, end = recipe.precision, dict[tuple[str, str], Place](), 0
    gradient_dtype = DTYPES[precision.gradients]
    for name, parameter in model.own_parameters():
        shape = tuple(local(parameter.detach()).shape)
        states = (*update.state_names, *update.further_names(name, parameter))
        dtypes = {_WEIGHT: parameter.dtype, _GRADIENT: gradient_dtype}
        dtypes |= {key: DTYPES[precision.dtype_of_state(key)] for key in states}
        for kind, dtype in dtypes.items():
            places[name, kind] = Place(end, shape, dtype)
            end = places[name, kind].end
    if model.head.is_tied:
        places[_TIED, _GRADIENT] = Place(end, tuple(model.embedding.tokens.shape), gradient_dtype)
    return places


def _shaped(held: Held, gradient: Tensor) -> Tensor:
    """Return a gradient in the shape of its slot: stacked biases ``[3, H·K]`` are one vector."""
    return gradient.view(-1) if held.role == "bias" else gradient


def _like(parameter: Tensor, values: Tensor) -> Tensor:
    """Return ``values``, the part of a parameter that this rank holds, cut over ranks as the parameter is."""
    if not is_cut(parameter):
        return values
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    cut: Tensor = DTensor.from_local(
        values, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return cut


def _whole(parameter: Tensor, values: Tensor) -> Tensor:
    """Return the whole parameter from this rank's part, which all ranks give."""
    if not is_cut(parameter):
        return values
    gathered: Tensor = _like(parameter, values).full_tensor()  # type: ignore[attr-defined]
    return gathered


def _own_part(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return what this rank holds of a tensor that is cut as ``parameter`` is, in memory of its own."""
    if not is_cut(parameter):
        return whole
    begin, shape = box_of(parameter)
    box = tuple(slice(first, first + size) for first, size in zip(begin, shape, strict=True))
    return whole[box].clone(memory_format=torch.contiguous_format)
