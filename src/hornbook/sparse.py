"""Block-sparse linear layers for custom models: ``from hornbook.sparse import BlockSparseLinear``."""

from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.ops.block_sparse import KERNELS

__all__ = ["KERNELS", "BlockSparseLinear"]
