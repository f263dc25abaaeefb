"""The model in the form that generation runs: it reads new tokens, with the keys and values of earlier ones cached.

    tokens [B, T], positions [B, T] --embedding--> x_BTD --block 0, cache 0--> ... --> x_BTD --head--> logits [B, V]
                                                            [B, 2, H, S, K]: the last T of its S columns are written

The parts provide incremental forms (`hornbook.model.incremental`). The weights are cast once to the activations' dtype;
in fp32 they are the model's own. On a CPU, native operators compute one new token per text in a single call, from the
first block to the logits, if they support all blocks (`hornbook.ops.native.token_block`).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hornbook.model import LanguageModel
from hornbook.model.block import IncrementalPreNorm
from hornbook.model.head import OutputHead
from hornbook.model.incremental import IncrementalBlock, incremental_form
from hornbook.ops.native.choice import form_for_tokens
from hornbook.ops.native.token_block import TokenModel

_FORWARD = ("forward", "make_context")
"""Methods of `LanguageModel` that `IncrementalModel` replaces."""


class IncrementalModel:
    """A language model whose blocks all have a key-value cache.

    On a CPU, the cache is fp32 whatever the activations' dtype: attention with one query is memory traffic and
    conversions there, and takes five times as long in bf16.

    Args:
        model: its weights are copied now; do not train it meanwhile.
        blocks: incremental forms of its blocks.
    """

    def __init__(self, model: LanguageModel, blocks: Sequence[IncrementalBlock]) -> None:
        self.device, dtype = model.device, model.compute_dtype
        self.cache_shapes = [block.cache_shape for block in blocks]
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else dtype
        self.max_positions = model.max_positions
        self._embedding, self._blocks = incremental_form(model.embedding, dtype) or model.embedding, blocks
        self._logits = _logits_of(model)
        self._token = _token_model(blocks, self._logits, torch.empty(0, dtype=dtype, device=self.device))

    @torch.inference_mode()
    def logits(
        self, tokens_BT: Tensor, positions_BT: Tensor, caches: Sequence[Tensor], mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of the tokens after the last column.

        Args:
            tokens_BT: int64, new tokens.
            positions_BT: int64, their positions.
            caches: for each block ``[B, 2, H, S, K]``, see ``IncrementalBlock``.
            mask: see ``IncrementalBlock``.
        """
        x_BTD = self._embedding(tokens_BT, positions_BT, tokens_BT)  # no dropout, so no keys
        if self._token is not None and tokens_BT.shape[1] == 1:
            y_BD = self._token(x_BTD[:, 0], caches, mask)
            return y_BD if self._token.head is not None else self._logits(y_BD)
        for block, cache in zip(self._blocks, caches, strict=True):
            x_BTD = block(x_BTD, cache, mask, positions_BT)
        return self._logits(x_BTD[:, -1])


def _token_model(blocks: Sequence[IncrementalBlock], logits: object, like: Tensor) -> TokenModel | None:
    """Return the native model for one new token per text; None if PyTorch is faster or a block is not supported."""
    form = form_for_tokens(like)
    if form is None:
        return None
    made = [block.token_block() if isinstance(block, IncrementalPreNorm) else None for block in blocks]
    known = [block for block in made if block is not None]
    head = logits.head if isinstance(logits, TokenModel) else None
    return TokenModel(form, known, head) if len(known) == len(made) else None


def _logits_of(model: LanguageModel) -> Callable[[Tensor], Tensor]:
    """Return ``logits`` of the head, in its incremental form if it has one."""

    def form(head: OutputHead, *_: object) -> Callable[[Tensor], Tensor]:
        made: Callable[[Tensor], Tensor] | None
        made = incremental_form(head, model.compute_dtype, computed_by=("logits", "prepare"))
        return made or head.logits

    if getattr(model.embedding, "sparse_tokens", None) is None:
        return form(model.head)
    found: Callable[[Tensor], Tensor] = model.head(form, None, {})  # the token table is materialized during the call
    return found


def incremental(model: LanguageModel) -> IncrementalModel | str:
    """Return the incremental form of a model, or the name of the part without a key-value cache.

    Args:
        model: in evaluation mode. A model with its own ``forward``, or with a block without an incremental form, must
            recompute the whole window for every token.
    """
    if any(getattr(type(model), name) is not getattr(LanguageModel, name) for name in _FORWARD):
        return type(model).__name__
    blocks: list[IncrementalBlock] = []
    for number, block in enumerate(model.blocks):
        form = incremental_form(block, model.compute_dtype)
        if form is None:
            return f"blocks.{number}, {type(block).__name__},"
        blocks.append(form)
    return IncrementalModel(model, blocks)
