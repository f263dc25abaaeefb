"""Block-sparse linear maps, for models of one's own: ``from hornbook.sparse import BlockSparseLinear``."""

from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.ops.block_sparse import KERNELS

__all__ = ["KERNELS", "BlockSparseLinear"]
