"""A token table of blocks, ``[V, E]``, that a tied head multiplies by.

::

    embedding  tokens -> rows of the blocks' values           -> x
    head       a dense table, made of the blocks at each call -> logits, as with a dense table

Parameters, moments and the gradients that are kept exist for the blocks alone. While the head computes, there is a
dense table and a dense gradient of it, as `hornbook.ops.cross_entropy` takes and gives them.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.sparsity import SparsityConfig
from hornbook.model.language_model import LanguageModel
from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.ops.block_pattern import to_dense


class BlockSparseTable(BlockSparseLinear):
    """The rows of a token table, zero but for square blocks; as a linear map it gives logits.

    Args:
        vocab_size: V; the last row of blocks may reach beyond it.
        num_columns: E, a multiple of ``block_size``.
        block_size: b, rows and columns of a block.
        density: share of the blocks that are kept.
        std: standard deviation of the rows' numbers if the table were dense.
    """

    def __init__(self, vocab_size: int, num_columns: int, *, block_size: int, density: float, std: float) -> None:
        num_rows = -(-vocab_size // block_size) * block_size
        super().__init__(
            num_columns, num_rows, block_size=block_size, density=density, std=std, bias=False, kernel="reference"
        )
        self.vocab_size = vocab_size
        self._from_head: Tensor | None = None

    def look_up(self, tokens: Tensor) -> Tensor:
        """Return the rows of ``tokens``, int64 ``[...]``, in fp32 ``[..., E]``."""
        size, pattern, tokens_N = self.block_size, self.pattern, tokens.flatten()
        lines = tokens_N // size
        firsts, counts = pattern.row_starts[lines], pattern.row_starts[lines + 1] - pattern.row_starts[lines]
        token_of = torch.repeat_interleave(counts)  # of each block that a token's row has
        before = counts.cumsum(0) - counts
        blocks = torch.arange(len(token_of), device=tokens.device) + (firsts - before)[token_of]
        found = functional.embedding(blocks * size + (tokens_N % size)[token_of], self.values.float().view(-1, size))
        places = (token_of, pattern.columns[blocks])
        rows = found.new_zeros(len(tokens_N), pattern.num_columns, size).index_put(places, found)
        rows = rows.view(*tokens.shape, self.num_in)
        if self.scores is not None and rows.requires_grad:
            rows.register_hook(partial(self._score, tokens))  # type: ignore[no-untyped-call]
        return rows

    def whole(self) -> Tensor:
        """Return the dense table ``[rows, E]``, whose gradient goes to the blocks."""
        table = to_dense(self.values, self.pattern)
        if self.scores is not None and table.requires_grad:
            table.register_hook(self._keep)  # type: ignore[no-untyped-call]
        return table

    def densify(self, tensors: dict[str, Tensor], name: str) -> None:
        """Replace the tensors of the table called ``name``, stored ones, by those of a dense one, in place."""
        super().densify(tensors, name)
        tensors["embedding.tokens"] = tensors.pop(f"{name}.weight")[: self.vocab_size].contiguous()

    def _keep(self, gradient: Tensor) -> None:
        """Keep the gradient of the whole table until that of the look-ups comes, in the same backward pass."""
        self._from_head = gradient

    def _score(self, tokens: Tensor, gradient: Tensor) -> None:
        """Score the sum of a micro-batch's two gradients of the table, given that of the rows of ``tokens``."""
        assert self.scores is not None, "asked for"
        dense = torch.ops.aten.embedding_dense_backward(gradient, tokens, self.num_out, -1, False)
        from_head, self._from_head = self._from_head, None
        self.scores.add_dense(dense if from_head is None else dense.add_(from_head))


def sparsify_table(model: LanguageModel, config: SparsityConfig) -> None:
    """Replace the token table of ``model``, which its head shares, by a block-sparse one, not yet drawn, in place.

    Args:
        model: on the meta device, of a family of hornbook's.
        config: has the size of the table's blocks.
    """
    embedding, head, size = model.embedding, model.head, config.embedding_block_size
    assert size is not None, "asked for"
    num_columns = embedding.tokens.shape[1]
    table = BlockSparseTable(model.vocab_size, num_columns, block_size=size, density=config.density, std=embedding.std)
    embedding.sparse_tokens = table
    embedding.register_parameter("tokens", None)
    del head.table

    def make_whole(head: nn.Module, _: object) -> None:
        head.table = table.whole()

    def forget(head: nn.Module, *_: object) -> None:
        del head.table

    head.register_forward_pre_hook(make_whole)
    head.register_forward_hook(forget, always_call=True)
