"""A rank's part of a model, without torch: its stages, and its parts of their parameters.

::

    pipeline 2, tensor 2:   rank 0  embedding, blocks 0 1, left half     rank 2  blocks 2 3, head, left half
                            rank 1  embedding, blocks 0 1, right half    rank 3  blocks 2 3, head, right half
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hornbook.config.description import Description, description_of
from hornbook.config.parallel import Sizes, rank_of
from hornbook.config.parts import Parameter
from hornbook.config.recipe import Recipe
from hornbook.config.shapes import padded_rows


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """The part of a model that a rank holds and computes."""

    recipe: Recipe
    description: Description
    sizes: Sizes
    shapes: dict[str, tuple[int, ...]]
    """Shapes of the parameters of its stages, split by tensor parallelism, padded as in memory."""
    table: tuple[int, ...]
    """Shape of the token table, split by tensor parallelism."""
    blocks_of_stage: Mapping[int, Sequence[int]]
    """The blocks of each of its stages, by the stage's number, ascending."""
    num_stages: int

    @classmethod
    def of(cls, recipe: Recipe, num_ranks: int, rank: int) -> Self:
        """Return the part of ``rank`` of ``num_ranks``; the recipe's ``model.vocab_size`` must be set.

        Raises:
            UserError: ``num_ranks`` is not a multiple of the sizes in ``[parallel]``.
        """
        parallel = recipe.parallel
        model: Any = recipe.model
        sizes = parallel.sizes(num_ranks)
        stages = parallel.stages(model, recipe.objective) if sizes.pipeline > 1 else [range(model.num_layers)]
        place = rank * sizes.pipeline // num_ranks
        schedule = parallel.pipeline_schedule
        own = {
            stage: layers for stage, layers in enumerate(stages) if rank_of(stage, sizes.pipeline, schedule) == place
        }
        held = {f"blocks.{layer}." for layers in own.values() for layer in layers}
        held |= {"embedding."} if 0 in own else set()
        held |= {"head."} if len(stages) - 1 in own else set()
        described = description_of(model)
        assert described is not None, "the caller has checked it"
        cut = {parameter.name: cut_shape(parameter, sizes.tensor) for parameter in described.parameters()}
        shapes = {name: shape for name, shape in cut.items() if name.startswith(tuple(held))}
        table = cut["embedding.tokens"]
        return cls(
            recipe=recipe,
            description=described,
            sizes=sizes,
            shapes=shapes,
            table=table,
            blocks_of_stage=own,
            num_stages=len(stages),
        )

    @property
    def own_stages(self) -> tuple[int, ...]:
        """The numbers of its stages."""
        return tuple(self.blocks_of_stage)

    @property
    def has_embedding(self) -> bool:
        """Whether it has the embedding."""
        return 0 in self.own_stages

    @property
    def has_head(self) -> bool:
        """Whether it has the head."""
        return self.num_stages - 1 in self.own_stages

    @property
    def blocks(self) -> list[int]:
        """The numbers of its blocks."""
        return [layer for layers in self.blocks_of_stage.values() for layer in layers]

    def num_held(self, absent: Mapping[str, int]) -> int:
        """Return the number of its parameter elements, each of which has moments, with the padding of tables.

        Args:
            absent: number of weights that block-sparse layers and tables omit, by name.
        """
        dense = sum(shard_size(shape, self.sizes.shard) for shape in self.shapes.values())
        return dense - sum(count for name, count in absent.items() if {name, f"{name}.weight"} & self.shapes.keys())

    def bytes_of_states(self, absent: Mapping[str, int]) -> int:
        """Return the bytes of the optimizer's state of its parameters; arguments as for ``num_held``."""
        total = 0
        for name, shape in self.shapes.items():
            missing = absent.get(name.removesuffix(".weight"), 0)
            total += sum(
                size * (shard_size(own, self.sizes.shard) - missing * (own == shape))
                for own, size in self.recipe.states(name, shape)
            )
        return total

    @property
    def num_copied(self) -> int:
        """The number of elements of the head's copy of the table, if it cannot share the embedding's."""
        is_apart = self.description.is_tied and self.has_head and (self.sizes.shard > 1 or not self.has_embedding)
        return shard_size(self.table, self.sizes.shard) if is_apart else 0


def cut_shape(parameter: Parameter, num_parts: int) -> tuple[int, ...]:
    """Return the shape of a rank's part of a parameter in memory, which tensor parallelism may split."""
    name, shape, dimension = parameter
    if name in ("embedding.tokens", "head.table"):
        shape = (padded_rows(shape[0]), *shape[1:])
    if dimension is None:
        return shape
    return (*shape[:dimension], shape[dimension] // num_parts, *shape[dimension + 1 :])


def shard_size(shape: tuple[int, ...], num_shards: int) -> int:
    """Return the number of elements of a rank's shard; the rows are padded if no dimension is divisible."""
    if any(size % num_shards == 0 for size in shape):
        return math.prod(shape) // num_shards
    return -(-shape[0] // num_shards) * math.prod(shape[1:])
