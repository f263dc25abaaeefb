"""A home in files or host memory for weights, gradients and optimizer state.

::

    fetched(parts)    loads the weights of embedding, blocks.0, ..., the next part while one computes
    keep(part, ..)    sums its gradients over ranks, computes their norms and writes them while the next part computes
    slots(tensor)     loads weight, gradient and moments of one tensor, the next ones while it is updated

The model's parameters and their ``.grad`` are tensors that map files or pinned memory, so that checkpoints and
initialization process them one tensor at a time. Computation uses copies on the device. Storage dtypes are those of
``NarrowHome``.
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
"""A tied head's gradient of the token table, stored until that of the embedding is added."""

Leaves = dict[str, Tensor]
"""A part's weights on the device, by their names in the part; gradients accumulate in their ``.grad``."""


class Extent(NamedTuple):
    """The offset, in bytes, shape and dtype of a tensor in a space."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The aligned offset after the tensor."""
        size = math.prod(self.shape) * self.dtype.itemsize
        return self.offset + -(-size // _ALIGNMENT) * _ALIGNMENT


class PhasedHome(NarrowHome):
    """A home in a ``Space``; each of its ``parts`` is one tensor.

    Args:
        model: on the meta device; its parameters are replaced by uninitialized tensors in ``space``.
        update: names the optimizer's states, which are initialized to zero.
        recipe: has the dtypes and the seed.
        world: has the device, and the ranks that sum gradients or hold shards.
        space: for weights, gradients and moments, all of which are reserved now.
        rows: space for the hidden states between layers, reserved by the executor.
    """

    def __init__(
        self, model: LanguageModel, update: Update, recipe: Recipe, world: World, space: Space, rows: Space
    ) -> None:
        self._space, self.rows, self._extents = space, rows, lay_out(model, update, recipe)
        space.reserve(max(extent.end for extent in self._extents.values()))
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
        """Norms of the stored gradients, by name."""
        self._has_tied = False
        self._ahead: tuple[str, Future[dict[str, Tensor]]] | None = None
        """The parameter whose slot is being loaded."""

    def restart_traffic(self) -> None:
        """Start counting the ``traffic`` of a step."""
        self._moved_before = self._moved()

    def _moved(self) -> tuple[int, int]:
        spaces = (self._space, self.rows)
        return sum(space.num_read for space in spaces), sum(space.num_written for space in spaces)

    def _at_rest(self, name: str, kind: str) -> Tensor:
        return self._space.at_rest(*self._extents[name, kind])

    def _zeros(
        self, model: LanguageModel, update: Update, options: Mapping[str, object]
    ) -> dict[str, dict[str, Tensor]]:
        """Return the moments as tensors in the space."""
        states: dict[str, dict[str, Tensor]] = {name: {} for name, _ in model.own_parameters()}
        for name, kind in self._extents:
            if kind not in (_WEIGHT, _GRADIENT):
                states[name][kind] = self._at_rest(name, kind)
        return states

    def fetched(self, parts: Sequence[str]) -> Generator[Leaves, None, None]:
        """Yield the weights of each part on the device, while those of the next one are being loaded."""
        self.settle()
        reads = [partial(self._load, self._names_in(part)) for part in parts]
        with closing(self.reader.ahead(reads)) as loaded:
            yield from map(self._to_leaves, parts, loaded)

    def _names_in(self, part: str) -> dict[str, str]:
        """Return the names of a part's parameters by their names in the part; a tied head has the table."""
        names = {name[len(part) + 1 :]: name for name in self._by_name if part_of(name) == part}
        return names | ({"table": "embedding.tokens"} if part == "head" and self.model.head.is_tied else {})

    def _load(self, names: Mapping[str, str]) -> dict[str, Tensor]:
        return {key: self._space.load(*self._extents[name, _WEIGHT]) for key, name in names.items()}

    def _to_leaves(self, part: str, loaded: dict[str, Tensor]) -> Leaves:
        leaves: Leaves = {}
        for key, name in self._names_in(part).items():
            whole = _whole(self._by_name[name].parameter, loaded.pop(key))
            leaves[key] = nn.Parameter(whole)
            if whole.dtype != self._gradient_dtype:
                leaves[key].grad_dtype = self._gradient_dtype
        return leaves

    def keep(self, part: str, leaves: Leaves) -> None:
        """Store the sums over data-parallel ranks of the gradients that backward passes accumulated in ``leaves``.

        This empties ``leaves`` to free their memory. A tied head's gradient of the table is stored unsummed until the
        embedding's gradient is added to it.
        """
        gradients = {f"{part}.{key}": leaf.grad for key, leaf in leaves.items()}
        leaves.clear()
        tied = gradients.pop(_TIED) if part == "head" and self.model.head.is_tied else None
        if part == "embedding" and self._has_tied:
            self.settle()
            table, own = self._space.load(*self._extents[_TIED, _GRADIENT]), gradients["embedding.tokens"]
            gradients["embedding.tokens"] = table if own is None else own.add_(table)
        kept = self._summed(gradients)
        if tied is not None:
            kept[_TIED], self._has_tied = {_GRADIENT: tied}, True
        self.writer.behind(partial(self._save, kept, [_GRADIENT]))

    def _summed(self, gradients: dict[str, Tensor | None]) -> dict[str, dict[str, Tensor]]:
        """Return this rank's parts of the summed gradients and store their norms; missing gradients count as zeros."""
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
        """Write tensors by name and kind, freeing each."""
        for name in list(tensors):
            values = tensors.pop(name)
            for kind in kinds:
                self._space.save(self._extents[name, kind].offset, values[kind])

    def settle(self) -> None:
        """Wait for pending writes."""
        self.writer.settle()

    def gradient_norms(self, part: str) -> Tensor:
        norms = self._norms.get(part)
        return torch.zeros(0, device=self._world.device) if norms is None else norms / self._divisor

    @contextmanager
    def _stored(self, part: str, count: int) -> Iterator[list[Slot]]:
        """See ``NarrowHome``; the tensors are written while the next parameter is updated."""
        if part not in self._norms:
            yield []
            return
        held, stored = self._by_name[part], self._arrived(part)
        gradient = self._opened(_shaped(held, stored.pop(_GRADIENT)), self._world.device)
        if self._divisor != 1.0:
            gradient.div_(self._divisor)
        yield [held.slot(stored[_WEIGHT], gradient, {key: state for key, state in stored.items() if key != _WEIGHT})]
        self.writer.behind(partial(self._save, {part: stored}, list(stored)))

    def _arrived(self, name: str) -> dict[str, Tensor]:
        """Return a parameter's stored tensors on the device, and start loading the next one that has a gradient."""
        ahead, self._ahead = self._ahead, None
        values = ahead[1].result() if ahead and ahead[0] == name else self._load_all(name)
        later = self.parts[self.parts.index(name) + 1 :]
        following = next((other for other in later if other in self._norms), None)
        if following is not None:
            self._ahead = following, self.reader.begin(partial(self._load_all, following))
        return values

    def _load_all(self, name: str) -> dict[str, Tensor]:
        kinds = [_WEIGHT, _GRADIENT, *self.moments[name]]
        return {kind: self._space.load(*self._extents[name, kind]) for kind in kinds}

    def divide_gradients(self, divisor: float) -> None:
        """Divide all gradients when they are loaded."""
        self._divisor *= divisor

    def drop_gradients(self) -> None:
        """See ``Home``; also wait for pending writes and set ``traffic``."""
        super().drop_gradients()
        self._ahead, self._has_tied = None, False
        self._norms.clear()
        self.settle()
        names = ("bytes_read", "bytes_written")
        self.traffic = {
            name: now - before for name, now, before in zip(names, self._moved(), self._moved_before, strict=True)
        }

    def tensors(self) -> Shards:
        """See ``Home``; the tensors map the space, so that iterating over them needs memory for one at a time."""
        self.settle()
        return super().tensors()


def lay_out(model: LanguageModel, update: Update, recipe: Recipe) -> dict[tuple[str, str], Extent]:
    """Return the extents of each parameter's weight, gradient and optimizer states, by name and kind.

    Args:
        model: on the meta device.
        update: names the optimizer's states.
        recipe: has the dtypes.
    """
    precision, extents, end = recipe.precision, dict[tuple[str, str], Extent](), 0
    gradient_dtype = DTYPES[precision.gradients]
    for name, parameter in model.own_parameters():
        shape = tuple(local(parameter.detach()).shape)
        tensors = {_WEIGHT: (shape, parameter.dtype), _GRADIENT: (shape, gradient_dtype)}
        for key, its_shape in update.states(name, shape).items():
            tensors[key] = its_shape, DTYPES[precision.dtype_of_state(key)]
        for kind, (its_shape, dtype) in tensors.items():
            extents[name, kind] = Extent(end, its_shape, dtype)
            end = extents[name, kind].end
    if model.head.is_tied:
        extents[_TIED, _GRADIENT] = Extent(end, tuple(model.embedding.tokens.shape), gradient_dtype)
    return extents


def _shaped(held: Held, gradient: Tensor) -> Tensor:
    """Return a gradient in the shape of its slot; stacked biases ``[3, H·K]`` are flattened."""
    return gradient.view(-1) if held.role == "bias" else gradient


def _like(parameter: Tensor, values: Tensor) -> Tensor:
    """Return ``values``, this rank's part of a parameter, as a DTensor if the parameter is one."""
    if not is_cut(parameter):
        return values
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    cut: Tensor = DTensor.from_local(
        values, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return cut


def _whole(parameter: Tensor, values: Tensor) -> Tensor:
    """Return the whole parameter, gathered from the parts ``values`` of all ranks."""
    if not is_cut(parameter):
        return values
    gathered: Tensor = _like(parameter, values).full_tensor()  # type: ignore[attr-defined]
    return gathered


def _own_part(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's part of ``whole``, split like ``parameter``, as a copy; unsplit tensors are returned as is."""
    if not is_cut(parameter):
        return whole
    begin, shape = box_of(parameter)
    box = tuple(slice(first, first + size) for first, size in zip(begin, shape, strict=True))
    return whole[box].clone(memory_format=torch.contiguous_format)
