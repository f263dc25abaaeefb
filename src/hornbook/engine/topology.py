"""Updates of the patterns of block-sparse layers between training steps, identical on all ranks.

::

    watch -> forward, backward of each micro-batch: scores -> update of the weights -> rewire
                                                                      sum scores over ranks
                                                                      prune and grow blocks, layer by layer
                                                                      reorder blocks and moments

A new block starts at zero with zero moments, and its bias correction may count updates from then on (``Slot.grown_at``;
it does where that makes the first steps smaller, see `hornbook.optim.updates`).
The other blocks and their moments are moved bit for bit. Choices depend only on scores, seed, layer and update number.

Scores are absolute dense gradients of each micro-batch, pooled by blocks and summed: they depend on
``training.micro_batch_size`` and, except for the rounding of an fp64 sum, not on the ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hornbook.config import SparsityConfig
from hornbook.engine.home import Home
from hornbook.model.initialize import generator
from hornbook.model.sparse_layers import BlockSparseLinear, sparse_layers
from hornbook.ops.block_sparse import Scores
from hornbook.ops.block_sparse_growth import GROWTH, Rewiring, num_replaced, rewire
from hornbook.optim.slots import Slot
from hornbook.optim.updates import Update
from hornbook.parallel.world import World

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The block-sparse layers of a model on this rank, and the schedule of updates of their patterns.

    Args:
        config: the sparsity options.
        layers: by name.
        num_steps: of the run.
        seed: of the run.
        world: of the run.
    """

    config: SparsityConfig
    layers: Mapping[str, BlockSparseLinear]
    num_steps: int
    seed: int
    world: World

    @classmethod
    def of(
        cls, model: nn.Module, config: SparsityConfig, *, num_steps: int, seed: int, world: World
    ) -> "Topology | None":
        """Return the topology of a run; None if patterns are static."""
        if config.update == "static":
            return None
        return cls(config=config, layers=sparse_layers(model), num_steps=num_steps, seed=seed, world=world)

    def is_due(self, number: int) -> bool:
        """Return whether the patterns change after update ``number``, counted from 1."""
        return number % self.config.update_interval == 0 and number < self._end

    @property
    def _end(self) -> float:
        return self.config.stop_fraction * self.num_steps

    def watch(self, number: int) -> None:
        """Make the backward passes of the next step collect scores if the patterns change after update ``number``."""
        is_due = self.config.needs_scores and self.is_due(number)
        for layer in self.layers.values():
            layer.scores = Scores(layer.pattern, self.config.pooling) if is_due else None

    def rewire(self, home: Home, number: int, count: int) -> list[Row]:
        """Change the patterns if that is due.

        Args:
            home: of the weights and moments; still has the gradients.
            number: of the last update, counted from 1.
            count: the same, including updates of the moments before the run.

        Returns:
            A row with the changes of each layer, including those of other pipeline stages.
        """
        if not self.is_due(number):
            return []
        growth = {name: self._growth(name, layer, number) for name, layer in self.layers.items()}
        rows: list[Row] = []
        for part in home.parts:
            with home.slots(part, count) as slots:
                for slot in slots:
                    name = slot.name.removesuffix(".values")
                    if name in growth:
                        rows.append(self._rewire(name, slot, growth[name], number, count))
        return _of_all_stages(rows, self.world)

    def _growth(self, name: str, layer: BlockSparseLinear, number: int) -> tuple[Tensor, Tensor]:
        """Return the scores of a layer, ``[parts, R, C]``, summed over ranks, and the growth criterion."""
        shape = (layer.num_parts, *layer.grid_shape)
        if layer.scores is None:
            scores = torch.zeros(shape, dtype=torch.float64, device=layer.values.device)
        else:
            scores = self.world.data.sum_tensor(layer.scores.total).view(shape)
            layer.scores = None
        random, rule = generator(self.seed, f"{name}.growth.{number}"), GROWTH[self.config.update]
        return scores, torch.stack([rule(part, random) for part in scores])

    def _rewire(self, name: str, slot: Slot, given: tuple[Tensor, Tensor], number: int, count: int) -> Row:
        layer, (scores, growth) = self.layers[name], given
        num_kept, num_positions = layer.rows.shape[-1], layer.grid_shape[0] * layer.grid_shape[1]
        progress = number / self._end
        replaced = num_replaced(num_kept, num_positions - num_kept, self.config.prune_ratio, progress)
        blocks = slot.parameter.view_as(layer.values)
        values, rows, columns = map(layer.in_parts, (blocks, layer.rows, layer.columns))
        present = zip(values, rows, columns, growth, strict=True)
        found = [rewire(own, own_rows, own_columns, part, replaced) for own, own_rows, own_columns, part in present]
        for tensor in (blocks, *slot.state.values()):
            _carry(layer, tensor.view_as(layer.values), found)
        _carry(layer, layer.grown_at, found)
        parts = zip(rows, columns, layer.in_parts(layer.grown_at), found, strict=True)
        for own_rows, own_columns, grown_at, rewiring in parts:
            own_rows.copy_(rewiring.rows)
            own_columns.copy_(rewiring.columns)
            grown_at[rewiring.source < 0] = count
        layer.note_tried()
        score = _score_facts(scores, found) if self.config.needs_scores else {}
        return {"layer": name, **_facts(layer, replaced), **score}


