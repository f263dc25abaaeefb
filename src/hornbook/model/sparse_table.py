"""A block-sparse token table ``[V, E]``, shared by the embedding and a tied head.

::

    embedding  tokens -> rows of the blocks' values                -> x
    head       a dense table, made from the blocks at each call    -> logits

Parameters, moments and stored gradients exist only for the blocks. While the head computes,
`hornbook.ops.cross_entropy` uses a dense table and returns a dense gradient.
"""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.sparsity import SparsityConfig
from hornbook.model.language_model import LanguageModel
from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.ops.block_pattern import to_dense


class BlockSparseTable(BlockSparseLinear):
    """A token table that is zero except for square blocks; as a linear layer it computes logits.

    Args:
        vocab_size: V; the last block row may extend beyond it.
        num_columns: E, a multiple of ``block_size``.
        block_size: b, rows and columns of a block.
        density: share of the blocks that are nonzero.
        std: standard deviation of the elements of an equivalent dense table.
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
        block_rows, num_tokens = tokens_N // size, len(tokens_N)
        firsts = pattern.row_starts[block_rows]
        counts = pattern.row_starts[block_rows + 1] - firsts
        if tokens.is_cuda:  # as many steps for each token, so that the host need not wait for the number of blocks
            steps = torch.arange(most := pattern.most_in_a_row, device=tokens.device)
            is_block = steps < counts.unsqueeze(1)
            blocks = (firsts.unsqueeze(1) + steps).masked_fill(~is_block, 0).flatten()
            token_of = torch.arange(num_tokens * most, device=tokens.device) // most
            row_of = token_of.masked_fill(~is_block.flatten(), num_tokens)  # a row more, for steps without a block
        else:
            token_of = row_of = torch.repeat_interleave(counts)  # the token of each block that is read
            before = counts.cumsum(0) - counts
            blocks = torch.arange(len(token_of)) + (firsts - before)[token_of]
        found = functional.embedding(blocks * size + (tokens_N % size)[token_of], self.values.float().view(-1, size))
        rows = found.new_zeros(num_tokens + tokens.is_cuda, pattern.num_columns, size)
        rows = rows.index_put((row_of, pattern.columns[blocks]), found)[:num_tokens]
        rows = rows.view(*tokens.shape, self.num_in)
        if self.scores is not None and rows.requires_grad:
            rows.register_hook(partial(self._score, tokens))  # type: ignore[no-untyped-call]
        return rows

    def whole(self) -> Tensor:
        """Return the dense table ``[rows, E]``, whose gradient flows to the blocks."""
        table = to_dense(self.values, self.pattern)
        if self.scores is not None and table.requires_grad:
            table.register_hook(self._keep)  # type: ignore[no-untyped-call]
        return table

    def for_generation(self, dtype: torch.dtype) -> nn.Module:
        """Return a copy: look-ups are in fp32, and the head gets a dense table."""
        return copy.copy(self)

    def densify(self, tensors: dict[str, Tensor], name: str) -> None:
        """Replace the stored ``tensors`` of the table ``name`` by those of a dense table, in place."""
        super().densify(tensors, name)
        tensors["embedding.tokens"] = tensors.pop(f"{name}.weight")[: self.vocab_size].contiguous()

    def _keep(self, gradient: Tensor) -> None:
        """Keep the gradient of the dense table until that of the look-ups arrives in the same backward pass."""
        self._from_head = gradient

    def _score(self, tokens: Tensor, gradient: Tensor) -> None:
        """Score the sum of a micro-batch's two gradients of the table, given that of the looked-up rows."""
        assert self.scores is not None, "the hook is registered only with scores"
        dense = torch.ops.aten.embedding_dense_backward(gradient, tokens, self.num_out, -1, False)
        from_head, self._from_head = self._from_head, None
        self.scores.add_dense(dense if from_head is None else dense.add_(from_head))


def sparsify_table(model: LanguageModel, config: SparsityConfig) -> None:
    """Replace the token table of ``model``, which its head shares, by an uninitialized block-sparse one, in place.

    Args:
        model: on the meta device, of one of hornbook's families.
        config: has ``embedding_block_size``.
    """
    embedding, head, size = model.embedding, model.head, config.embedding_block_size
    assert size is not None, "the caller has checked it"
    num_columns = embedding.tokens.shape[1]
    table = BlockSparseTable(model.vocab_size, num_columns, block_size=size, density=config.density, std=embedding.std)
    embedding.sparse_tokens = table
    embedding.register_parameter("tokens", None)
    del head.table

    def add_table(head: nn.Module, _: object) -> None:
        head.table = table.whole()

    def remove_table(head: nn.Module, *_: object) -> None:
        del head.table

    head.register_forward_pre_hook(add_table)
    head.register_forward_hook(remove_table, always_call=True)
