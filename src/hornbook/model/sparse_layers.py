"""Block-sparse linear layers, and the conversion of models to them.

::

    Linear            weight [3072, 768]                          bias [3072]
    BlockSparseLinear values [922, 16, 16], rows, columns [922]   bias [3072]

Parameters, gradients and moments exist only for the blocks. The positions of blocks and the updates after which they
grew are buffers that checkpoints hold; `hornbook.engine.topology` changes them during training.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.sparsity import LinearShape, SparsityConfig, linears_of
from hornbook.errors import UserError
from hornbook.model.attention import QueryKeyValue
from hornbook.model.incremental import CastLinear
from hornbook.model.initialize import Draw, generator
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import Linear, StackedLinear
from hornbook.ops.block_pattern import Pattern, fault_of, to_dense
from hornbook.ops.block_sparse import Choice, Scores, block_sparse_linear, choose_kernel
from hornbook.wording import counted

TABLE: Final = "embedding.sparse_tokens"
"""The name of a block-sparse token table in its model."""


class BlockSparseLinear(nn.Module):
    """A linear layer, ``y = x Wᵀ + b``, in the dtype of ``x``, whose W is zero except for square blocks.

    ::

        layer = BlockSparseLinear(768, 3072, block_size=16, density=0.1, seed=7, name="up")
        y = layer(x)                    # x [..., 768] -> y [..., 3072]
        layer.to_dense()                # [3072, 768]

    The positions of the blocks are random, a function of seed and name. The constructor initializes the weights, except
    on the meta device.

    Args:
        num_in: size of the last dimension of the input, a multiple of ``block_size``.
        num_out: size of the last dimension of the output.
        block_size: b, rows and columns of a block.
        density: share of the blocks that are nonzero, rounded up to whole blocks; the same in each part.
        std: standard deviation of the weights of an equivalent dense layer; that of the blocks is ``std / √density``.
            None: ``1 / √num_in``.
        bias: whether to add ``b``, which is initialized to zero.
        is_uniform: whether initial weights are uniform rather than normal.
        num_parts: stacked matrices of equal shape, such as query, key and value; tensors have a first dimension for
            them.
        kernel: ``auto`` or a name of ``hornbook.ops.block_sparse.KERNELS``.
        seed: of the initial weights and positions.
        name: of the layer; layers with the same seed and different names have different patterns.

    Attributes:
        values: the blocks, fp32 ``[n, b, b]`` or ``[parts, n, b, b]``, ordered by rows, then columns.
        rows: int32 ``[n]`` or ``[parts, n]``: the block row of each block.
        columns: int32, same shape: the block column of each block.
        grown_at: int32, same shape: the number of the update after which the block grew; 0 for initial blocks.
        tried: uint8 ``[⌈R·C / 8⌉]`` or ``[parts, ⌈R·C / 8⌉]``: a bit for each position, set if it ever had a block.
        scores: collects pooled dense gradients in the backward pass; None unless an update of the pattern is due.

    Raises:
        UserError: the sizes are not multiples of the block size, or no block is left.
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
        self.grid_shape, self.density = (grid.rows, grid.columns), grid.density  # of each part
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
        """Initialize parameters and buffers."""
        draw.normal(self.values, "values", self.std / math.sqrt(self.density), is_uniform=self.is_uniform)
        draw.constant(self.bias, 0.0)
        if self.rows.is_meta:  # another pipeline rank holds it
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
        """Set the bits in ``tried`` of the positions that have blocks now."""
        for tried, rows, columns in zip(*map(self.in_parts, (self.tried, self.rows, self.columns)), strict=True):
            present = torch.zeros(tried.numel() * 8, dtype=torch.uint8, device=tried.device)
            present[rows.long() * self.grid_shape[1] + columns.long()] = 1
            weights = 1 << torch.arange(8, dtype=torch.uint8, device=tried.device)
            tried |= (present.view(-1, 8) * weights).sum(1, dtype=torch.uint8)

    @property
    def share_tried(self) -> float:
        """Share of the positions that have or had a block."""
        bits = self.tried.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=self.tried.device) & 1
        return int(bits.sum()) / (self.num_parts * self.grid_shape[0] * self.grid_shape[1])

    def picture(self, most: int = 32) -> list[str]:
        """Return the pattern as at most ``most`` lines of ``most`` hexadecimal digits: shares of blocks, in 15ths.

        The shares are rounded up, so that 0 means no block; parts are stacked vertically.
        """
        grid = torch.zeros(self.num_parts * self.grid_shape[0], self.grid_shape[1])
        grid[self.pattern.rows.cpu(), self.pattern.columns.cpu()] = 1.0
        shape = (min(len(grid), most), min(grid.shape[1], most))
        shares = functional.adaptive_avg_pool2d(grid.unsqueeze(0), shape)[0]
        return ["".join(f"{digit:x}" for digit in line) for line in (shares * 15).ceil().int().tolist()]

    def in_parts(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of one of the layer's tensors; without stacked matrices, the tensor itself."""
        return tensor.unbind(0) if self.num_parts > 1 else (tensor,)

    @property
    def pattern(self) -> Pattern:
        """The positions of the blocks in the whole matrix, with parts stacked vertically; cached until they change.

        Compiled code computes it in each forward pass, since it cannot read the versions of tensors.

        Raises:
            UserError: rows and columns, which are state of the module, are not positions of blocks.
        """
        if torch.compiler.is_compiling():
            return self._pattern_of(self.rows, self.columns)
        key = (self.rows, self.rows._version, self.columns._version)
        if self._pattern is None or self._pattern[0] is not key[0] or self._pattern[1:3] != key[1:]:
            self._pattern = (*key, self._pattern_of(self.rows, self.columns))
        return self._pattern[3]

    def faults(self, rows: Tensor, columns: Tensor) -> Iterator[str]:
        """Yield why tensors cannot be the layer's ``rows`` and ``columns``, for each part; nothing if they can."""
        for own_rows, own_columns in zip(self.in_parts(rows), self.in_parts(columns), strict=True):
            if fault := fault_of(own_rows, own_columns, *self.grid_shape):
                yield fault

    def _pattern_of(self, rows: Tensor, columns: Tensor) -> Pattern:
        num_rows, num_columns = self.grid_shape
        if not torch.compiler.is_compiling() and not rows.is_meta:
            for fault in self.faults(rows, columns):
                raise UserError(f"the positions of a block-sparse layer are wrong: {fault}; load them again")
        first = torch.arange(self.num_parts, device=rows.device).unsqueeze(1) * num_rows
        below = (rows.view(self.num_parts, -1) + first).flatten()
        return Pattern.of(below, columns.flatten(), self.num_parts * num_rows, num_columns)

    def kernel(self, dtype: torch.dtype) -> Choice:
        """Return the kernel for activations of ``dtype`` and the reason for the choice."""
        choice: Choice = choose_kernel(self.asked_kernel, self.block_size, self.density, self.values.device, dtype)
        return choice

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        values = self.values.view(-1, self.block_size, self.block_size)
        bias = None if self.bias is None else self.bias.flatten()
        return block_sparse_linear(x, values, self.pattern, self.kernel(x.dtype).kernel, self.scores, bias)

    def to_dense(self) -> Tensor:
        """Return the matrix, ``[num_out, num_in]`` or ``[parts, num_out / parts, num_in]``, detached."""
        return self._dense(self.values.detach(), self.pattern)

    def _dense(self, values: Tensor, pattern: Pattern) -> Tensor:
        matrix = to_dense(values.view(-1, self.block_size, self.block_size), pattern)
        return matrix.view(self.num_parts, -1, self.num_in) if self.num_parts > 1 else matrix

    def densify(self, tensors: dict[str, Tensor], name: str) -> None:
        """Replace the stored ``tensors`` of the layer ``name`` by those of a dense layer, in place."""
        values, rows, columns, *_ = [
            tensors.pop(f"{name}.{kind}") for kind in ("values", "rows", "columns", "grown_at", "tried")
        ]
        tensors[f"{name}.weight"] = self._dense(values, self._pattern_of(rows, columns))

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return the layer with dense weights, cast once to ``dtype``, which is fastest for few tokens."""
        bias = None if self.bias is None else self.bias.flatten().to(dtype)
        return CastLinear(self.to_dense().flatten(0, -2).to(dtype), bias)

    def extra_repr(self) -> str:
        """Return the sizes, block size and density, for printing the module."""
        return f"{self.num_in}, {self.num_out}, block_size={self.block_size}, density={self.density:.4g}"


def sparsify(model: LanguageModel, config: SparsityConfig, section: object) -> None:
    """Replace the linear layers of ``model`` that ``config`` names by uninitialized block-sparse ones, in place.

    ::

        blocks.3.attention.qkv   QueryKeyValue -> BlockSparseLinear of three parts
        blocks.3.attention.out   Linear        -> BlockSparseLinear

    Layers of other classes, made by a custom ``make_linear``, stay unchanged.

    Args:
        model: on the meta device.
        config: names linear layers.
        section: the recipe's ``[model]``.

    Raises:
        UserError: a custom model does not have the layers that ``config`` names.
    """
    kinds = (Linear, StackedLinear, QueryKeyValue)
    linears = {name: module for name, module in model.named_modules() if type(module) in kinds}
    shapes = {name: _shape_of(module) for name, module in linears.items()}
    if linears_of(section) is None:
        for problem in config.problems_with(shapes):
            raise UserError(f"{problem.keys[0]}: {problem.message}")
    for name, grid in config.grids(shapes).items():
        module, shape = linears[name], shapes[name]
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
    """Return the block-sparse layers of a model by name, without those that other pipeline ranks hold."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, BlockSparseLinear)}
    return {name: module for name, module in found.items() if not module.values.is_meta}


def describe_blocks(model: LanguageModel) -> str:
    """Return a summary: the number of sparse layers, the share of their weights that is stored, and the kernels."""
    found = sparse_layers(model)
    table = found.pop(TABLE, None)
    parts = []
    if layers := list(found.values()):
        choices = {layer.kernel(model.compute_dtype) for layer in layers}
        kernels = "; ".join(sorted(f"{choice.kernel}: {choice.reason}" for choice in choices))
        parts.append(f"{counted(len(layers), 'linear layer')}, {_share(layers)}; kernel {kernels}")
    if table is not None:
        parts.append(f"token table, {_share([table])}")
    return "; ".join(parts) or "none on this rank"


def _share(layers: Sequence[BlockSparseLinear]) -> str:
    kept = sum(layer.values.numel() for layer in layers)
    total = sum(layer.num_out * layer.num_in for layer in layers)
    sizes = sorted({layer.block_size for layer in layers})
    return f"{kept / max(total, 1):.1%} of {total:,} weights in blocks of {', '.join(map(str, sizes))}"


def dense_weights(tensors: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Return the stored ``tensors`` of a sparse model as those of the equivalent dense model.

    Args:
        tensors: weights and buffers by name.
        model: of the same recipe, on any device, including meta.
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
