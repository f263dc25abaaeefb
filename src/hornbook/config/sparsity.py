"""Options of block-sparse linear layers: the layers, their number of blocks, and the updates of their patterns.

::

    linears = ["blocks.*"], density 0.1, block_size 16
      blocks.0.feed_forward.up  [3072, 768]  192 x 48 = 9,216 blocks  ->  922 of them are nonzero

Counts depend only on the shapes, so that parameters, memory and FLOPs of a recipe are known without a model.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from hornbook.config.description import description_of
from hornbook.config.options import Problem, describe, option
from hornbook.config.parallel import ParallelConfig
from hornbook.wording import first_few


class LinearShape(NamedTuple):
    """The shape of a linear layer's weights, which may be several stacked matrices of equal shape."""

    num_out: int
    num_in: int
    num_parts: int = 1


def linears_of(model: object) -> dict[str, LinearShape] | None:
    """Return the linear layers of the model that a recipe's section describes, by name; None for a custom model."""
    described = description_of(model)
    if described is None:
        return None
    return {name: LinearShape(layer.num_out, layer.num_in, layer.num_parts) for name, layer in described.linears()}


def table_of(model: object) -> LinearShape | None:
    """Return the token table of the model that a recipe's section describes; None for a custom model.

    It has no rows if the vocabulary is not known.
    """
    described = description_of(model)
    return None if described is None else LinearShape(*described.table.shape)


Kernel = Literal["auto", "reference", "torch", "native", "triton"]
TopologyUpdate = Literal["static", "random", "rigl", "rigl_norm", "rigl_sample"]
Pooling = Literal["sum", "avg", "max"]

BLOCK_SIZES: Final = (1, 4, 8, 16, 32, 64, 128)
_OF_TABLE: Final = (
    "embedding_block_size",
    "density",
    "update",
    "update_interval",
    "prune_ratio",
    "stop_fraction",
    "pooling",
    "learning_rate_scale",
)
"""Options that apply to a sparse token table as well."""


class BlockGrid(NamedTuple):
    """The ``rows`` x ``columns`` blocks of a matrix, and the number of nonzero blocks of each of its parts."""

    rows: int
    columns: int
    num_kept: int

    @property
    def density(self) -> float:
        """Share of the blocks that are nonzero."""
        return self.num_kept / (self.rows * self.columns)