def patterns(model: nn.Module, world: World) -> list[Row]:
    """Return the same row as ``Topology.rewire`` for each block-sparse layer, for unchanged patterns."""
    return _of_all_stages([{"layer": name, **_facts(layer, 0)} for name, layer in sparse_layers(model).items()], world)


def _of_all_stages(rows: list[Row], world: World) -> list[Row]:
    return [row for rank in range(world.pipeline.size) for row in world.pipeline.share(rows, rank)]


def _carry(layer: BlockSparseLinear, tensor: Tensor, found: list[Rewiring]) -> None:
    """Reorder the blocks of one of a layer's tensors, in place."""
    for part, rewiring in zip(layer.in_parts(tensor), found, strict=True):
        part.copy_(rewiring.carry(part))


def _facts(layer: BlockSparseLinear, replaced: int) -> Row:
    """Return the density, the counts and the picture of a layer's pattern; ``replaced`` blocks of each part are new."""
    facts: Row = {"density": layer.density, "tried": layer.share_tried, "pruned": replaced * layer.num_parts}
    return facts | {"pattern": layer.picture()}


def _score_facts(scores: Tensor, found: list[Rewiring]) -> Row:
    """Return the mean and maximum of an update's scores, and the mean of the grown positions."""
    grown = torch.cat([part[own.rows, own.columns][own.source < 0] for part, own in zip(scores, found, strict=True)])
    grown_mean = float(grown.mean()) if len(grown) else 0.0
    return {"score_mean": float(scores.mean()), "score_max": float(scores.max()), "score_grown": grown_mean}


def with_blocks(update: Update, model: nn.Module, config: SparsityConfig) -> Update:
    """Return ``update`` with the positions of blocks, their ages, and the learning rate scaled by their density."""
    layers = {f"{name}.values": layer for name, layer in sparse_layers(model).items()}
    grown: dict[str, tuple[int, bool]] = {}

    def has_grown(name: str, ages: Tensor) -> bool:
        if name not in grown or grown[name][0] != ages._version:  # waits for a GPU, so only if blocks have moved
            grown[name] = ages._version, bool(ages.any())
        return grown[name][1]

    def of_block(slot: Slot) -> Slot:
        if slot.name not in layers:
            return slot
        layer = layers[slot.name]
        scale = slot.rate_scale * config.rate_scale(layer.density)
        grown_at = layer.grown_at if has_grown(slot.name, layer.grown_at) else None
        return replace(slot, grown_at=grown_at, pattern=layer.pattern, rate_scale=scale)

    return replace(update, apply=lambda slots, rate, count: update.apply([*map(of_block, slots)], rate, count))
