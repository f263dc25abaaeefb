"""The base of all models, embedding, blocks and head, and the builder of GPT.

::

    batch {tokens, positions, keys, ...}
      -> embedding -> x_BTD -> blocks[0] .. blocks[L-1] -> x_BTD -> head(use, x_BTD, batch) -> losses or logits

Callers pass the function that uses the head instead of accessing the head's attributes, so a model that is sharded,
split into pipeline stages or loaded from files runs the same objectives and tasks as one in memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hornbook.config import GPTConfig
from hornbook.config.description import Description
from hornbook.model.attention import Context, KeyValues, SelfAttention
from hornbook.model.block import PreNormBlock
from hornbook.model.head import CausalHead, OutputHead
from hornbook.model.label_heads import LastTokenClassifier
from hornbook.model.layers import Embedding, LayerNorm, RMSNorm, add_norm, is_unmodified
from hornbook.model.rotary import Rotary
from hornbook.ops.attention import document_context
from hornbook.ops.spans import selected, spans_of_windows
from hornbook.ops.triton.operators import can_attend
from hornbook.parallel.ranks import is_cut
from hornbook.samples.batches import Batch, to_device

_PADDED = ("embedding.tokens", "head.table")


class LanguageModel(nn.Module):
    """A language model: ``embedding``, ``blocks`` and ``head``.

    Args:
        embedding: called with (tokens, positions, keys, segments), each ``[B, T]``, where segments may be None; holds
            the padded table ``tokens`` ``[V, D]``.
        blocks: each called with (x ``[B, T, D]``, context).
        head: called with (use, x ``[B, T, D]``, batch); its output table may be the embedding's.
        max_positions: maximum sequence length.

    Attributes:
        vocab_size: size of the vocabulary, without the padding of the table.
        num_ids: number of accepted token ids; greater than ``vocab_size`` if the model clamps larger ids.
        compute_dtype: dtype of the activations, independent of that of the parameters.
        computes_on: the device that computes, if it is not that of the parameters.
        description: of its layers; None for a custom model that gives none.
        rotations: of rotary positions, by their entries in the context.
    """

    is_causal = True
    """Whether tokens see only earlier tokens, so that the model can generate text."""
    initial_cut: float | None = None
    """Initial weights are truncated at this many standard deviations."""
    passes_embedding = False
    """Whether blocks get the embedding's result in their context."""

    def __init__(
        self, embedding: Embedding, blocks: Sequence[nn.Module], head: OutputHead, *, max_positions: int
    ) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleList(blocks), head
        self.max_positions = max_positions
        self.vocab_size = self.num_ids = head.vocab_size
        self.compute_dtype = embedding.compute_dtype
        self.computes_on: torch.device | None = None
        self.description: Description | None = None
        self.rotations: dict[Literal["rotation", "local_rotation"], Rotary] = {}
        self.tie()

    @property
    def hidden_size(self) -> int:
        """Size of the hidden states between blocks."""
        return self.embedding.hidden_size

    @property
    def device(self) -> torch.device:
        """The device that computes: that of the parameters, ignoring those that other pipeline ranks hold."""
        if self.computes_on is not None:
            return self.computes_on
        for parameter in self.parameters():
            if not parameter.is_meta:
                break
        return parameter.device

    def tie(self) -> None:
        """Share the embedding's table with a tied head; call it again after moving the model to another device."""
        if self.embedding.tokens is not None:  # None if the table is block-sparse
            self.embedding.twins = self.head.tie(self.embedding.tokens)

    def forward(self, use: Callable[[Any, Tensor, Batch], Any], batch: Batch, cache: KeyValues | None = None) -> Any:
        """Return ``use(head, x_BTD, batch)``, where x_BTD are the hidden states ``[B, T, D]`` of the last block.

        Args:
            use: computes the result from the head and the hidden states, such as an objective's ``sums``.
            batch: on the model's device.
            cache: in generation, keys and values of the tokens before those of the batch.
        """
        context = self.make_context(batch)
        if cache is not None:
            context["cache"] = cache
        x_BTD = self.embedding(batch["tokens"], batch["positions"], batch["keys"], batch.get("segments"))
        if self.passes_embedding:
            context["embedding"] = x_BTD
        if x_BTD.is_cuda and all(is_unmodified(block, PreNormBlock) for block in self.blocks):
            return self._forward_joined(use, x_BTD, context, batch)
        for block in self.blocks:
            x_BTD = block(x_BTD, context)
        return self.head(use, x_BTD, batch)

    def _forward_joined(self, use: Callable[..., Any], x_BTD: Tensor, context: Context, batch: Batch) -> Any:
        """Run blocks and head on a GPU, where one kernel makes the last addition of a block and the norm behind it."""
        blocks: list[Any] = [*self.blocks]
        norms = [block.attention_norm for block in blocks]
        if self.training and is_unmodified(self.head, CausalHead) and isinstance(self.head.norm, LayerNorm | RMSNorm):
            norms.append(self.head.norm)
        normed_BTD: Tensor | None = None
        for block, norm in zip_longest(blocks, norms[1:]):
            x_BTD, changed_BTD = block.branches(x_BTD, normed_BTD, context)
            dropout, keys_BT = block.feed_forward_dropout, context["keys"]
            if norm is None:
                x_BTD, normed_BTD = dropout(changed_BTD, keys_BT, x_BTD), None
            else:
                x_BTD, normed_BTD = add_norm(dropout, norm, changed_BTD, keys_BT, x_BTD)
        del changed_BTD  # whose memory the logits may take
        if normed_BTD is None:
            return self.head(use, x_BTD, batch)
        return self.head.forward_normed(use, x_BTD, normed_BTD, batch)

    def make_context(self, batch: Batch) -> Context:
        """Return the tensors that blocks need besides the hidden states, computed once per micro-batch."""
        context: Context = {"keys": batch["keys"], "positions": batch["positions"], "tokens": batch["tokens"]}
        for name, rotary in self.rotations.items():
            context[name] = rotary(batch["positions"])
        if self.takes_spans(batch["tokens"].device):
            context["spans"] = spans_of_windows(batch["positions"], batch.get("documents"))
        if "documents" in batch:
            context["documents"] = batch["documents"]
            if "spans" not in context:
                context.update(document_context(batch["documents"]))  # type: ignore[typeddict-item]
        return context

    def takes_spans(self, device: torch.device) -> bool:
        """Return whether Triton computes the attention of all blocks for a batch on ``device``."""
        return device.type == "cuda" and selected(device) and self._has_narrow_heads

    @cached_property
    def _has_narrow_heads(self) -> bool:
        attentions = (module for module in self.blocks.modules() if isinstance(module, SelfAttention))
        return all(can_attend(self.compute_dtype, attention.head_size) for attention in attentions)

    def allocate(self, device: torch.device, parts: Iterable[nn.Module] | None = None) -> None:
        """Allocate uninitialized memory on ``device`` for a model that was built on the meta device.

        Parameters that modules share stay shared, unlike with ``nn.Module.to_empty``.

        Args:
            device: of the memory.
            parts: modules to allocate, all by default; what other pipeline ranks hold stays on the meta device.
        """

        def empty(tensor: Tensor) -> Tensor:
            if is_cut(tensor):
                return torch.empty_like(tensor, device=device)
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)  # `empty_like` imports SymPy: 0.5 s

        names: dict[int, list[str]] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        for part in (self,) if parts is None else parts:
            part._apply(empty)  # type: ignore[no-untyped-call]
        for first, *others in names.values():
            for module, _, leaf in (other.rpartition(".") for other in others):
                setattr(self.get_submodule(module), leaf, self.get_parameter(first))
        self.tie()

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that checkpoints hold by name: parameters and persistent buffers, without padding.

        They share the model's memory and are detached.
        """
        return {name: self.logical(name, tensor) for name, tensor in self.saved()}

    def saved(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the same tensors with padding; tensor parallelism may have split them."""
        for name, parameter in self.own_parameters():
            yield name, parameter.detach()
        persistent = self.state_dict().keys()
        yield from ((name, buffer.detach()) for name, buffer in self.named_buffers() if name in persistent)

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters by name, without a tied head's view of the table."""
        for name, parameter in self.named_parameters():
            if name != "head.table" or not self.head.is_tied:
                yield name, parameter

    def fold_tied_gradients(self) -> None:
        """Add a tied head's gradient of the shared table to the embedding's, and clear it."""
        if not self.head.is_tied or self.embedding.tokens is None:
            return
        tokens, table = self.embedding.tokens, self.head.table
        if tokens.grad is None:
            tokens.grad = table.grad
        elif table.grad is not None:
            tokens.grad += table.grad
        table.grad = None

    def logical(self, name: str, tensor: Tensor) -> Tensor:
        """Return ``tensor``, which has the shape of parameter ``name``, without padding."""
        return tensor[: self.vocab_size] if name in _PADDED else tensor

    def logical_shape(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of ``logical(name, tensor)``."""
        return (self.vocab_size, *tensor.shape[1:]) if name in _PADDED else tuple(tensor.shape)

    @property
    def num_parameters(self) -> int:
        """Number of parameters without padding; a tied table is counted once."""
        return sum(math.prod(self.logical_shape(name, parameter)) for name, parameter in self.own_parameters())


def build_gpt(config: GPTConfig, compute_dtype: torch.dtype) -> LanguageModel:
    """Return a GPT-2 or GPT-3 (Radford et al. 2019, Brown et al. 2020) with uninitialized parameters."""
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    embedding = Embedding(
        config.vocab_size,
        config.max_positions,
        config.hidden_size,
        dropout=config.embedding_dropout,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )
    blocks = [PreNormBlock(config, index) for index in range(config.num_layers)]
    head: OutputHead = CausalHead(config.hidden_size, config.vocab_size, epsilon=config.layer_norm_epsilon)
    if config.head == "classification":
        assert config.num_labels is not None, "the run counts the classes before it builds the model"
        size, norm = config.hidden_size, LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
        head = LastTokenClassifier(
            size, config.vocab_size, num_labels=config.num_labels, std=config.initializer_std, norm=norm
        )
    return LanguageModel(embedding, blocks, head, max_positions=config.max_positions)


Result = TypeVar("Result")


class Forward(Protocol):
    """A forward pass of one batch through a model in evaluation mode.

    Evaluation and generation take one, so the same code serves models in the memory of one device
    (``forward_resident``), models split over ranks (``forward_split``) and models in files.
    """

    def __call__(self, model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
        """Return ``use(head, x_BTD, batch)`` on all ranks, without gradients.

        Args:
            model: in evaluation mode.
            batch: in host memory; ``use`` gets it on the model's device.
            use: called with the head, the last block's hidden states ``[B, T, D]`` and the batch; returns a tensor on
                the model's device, or a mapping or tuple of tensors.
        """
        ...


@torch.no_grad()
def forward_resident(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Run a model that is entirely in the memory of its device (see ``Forward``)."""
    result: Result = model(use, to_device(batch, model.device))
    return result


def forward_split(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Run a model whose weights are split over ranks, which must all call this equally often (see ``Forward``).

    It differs from ``forward_resident`` by identity only: generation then computes whole windows, without a cache.
    """
    return forward_resident(model, batch, use)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode inside the ``with`` block, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
