"""A linear map of blocks, and the models whose linear maps are such.

::

    Linear            weight [3072, 768]                          bias [3072]
    BlockSparseLinear values [922, 16, 16], rows, columns [922]   bias [3072]

Parameters, gradients and moments exist for the blocks alone. Where blocks are, and since which update, are buffers that
checkpoints hold; `hornbook.engine.topology` changes them in training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.linears import LinearShape, linears_of
from hornbook.config.sparsity import SparsityConfig
from hornbook.errors import UserError
from hornbook.model.attention import QueryKeyValue
from hornbook.model.initialize import Draw, generator
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import Linear
from hornbook.ops.block_pattern import Pattern, to_dense
from hornbook.ops.block_sparse import Choice, Scores, block_sparse_linear, choose_kernel
from hornbook.ops.layers import for_few_rows
from hornbook.wording import counted

TABLE: Final = "embedding.sparse_tokens"
"""The name of a block-sparse token table in its model."""


class BlockSparseLinear(nn.Module):
    """``y = x Wᵀ + b`` in the dtype of ``x``, where W is zero but for square blocks.

    ::

        layer = BlockSparseLinear(768, 3072, block_size=16, density=0.1, seed=7, name="up")
        y = layer(x)                    # x [..., 768] -> y [..., 3072]
        layer.to_dense()                # [3072, 768]

    The positions are random, a function of seed and name. Unless it is built on the meta device, the layer has its
    initial weights at once.

    Args:
        num_in: size of the last dimension of the input, a multiple of ``block_size``.
        num_out: size of the last dimension of the output.
        block_size: b, rows and columns of a block.
        density: share of the blocks that are kept, rounded up to whole blocks; the same in each part.
        std: standard deviation of the weights if the map were dense; that of the blocks is ``std / √density``. None:
            ``1 / √num_in``.
        bias: whether there is a ``b``, which starts at zero.
        is_uniform: whether initial weights are uniform rather than normal.
        num_parts: maps of equal shape side by side, as query, key and value; tensors have a first dimension for them.
        kernel: ``auto`` or a name of ``hornbook.ops.block_sparse.KERNELS``.
        seed: of the initial weights and positions.
        name: of the layer; layers of one seed and different names have different patterns.

    Attributes:
        values: the blocks, fp32 ``[n, b, b]`` or ``[parts, n, b, b]``, in the order of rows, then columns.
        rows: int32 ``[n]`` or ``[parts, n]``: the row of blocks in which each lies.
        columns: likewise.
        grown_at: int32, likewise: the number of the update after which the block grew; 0 from the start on.
        tried: uint8 ``[⌈R·C / 8⌉]``, likewise: a bit for each position, set if a block ever was there.
        scores: gets pooled dense gradients in the backward pass; None unless an update of the pattern is due.

    Raises:
        UserError: the sizes are no multiples of the block, or no block is left.
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        block_size: int,
        density: float,
        std: float | None = None,
        is_uniform: bool = False,
        bias: bool = True,
        num_parts: int = 1,
        kernel: str = "auto",
        seed: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        self.num_in, self.num_out, self.num_parts, self.block_size = num_in, num_out, num_parts, block_size
        self.asked_kernel = kernel
        self.scores: Scores | None = None
        self._pattern: tuple[Tensor, int, int, Pattern] | None = None
        config = SparsityConfig(linears=("*",), density=density, block_size=block_size)
        shape = {name: LinearShape(num_out, num_in, num_parts)}
        for problem in config.problems_with(shape):
            raise UserError(f"{problem.keys[0].rpartition('.')[2]} {problem.message}")
        (grid,) = config.grids(shape).values()
        self.grid_shape, self.density = (grid.rows, grid.columns), grid.density  # of a part
        self.std, self.is_uniform = 1.0 / math.sqrt(num_in) if std is None else std, is_uniform
        parts = (num_parts,) if num_parts > 1 else ()
        self.values = nn.Parameter(torch.empty(*parts, grid.num_kept, block_size, block_size))
        self.bias = nn.Parameter(torch.empty(*parts, num_out // num_parts)) if bias else None
        self.rows, self.columns, self.grown_at = (
            nn.Buffer(torch.empty(*parts, grid.num_kept, dtype=torch.int32)) for _ in range(3)
        )
        self.tried = nn.Buffer(torch.empty(*parts, -(-grid.rows * grid.columns // 8), dtype=torch.uint8))
        if not self.values.is_meta:
            self.draw(Draw(seed, name))

    def draw(self, draw: Draw) -> None:
        """Fill parameters and buffers with their initial values."""
        draw.normal(self.values, "values", self.std / math.sqrt(self.density), is_uniform=self.is_uniform)
        draw.constant(self.bias, 0.0)
        if self.rows.is_meta:  # another rank of the pipeline holds it
            return
        num_rows, num_columns = self.grid_shape
        random = generator(draw.seed, f"{draw.prefix}.positions")
        for rows, columns in zip(self.in_parts(self.rows), self.in_parts(self.columns), strict=True):
            chosen = torch.randperm(num_rows * num_columns, generator=random)[: len(rows)].sort().values
            rows.copy_(chosen // num_columns)
            columns.copy_(chosen % num_columns)
        self.grown_at.zero_()
        self.tried.zero_()
        self.note_tried()

    def note_tried(self) -> None:
        """Set the bits of the positions that have blocks now."""
        for tried, rows, columns in zip(*map(self.in_parts, (self.tried, self.rows, self.columns)), strict=True):
            present = torch.zeros(tried.numel() * 8, dtype=torch.uint8, device=tried.device)
            present[rows.long() * self.grid_shape[1] + columns.long()] = 1
            weights = 1 << torch.arange(8, dtype=torch.uint8, device=tried.device)
            tried |= (present.view(-1, 8) * weights).sum(1, dtype=torch.uint8)

    @property
    def share_tried(self) -> float:
        """Share of the positions at which a block is or was."""
        bits = self.tried.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=self.tried.device) & 1
        return int(bits.sum()) / (self.num_parts * self.grid_shape[0] * self.grid_shape[1])

    def picture(self, most: int = 32) -> list[str]:
        """Return the pattern in at most so many lines of as many hexadecimal digits: shares of blocks, in 15ths.

        A place that has any block has a digit above 0; parts lie below each other.
        """
        grid = torch.zeros(self.num_parts * self.grid_shape[0], self.grid_shape[1])
        grid[self.pattern.rows.cpu(), self.pattern.columns.cpu()] = 1.0
        shape = (min(len(grid), most), min(grid.shape[1], most))
        shares = functional.adaptive_avg_pool2d(grid.unsqueeze(0), shape)[0]
        return ["".join(f"{digit:x}" for digit in line) for line in (shares * 15).ceil().int().tolist()]

    def in_parts(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return one of the layer's tensors part by part; there is one part unless maps lie side by side."""
        return tensor.unbind(0) if self.num_parts > 1 else (tensor,)

    @property
    def pattern(self) -> Pattern:
        """Where the blocks are in the whole matrix; parts lie below each other. Derived again if that has changed.

        Compiled code derives it in each forward pass, since it does not see versions of tensors.
        """
        if torch.compiler.is_compiling():
            return self._pattern_of(self.rows, self.columns)
        key = (self.rows, self.rows._version, self.columns._version)
        if self._pattern is None or self._pattern[0] is not key[0] or self._pattern[1:3] != key[1:]:
            self._pattern = (*key, self._pattern_of(self.rows, self.columns))
        return self._pattern[3]

    def _pattern_of(self, rows: Tensor, columns: Tensor) -> Pattern:
        num_rows, num_columns = self.grid_shape
        first = torch.arange(self.num_parts, device=rows.device).unsqueeze(1) * num_rows
        below = (rows.view(self.num_parts, -1) + first).flatten()
        return Pattern.of(below, columns.flatten(), self.num_parts * num_rows, num_columns)

    def kernel(self, dtype: torch.dtype) -> Choice:
        """Return the kernel that computes the map of activations of ``dtype``, and why."""
        choice: Choice = choose_kernel(self.asked_kernel, self.block_size, self.density, self.values.device, dtype)
        return choice

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        values = self.values.view(-1, self.block_size, self.block_size)
        y = block_sparse_linear(x, values, self.pattern, self.kernel(x.dtype).kernel, self.scores)
        return y if self.bias is None else y + self.bias.flatten().to(y.dtype)

    def to_dense(self) -> Tensor:
        """Return the matrix, ``[num_out, num_in]`` or ``[parts, num_out / parts, num_in]``, without history."""
        return self._dense(self.values.detach(), self.pattern)

    def _dense(self, values: Tensor, pattern: Pattern) -> Tensor:
        matrix = to_dense(values.view(-1, self.block_size, self.block_size), pattern)
        return matrix.view(self.num_parts, -1, self.num_in) if self.num_parts > 1 else matrix

    def densify(self, tensors: dict[str, Tensor], name: str) -> None:
        """Replace the tensors of the layer called ``name``, stored ones, by those of a dense one, in place."""
        values, rows, columns, *_ = [
            tensors.pop(f"{name}.{kind}") for kind in ("values", "rows", "columns", "grown_at", "tried")
        ]
        tensors[f"{name}.weight"] = self._dense(values, self._pattern_of(rows, columns))

    def incremental(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return the map with weights made dense and cast once to ``dtype``: for a few tokens that is fastest."""
        bias = None if self.bias is None else self.bias.detach().flatten().to(dtype)
        weight = for_few_rows(self.to_dense().detach().flatten(0, -2).to(dtype))
        return partial(functional.linear, weight=weight, bias=bias)

    def extra_repr(self) -> str:
        """Return sizes, block and density for the printed module."""
        return f"{self.num_in}, {self.num_out}, block_size={self.block_size}, density={self.density:.4g}"


def sparsify(model: LanguageModel, config: SparsityConfig, section: object) -> None:
    """Replace the linear maps of ``model`` that ``config`` names by block-sparse ones, not yet drawn, in place.

    ::

        blocks.3.attention.qkv   QueryKeyValue -> BlockSparseLinear of three parts
        blocks.3.attention.out   Linear        -> BlockSparseLinear

    The maps that a block makes of its own, by ``make_linear``, stay as they are.

    Args:
        model: on the meta device.
        config: has patterns.
        section: the recipe's ``[model]``.

    Raises:
        UserError: a model of one's own does not have what ``config`` asks for.
    """
    maps = {name: module for name, module in model.named_modules() if type(module) in (Linear, QueryKeyValue)}
    shapes = {name: _shape_of(module) for name, module in maps.items()}
    if linears_of(section) is None:
        for problem in config.problems_with(shapes):
            raise UserError(f"{problem.keys[0]}: {problem.message}")
    for name, grid in config.grids(shapes).items():
        module, shape = maps[name], shapes[name]
        layer = BlockSparseLinear(
            shape.num_in,
            shape.num_out,
            block_size=config.block_size,
            density=grid.density,
            std=module.std,
            is_uniform=module.is_uniform,
            bias=module.bias is not None,
            num_parts=shape.num_parts,
            kernel=config.kernel,
        )
        model.set_submodule(name, layer)


def sparse_layers(model: nn.Module) -> dict[str, BlockSparseLinear]:
    """Return the block-sparse linear maps of a model by name, without those that other ranks of a pipeline hold."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, BlockSparseLinear)}
    return {name: module for name, module in found.items() if not module.values.is_meta}


def describe_blocks(model: LanguageModel) -> str:
    """Return in words how many linear maps of a model are sparse, what share of their weights exists, and by what."""
    found = sparse_layers(model)
    table = found.pop(TABLE, None)
    parts = []
    if layers := list(found.values()):
        choices = {layer.kernel(model.compute_dtype) for layer in layers}
        kernels = "; ".join(sorted(f"{choice.kernel}: {choice.reason}" for choice in choices))
        parts.append(f"{counted(len(layers), 'linear map')}, {_share(layers)}; kernel {kernels}")
    if table is not None:
        parts.append(f"token table, {_share([table])}")
    return "; ".join(parts) or "none on this rank"


def _share(layers: Sequence[BlockSparseLinear]) -> str:
    kept = sum(layer.values.numel() for layer in layers)
    total = sum(layer.num_out * layer.num_in for layer in layers)
    sizes = sorted({layer.block_size for layer in layers})
    return f"{kept / max(total, 1):.1%} of {total:,} weights in blocks of {', '.join(map(str, sizes))}"


def dense_weights(tensors: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Return the stored ``tensors`` of a sparse model as those of the dense model that computes the same.

    Args:
        tensors: by name, weights and buffers.
        model: of the same recipe, perhaps on the meta device.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, BlockSparseLinear)}
    if not layers:
        return tensors
    dense = dict(tensors)
    for name, layer in layers.items():
        layer.densify(dense, name)
    return dense


def _shape_of(module: nn.Module) -> LinearShape:
    weight = module.weight
    assert isinstance(weight, Tensor)
    *parts, num_out, num_in = weight.shape
    return LinearShape(math.prod(parts) * num_out, num_in, math.prod(parts))
