"""A language model in three parts, whatever the parts are; with causal blocks it is a GPT.

::

    batch {tokens, positions, keys, ...}
      -> embedding -> x_BTD -> blocks[0] .. blocks[L-1] -> x_BTD -> head(use, x_BTD, batch) -> losses or logits

A model and its head are *called*, with the function that uses the head, and never reached into: so a model that is
sharded, cut into pipeline stages or fetched from files runs the same objectives and tasks as one in memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.config import GPTConfig
from hornbook.model.attention import Context
from hornbook.model.block import PreNormBlock
from hornbook.model.head import CausalHead, OutputHead
from hornbook.model.label_heads import LastTokenClassifier
from hornbook.model.layers import Embedding, LayerNorm
from hornbook.ops.attention import document_mask, documents_of_windows
from hornbook.ops.native.kernels import FORMS
from hornbook.parallel.ranks import is_cut
from hornbook.samples.batches import Batch

_PADDED = ("embedding.tokens", "head.table")


class LanguageModel(nn.Module):
    """``embedding``, ``blocks`` and ``head``.

    Args:
        embedding: called with (tokens, positions, keys, segments), each ``[B, T]``, where segments may be None; holds
            the padded table ``tokens`` ``[V, D]``.
        blocks: each called with (x ``[B, T, D]``, context).
        head: called with (use, x ``[B, T, D]``, batch); its output table may be the embedding's.
        max_positions: longest sequence that the model can take.

    Attributes:
        vocab_size: tokens that exist, without the padding of the table.
        num_ids: ids that tokens may have; above ``vocab_size`` where the model reads larger ones as its last.
        compute_dtype: dtype of the activations, whatever that of the parameters.
        computes_on: the device that computes, where that is not the one of the parameters.
    """

    is_causal = True
    """Whether a token sees only what came before it, so that the model can write."""
    initial_cut: float | None = None
    """No initial weight is further than this many standard deviations from zero."""

    def __init__(self, embedding: Embedding, blocks: list[nn.Module], head: OutputHead, *, max_positions: int) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleList(blocks), head
        self.max_positions = max_positions
        self.vocab_size = self.num_ids = head.vocab_size
        self.compute_dtype = embedding.compute_dtype
        self.computes_on: torch.device | None = None
        self.tie()

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states between blocks."""
        return self.embedding.hidden_size

    @property
    def device(self) -> torch.device:
        """The device that computes: that of the parameters, but for those that other ranks of a pipeline hold."""
        if self.computes_on is not None:
            return self.computes_on
        for parameter in self.parameters():
            if not parameter.is_meta:
                break
        return parameter.device

    def tie(self) -> None:
        """Let a tied head share the embedding's table; call it again after moving the model to another device."""
        if self.embedding.tokens is not None:  # None where the table is block-sparse
            self.head.tie(self.embedding.tokens)

    def forward(self, use: Callable[[Any, Tensor, Batch], Any], batch: Batch) -> Any:
        """Return ``use(head, x_BTD, batch)``, where x_BTD are the hidden states ``[B, T, D]`` of the last block.

        Args:
            use: what is made of the head and the hidden states, such as an objective's ``sums``.
            batch: on the model's device.
        """
        context = self.make_context(batch)
        x_BTD = self.embedding(batch["tokens"], batch["positions"], batch["keys"], batch.get("segments"))
        for block in self.blocks:
            x_BTD = block(x_BTD, context)
        return self.head(use, x_BTD, batch)

    def make_context(self, batch: Batch) -> Context:
        """Return what blocks need beside the hidden states: tensors, made once a micro-batch."""
        context: Context = {"keys": batch["keys"], "positions": batch["positions"]}
        if "documents" in batch:
            context["mask"] = document_mask(batch["documents"])
            if FORMS and (found := documents_of_windows(batch["documents"])) is not None:
                context["firsts"], context["lengths"] = found
        return context

    def allocate(self, device: torch.device, parts: Iterable[nn.Module] | None = None) -> None:
        """Give a model that was built on the meta device memory on ``device``, its content still to be filled in.

        Parameters that modules share stay shared, which ``nn.Module.to_empty`` alone does not see to.

        Args:
            device: of the memory.
            parts: those modules alone; what other ranks of a pipeline hold stays on the meta device.
        """

        def memory(tensor: Tensor) -> Tensor:
            if is_cut(tensor):
                return torch.empty_like(tensor, device=device)
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)  # `empty_like` imports SymPy: 0.5 s

        names: dict[int, list[str]] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        for part in (self,) if parts is None else parts:
            part._apply(memory)  # type: ignore[no-untyped-call]
        for first, *others in names.values():
            for module, _, leaf in (other.rpartition(".") for other in others):
                setattr(self.get_submodule(module), leaf, self.get_parameter(first))
        self.tie()

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return what checkpoints hold of the model by name: parameters and persistent buffers, without padding.

        They share the model's memory and have no autograd history.
        """
        return {name: self.logical(name, tensor) for name, tensor in self.saved()}

    def saved(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the same with the padding, which may be cut over ranks."""
        for name, parameter in self.own_parameters():
            yield name, parameter.detach()
        persistent = self.state_dict().keys()
        yield from ((name, buffer.detach()) for name, buffer in self.named_buffers() if name in persistent)

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter once, by name: a tied head's view of the table is left out."""
        for name, parameter in self.named_parameters():
            if name != "head.table" or not self.head.is_tied:
                yield name, parameter

    def fold_tied_gradients(self) -> None:
        """Add a tied head's gradient of the shared table to the embedding's, and forget it."""
        if not self.head.is_tied or self.embedding.tokens is None:
            return
        tokens, table = self.embedding.tokens, self.head.table
        if tokens.grad is None:
            tokens.grad = table.grad
        elif table.grad is not None:
            tokens.grad += table.grad
        table.grad = None

    def logical(self, name: str, tensor: Tensor) -> Tensor:
        """Return ``tensor``, which has the shape of parameter ``name``, without the padding that is in memory only."""
        return tensor[: self.vocab_size] if name in _PADDED else tensor

    def logical_shape(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of ``logical(name, tensor)``."""
        return (self.vocab_size, *tensor.shape[1:]) if name in _PADDED else tuple(tensor.shape)

    @property
    def num_parameters(self) -> int:
        """Parameters without padding, a tied table counted once."""
        return sum(math.prod(self.logical_shape(name, parameter)) for name, parameter in self.own_parameters())


def build_gpt(config: GPTConfig, compute_dtype: torch.dtype) -> LanguageModel:
    """Return a GPT-2 or GPT-3 (Radford et al. 2019, Brown et al. 2020) whose parameters are not yet initialized."""
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    embedding = Embedding(
        config.vocab_size,
        config.max_positions,
        config.hidden_size,
        dropout=config.embedding_dropout,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )
    blocks: list[nn.Module] = [PreNormBlock(config, index) for index in range(config.num_layers)]
    head: OutputHead = CausalHead(config.hidden_size, config.vocab_size, epsilon=config.layer_norm_epsilon)
    if config.head == "classification":
        head = _classifier(config, config.vocab_size)
    return LanguageModel(embedding, blocks, head, max_positions=config.max_positions)


def _classifier(config: GPTConfig, vocab_size: int) -> LastTokenClassifier:
    assert config.num_labels is not None, "the run counts the classes before it builds the model"
    size, norm = config.hidden_size, LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
    return LastTokenClassifier(size, vocab_size, num_labels=config.num_labels, std=config.initializer_std, norm=norm)
