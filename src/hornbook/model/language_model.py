"""A language model in three parts, whatever the parts are.

::

    batch {tokens, positions, keys, ...}
      -> embedding -> x_BTD -> blocks[0] .. blocks[L-1] -> x_BTD -> head -> losses or logits

The parts are what pipelining, phased execution and sparsity hold on to; ``trunk`` is the plain way through them.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from hornbook.model.attention import Context, document_mask
from hornbook.model.embedding import TokenAndPositionEmbedding
from hornbook.model.head import OutputHead
from hornbook.samples.batches import Batch


class LanguageModel(nn.Module):
    """``embedding``, ``blocks`` and a tied ``head``.

    Args:
        embedding: called with (tokens, positions, keys), each ``[B, T]``; holds the padded table ``tokens`` ``[V, D]``.
        blocks: each called with (x ``[B, T, D]``, context).
        head: tied to the embedding's table.
        max_positions: longest sequence that the model can take.
    """

    is_causal = True
    """Whether a token sees only what came before it, so that the model can write."""
    initial_cut: float | None = None
    """No initial weight is further than this many standard deviations from zero."""

    def __init__(
        self, embedding: TokenAndPositionEmbedding, blocks: list[nn.Module], head: OutputHead, *, max_positions: int
    ) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleList(blocks), head
        self.max_positions = max_positions
        self.tie()

    @property
    def vocab_size(self) -> int:
        """Tokens that exist, without the padding of the table."""
        return self.head.vocab_size

    def tie(self) -> None:
        """Let head and embedding share one table; call it again after moving the model to another device."""
        self.head.tie(self.embedding.tokens)

    def trunk(self, batch: Batch) -> Tensor:
        """Return the hidden states ``[B, T, D]`` before the head."""
        context = self.make_context(batch)
        x_BTD = self.embed(batch)
        for block in self.blocks:
            x_BTD = block(x_BTD, context)
        return x_BTD

    def embed(self, batch: Batch) -> Tensor:
        """Return what the first block is given, ``[B, T, D]``."""
        x_BTD: Tensor = self.embedding(batch["tokens"], batch["positions"], batch["keys"])
        return x_BTD

    def make_context(self, batch: Batch) -> Context:
        """Return what every block may need beside the hidden states: tensors, made once a micro-batch."""
        context = {"keys": batch["keys"]}
        if "documents" in batch:
            context["mask"] = document_mask(batch["documents"])
        return context

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter once, by name: the head's view of the table is left out."""
        for name, parameter in self.named_parameters():
            if name != "head.table":
                yield name, parameter

    def fold_tied_gradients(self) -> None:
        """Add the head's gradient of the shared table to the embedding's, and forget it."""
        self.embedding.tokens.grad = _sum(self.embedding.tokens.grad, self.head.table.grad)
        self.head.table.grad = None

    def logical(self, name: str, tensor: Tensor) -> Tensor:
        """Return the part of ``tensor``, shaped like parameter ``name``, that exists outside memory: no padding."""
        return tensor[: self.vocab_size] if name == "embedding.tokens" else tensor

    @property
    def num_parameters(self) -> int:
        """Parameters without padding, the tied table counted once."""
        return sum(self.logical(name, parameter).numel() for name, parameter in self.own_parameters())


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return first if second is None else second
    return first.add_(second)
