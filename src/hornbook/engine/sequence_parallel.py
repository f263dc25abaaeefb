"""Sequence parallelism: hooks that give each rank a slice of the tokens between the split layers.

::

    tokens --embedding--> slice --block--> slice --block--> slice --gather--> head
                                  norm, residual connection, dropout: slice
                                  attention, feed-forward: all tokens, a part of the features

The layers gather the tokens and scatter the sums (`hornbook.ops.tensor_parallel`). The hooks set the number of tokens
for them and slice the other per-token tensors: positions, segments, and the keys of residual dropout, so that the same
elements are dropped. GroupBERT's convolution needs neighboring tokens, so it gathers all tokens and slices its output.
The head gathers all tokens: it selects some of them, and its ranks share the vocabulary.

The gradients of norms, biases and position tables come from a slice, so they are summed over the ranks
(`hornbook.config.description.Description.sees_slice`).
"""

from typing import Any

from torch import Tensor, nn

from hornbook.model import LanguageModel
from hornbook.model.group_block import GatedConvolution
from hornbook.model.layers import Dropout
from hornbook.ops.tensor_parallel import SLICES, Slices
from hornbook.parallel.ranks import Ranks


def slice_tokens(model: LanguageModel, ranks: Ranks) -> None:
    """Add hooks to ``model`` so that each of ``ranks`` computes a slice of the tokens between split layers."""
    hooks = _Hooks(ranks)
    model.embedding.register_forward_pre_hook(hooks.begin_embedding)
    model.head.register_forward_pre_hook(hooks.gather_for_head)
    for block in model.blocks:
        block.register_forward_pre_hook(hooks.begin_block)
    for module in (model.embedding, *model.blocks):
        module.register_forward_hook(hooks.end, always_call=True)
    for module in model.blocks.modules():
        if isinstance(module, Dropout):
            module.register_forward_pre_hook(hooks.slice_keys)
        elif isinstance(module, GatedConvolution):
            module.register_forward_pre_hook(hooks.gather)
            module.register_forward_hook(hooks.slice_output)


class _Hooks:
    """The forward hooks of a model's modules; batches have the shape ``[B, T, ...]``, slices ``[B, t, ...]``.

    Args:
        ranks: those that share the tokens.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def begin_embedding(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens_BT, *of_tokens = given
        slices = self._slices(tokens_BT)
        SLICES.set(slices)
        return tokens_BT, *(None if tensor_BT is None else slices.own(tensor_BT) for tensor_BT in of_tokens)

    def begin_block(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        _, context = given
        SLICES.set(self._slices(context["keys"]))

    def end(self, module: nn.Module, given: tuple[Any, ...], result: Tensor) -> None:
        SLICES.set(None)

    def gather_for_head(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        use, x_BtD, batch = given
        return use, self._slices(batch["tokens"]).whole(x_BtD), batch

    def slice_keys(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, keys_BT, *residual = given
        return x_BtD, _current().own(keys_BT), *residual

    def gather(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, context = given
        return _current().enter(x_BtD), context

    def slice_output(self, module: nn.Module, given: tuple[Any, ...], result_BTD: Tensor) -> Tensor:
        return _current().own(result_BTD)

    def _slices(self, tokens_BT: Tensor) -> Slices:
        group = self._ranks.tensors
        assert group is not None, "sequence parallelism needs two or more ranks"
        return Slices(tokens_BT.shape[1], self._ranks.rank, self._ranks.size, group)


def _current() -> Slices:
    slices = SLICES.get()
    assert slices is not None, "called outside of a block"
    return slices