@dataclass(frozen=True, kw_only=True)
class SparsityConfig:
    """Block-sparse linear layers and updates of their patterns (RigL: Evci et al. 2020; Dietrich et al. 2021)."""

    linears: tuple[str, ...] = option(
        (), help="name patterns of block-sparse linear layers, such as blocks.*; []: a dense model"
    )
    density: float = option(0.1, help="share of blocks to keep; 0.1 is a sparsity of 90 %", above=0, maximum=1)
    block_size: int = option(16, help="rows and columns of a block: 1, 4, 8, 16, 32, 64 or 128", minimum=1, maximum=128)
    distribution: Literal["uniform", "erdos_renyi"] = option(
        "uniform",
        help=(
            "uniform: the same density for every matrix; erdos_renyi: higher for small matrices, lower for large ones"
        ),
    )
    kernel: Kernel = option(
        "auto",
        help=(
            "reference: masked dense products; torch: block products with PyTorch; native: C++ for "
            "CPUs; triton: for GPUs, not yet measured; auto: usually the fastest for this block size, "
            "density and dtype"
        ),
    )
    update: TopologyUpdate = option(
        "static",
        help=(
            "where new blocks grow; static: nowhere; random: at random; rigl: at the largest dense "
            "gradients; rigl_norm: gradients normalized by rows and columns; rigl_sample: sampled in "
            "proportion to the gradients"
        ),
    )
    update_interval: int = option(100, help="optimizer steps between updates of the pattern", minimum=1)
    prune_ratio: float = option(
        0.1,
        help="share of blocks that the first pattern update replaces; decays to 0 with a cosine",
        above=0,
        maximum=1,
    )
    stop_fraction: float = option(
        0.75, help="share of the run after which the pattern no longer changes", above=0, maximum=1
    )
    pooling: Pooling = option(
        "sum", help="score of a block: sum, average or maximum of the absolute gradients of its weights"
    )
    embedding_block_size: int | None = option(
        None,
        help="block size of a sparse token table (also the output projection); none: a dense table",
        minimum=1,
        maximum=128,
    )
    learning_rate_scale: float | None = option(
        None, help="learning rate factor of block-sparse weights; none: by density, 6.4 at 0.1", above=0
    )

    @property
    def is_sparse(self) -> bool:
        """Whether any layer or table of the model is block-sparse."""
        return bool(self.linears) or self.embedding_block_size is not None

    @property
    def needs_scores(self) -> bool:
        """Whether updates of the pattern use dense gradients."""
        return self.update.startswith("rigl")

    def covers(self, name: str) -> bool:
        """Return whether the linear layer ``name`` is sparse."""
        return any(fnmatchcase(name, pattern) for pattern in self.linears)

    def grids(self, linears: Mapping[str, LinearShape]) -> dict[str, BlockGrid]:
        """Return the grids of the sparse layers among ``linears``, by name; shapes must be multiples of the block."""
        sizes = {
            name: (shape.num_out // shape.num_parts // self.block_size, shape.num_in // self.block_size)
            for name, shape in linears.items()
            if self.covers(name)
        }
        parts = {name: linears[name].num_parts for name in sizes}
        densities = dict.fromkeys(sizes, self.density)
        if self.distribution == "erdos_renyi":
            densities = _erdos_renyi(sizes, parts, self.density)
        return {
            name: BlockGrid(rows, columns, max(1, math.ceil(round(densities[name] * rows * columns, 6))))
            for name, (rows, columns) in sizes.items()
        }

    def num_absent(self, model: object) -> dict[str, int]:
        """Return the number of weights that each sparse layer of ``model`` omits, by name; {} for custom models.

        This includes a sparse token table if the size of the vocabulary is known.
        """
        linears = linears_of(model) or {}
        absent = {
            name: linears[name].num_parts * (grid.rows * grid.columns - grid.num_kept) * self.block_size**2
            for name, grid in self.grids(linears).items()
        }
        table = table_of(model)
        if table is not None and table.num_out and self.embedding_block_size is not None:
            kept = self._table_grid(table, self.embedding_block_size).num_kept * self.embedding_block_size**2
            absent["embedding.tokens"] = table.num_out * table.num_in - kept
        return absent

    def _table_grid(self, table: LinearShape, size: int) -> BlockGrid:
        """Return the grid of a token table, whose last block row may extend beyond the vocabulary."""
        rows, columns = -(-table.num_out // size), table.num_in // size
        return BlockGrid(rows, columns, max(1, math.ceil(round(self.density * rows * columns, 6))))

    def flops_saved(self, model: object, scored: float) -> float:
        """Return the FLOPs per token that a training step saves, compared with the dense ``model``.

        ``scored`` is the share of the tokens for which the head computes logits; see ``flops_per_token`` of the model.
        """
        absent = self.num_absent(model)
        in_head = sum(absent.pop(name, 0) for name in ("head.transform.dense", "head.projection", "embedding.tokens"))
        before_head = sum(count for name, count in absent.items() if not name.startswith("head."))
        return 6.0 * (before_head + scored * in_head)

    def rate_scale(self, density: float) -> float:
        """Return the factor of the learning rate for blocks of a matrix of this density.

        The default is the minimum of ``1 / density`` and ``exp(1.969 s² + 0.2905 s)`` for a sparsity s = 1 - density,
        the fit of Dietrich et al. (2021) to their best learning rates of BERT.
        """
        if self.learning_rate_scale is not None:
            return self.learning_rate_scale
        sparsity = 1.0 - density
        return min(1.0 / density, math.exp(1.969 * sparsity**2 + 0.2905 * sparsity))

    def problems_with(self, linears: Mapping[str, LinearShape]) -> Iterator[Problem]:
        """Yield conflicts with the linear layers of a model, given by name; at least one pattern must be set."""
        unmatched = [
            repr(pattern) for pattern in self.linears if not any(fnmatchcase(name, pattern) for name in linears)
        ]
        if unmatched:
            names = list(linears)
            examples = ", ".join([*names[:1], *names[len(names) // 2 : len(names) // 2 + 1], *names[-1:]])
            message = f"{', '.join(first_few(unmatched))} matches no linear layer; layers have names such as {examples}"
            yield Problem(("sparsity.linears",), message)
        if self.block_size not in BLOCK_SIZES:
            yield Problem(("sparsity.block_size",), f"must be {_sizes()}")
            return
        if self.kernel == "native" and not 4 <= self.block_size <= 64:
            message = "the native kernel needs blocks of 4 to 64; set another"
            yield Problem(("sparsity.kernel", "sparsity.block_size"), message)
        if self.kernel == "triton" and self.block_size < 16:
            message = "the triton kernel needs blocks of 16 or more; set another"
            yield Problem(("sparsity.kernel", "sparsity.block_size"), message)
        for name, shape in linears.items():
            num_out = shape.num_out // shape.num_parts
            if self.covers(name) and (num_out % self.block_size or shape.num_in % self.block_size):
                message = f"does not divide {name}, {num_out} x {shape.num_in}; choose another or a narrower pattern"
                yield Problem(("sparsity.block_size", "sparsity.linears"), message)
                return
        for name, grid in self.grids(linears).items():
            if self.density * grid.rows * grid.columns < 1:
                message = f"leaves no block of {name}, which has {grid.rows} x {grid.columns} blocks; raise it"
                yield Problem(("sparsity.density", "sparsity.block_size"), message)
                return

    def conflicts(self, model: object, parallel: ParallelConfig) -> Iterator[Problem]:
        """Yield conflicts with ``model``, unless it is a custom one, and with layouts that do not support sparsity."""
        if not self.linears:
            default, of_table = SparsityConfig(), _OF_TABLE if self.embedding_block_size is not None else ()
            given = (key for key in describe(SparsityConfig) if getattr(self, key) != getattr(default, key))
            for key in (key for key in given if key not in of_table):
                message = f"{key} applies only to sparse linear layers; set linears, or remove it"
                yield Problem((f"sparsity.{key}", "sparsity.linears"), message)
        if self.embedding_block_size is not None:
            yield from self._table_conflicts(model, parallel, self.embedding_block_size)
        if not self.linears:
            return
        linears = linears_of(model)
        if linears is not None:
            yield from self.problems_with(linears)
        if parallel.tensor_parallel > 1:
            message = "sparse layers do not support tensor parallelism; set tensor_parallel to 1"
            yield Problem(("parallel.tensor_parallel", "sparsity.linears"), message)
        if parallel.data_parallel != "replicate":
            message = 'sparse layers cannot be sharded; set data_parallel to "replicate"'
            yield Problem(("parallel.data_parallel", "sparsity.linears"), message)

    def _table_conflicts(self, model: object, parallel: ParallelConfig, size: int) -> Iterator[Problem]:
        """Yield conflicts with a sparse token table of this block size."""
        key, table = "sparsity.embedding_block_size", table_of(model)
        if size not in BLOCK_SIZES:
            yield Problem((key,), f"must be {_sizes()}")
        elif table is None:
            yield Problem((key,), "custom models have no sparse token table; remove it")
        elif table.num_in % size:
            message = f"does not divide the {table.num_in} columns of the token table; choose another"
            yield Problem((key,), message)
        elif table.num_out and self.density * math.prod(self._table_grid(table, size)[:2]) < 1:
            yield Problem(("sparsity.density", key), "leaves no block of the token table; raise it")
        layouts = {
            "tensor_parallel": (1, "1"),
            "pipeline_parallel": (1, "1"),
            "data_parallel": ("replicate", '"replicate"'),
        }
        for name, (whole, shown) in layouts.items():
            if getattr(parallel, name) != whole:
                message = f"a sparse token table cannot be distributed over ranks; set {name} to {shown}"
                yield Problem((f"parallel.{name}", key), message)


def _sizes() -> str:
    return f"{', '.join(map(str, BLOCK_SIZES[:-1]))} or {BLOCK_SIZES[-1]}"


def _erdos_renyi(sizes: Mapping[str, tuple[int, int]], parts: Mapping[str, int], density: float) -> dict[str, float]:
    """Return densities proportional to ``(rows + columns) / (rows · columns)``, at most 1, with the given mean.

    Erdős-Rényi random graphs, as in SET (Mocanu et al. 2018) and RigL (Evci et al. 2020); the excess over 1 of small
    matrices is distributed over the others.
    """
    full: set[str] = set()
    while True:
        total = sum(parts[name] * rows * columns for name, (rows, columns) in sizes.items())
        left = density * total - sum(parts[name] * math.prod(sizes[name]) for name in full)
        weight = sum(parts[name] * sum(size) for name, size in sizes.items() if name not in full)
        scale = left / weight if weight else 0.0
        found = {
            name: 1.0 if name in full else scale * (rows + columns) / (rows * columns)
            for name, (rows, columns) in sizes.items()
        }
        above = {name for name, value in found.items() if value > 1.0}
        if not above:
            return found
        full |= above
