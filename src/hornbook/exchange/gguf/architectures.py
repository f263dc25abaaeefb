"""The models that llama.cpp computes as hornbook does: GPT-2, Llama, Qwen 3, OLMo 2, Gemma 3.

::

    [model]                                    GGUF (architecture qwen3)
    num_layers, num_kv_heads, rope_theta       qwen3.block_count, qwen3.attention.head_count_kv, qwen3.rope.freq_base
    blocks.3.attention.qkv.weight  [3, D, D]   blk.3.attn_q.weight, blk.3.attn_k.weight, blk.3.attn_v.weight  [D, D]
    embedding.tokens               [V, D]      token_embd.weight

The names of tensors are those of transformers, translated by the library. llama.cpp's Llama rotates adjacent columns
where transformers rotates the two halves of a head, so the rows of its queries and keys are reordered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any, Final

import torch
from torch import Tensor

from hornbook.config import DecoderConfig, GPTConfig, TransformerConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import gpt2
from hornbook.exchange.huggingface.common import refuse_head_size
from hornbook.exchange.huggingface.decoder_families import DECODERS, closest_decoder
from hornbook.exchange.huggingface.decoders import DecoderFamily
from hornbook.model.rotary import plain_rotary, rotary_of

_SUFFIXES: Final = (".weight", ".bias")
_LAYERS_OF_GEMMA_27B: Final = 62


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model of llama.cpp.

    Attributes:
        name: its name in GGUF.
        activation: the only activation of its feed-forward.
        scalings: the scalings of its rotary positions.
        swaps_columns: whether it rotates adjacent columns instead of the halves of a head.
        needs_head: whether its output table is required even if it is that of the embedding.
        has_head_size: whether heads can have another size than hidden_size / num_heads.
    """

    name: str
    activation: str = "silu"
    scalings: tuple[str, ...] = ("none", "linear", "yarn")
    swaps_columns: bool = False
    needs_head: bool = False
    has_head_size: bool = True

    def differences(self, config: DecoderConfig) -> Iterator[str]:
        """Yield the options in which a model of the same family in transformers differs from llama.cpp's."""
        head_size = config.effective_head_size
        if config.activation != self.activation:
            yield f'model.activation = "{config.activation}"'
        if config.rope_scaling not in self.scalings:
            yield f'model.rope_scaling = "{config.rope_scaling}"'
        if config.rope_attention_factor is not None and config.rope_scaling == "yarn":
            yield "model.rope_attention_factor"
        if self.name != "gemma3" and config.window is not None:
            yield "model.window"
        if not self.has_head_size and head_size * config.num_heads != config.hidden_size:
            yield "model.head_size"
        # llama.cpp takes a Gemma 3 for the one with 27B parameters by its number of layers
        derived = config.hidden_size // config.num_heads if config.num_layers == _LAYERS_OF_GEMMA_27B else head_size
        if self.name == "gemma3" and not isclose(config.attention_scale or head_size**-0.5, derived**-0.5):
            yield "model.attention_scale"
        if self.name == "gemma3" and config.rope_scaling != "none" and config.window and not config.local_rope_theta:
            yield "model.rope_scaling of layers with windows"


_GPT2: Final = Architecture(name="gpt2", activation="gelu_tanh")
_DECODERS: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(name="llama", scalings=("none", "linear", "llama3", "yarn"), swaps_columns=True),
    "qwen3": Architecture(name="qwen3"),
    "olmo2": Architecture(name="olmo2", needs_head=True, has_head_size=False),
    "gemma3_text": Architecture(name="gemma3", activation="gelu_tanh", scalings=("none", "linear")),
}
"""The architectures by transformers' types."""


def architecture_of(config: TransformerConfig) -> tuple[Architecture, DecoderFamily | None]:
    """Return the architecture of a model, and its family in transformers, unless it is GPT-2.

    Raises CheckpointError if llama.cpp cannot represent the model; the message has the options that differ.
    """
    if type(config) is GPTConfig:
        refuse_head_size(config, "GPT-2")
        family, differences, architecture = None, list[str](), _GPT2
        if config.activation != _GPT2.activation:
            differences = [f'model.activation = "{config.activation}"']
        if config.head != "pretraining":
            differences.append(f'model.head = "{config.head}"')
    elif type(config) is DecoderConfig:
        family, differences = closest_decoder(config, [DECODERS[kind] for kind in _DECODERS])
        architecture = _DECODERS[family.model_type]
        differences = [*differences, *([] if differences else architecture.differences(config))]
    else:
        raise CheckpointError(
            f"a model of the family {config.family!r} cannot be exported as GGUF; expected 'gpt' or 'decoder'"
        )
    if differences:
        raise CheckpointError(
            f"llama.cpp has no model with these options: the closest, {architecture.name}, differs in "
            f"{', '.join(differences)}; this model cannot be exported as GGUF"
        )
    return architecture, family


def add_sizes(writer: Any, config: TransformerConfig) -> None:
    """Add the keys of a model's sizes and positions to a ``gguf.GGUFWriter``."""
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.effective_feed_forward_size)
    writer.add_head_count(config.num_heads)
    writer.add_vocab_size(config.vocab_size)
    if isinstance(config, GPTConfig):
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    assert isinstance(config, DecoderConfig), "the architecture was found"
    writer.add_head_count_kv(config.effective_kv_heads)
    writer.add_key_length(config.effective_head_size)
    writer.add_value_length(config.effective_head_size)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_dimension_count(config.rotated_size)
    writer.add_rope_freq_base(config.rope_theta)
    if config.rope_scaling in ("linear", "yarn"):
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType(config.rope_scaling))
        writer.add_rope_scaling_factor(config.rope_factor)
    if config.rope_scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(config.rope_original_positions)
        writer.add_rope_scaling_yarn_beta_fast(config.rope_beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(config.rope_beta_slow)
    if config.window is not None:
        writer.add_sliding_window(config.window)
        writer.add_sliding_window_pattern([config.window_of(index) is not None for index in range(config.num_layers)])
        writer.add_rope_freq_base_swa(config.local_rope_theta or config.rope_theta)
    if config.logit_cap is not None:
        writer.add_final_logit_softcapping(config.logit_cap)


def tensors_of(
    config: TransformerConfig, architecture: Architecture, family: DecoderFamily | None, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model by their names in GGUF, as views where the order of rows is the same."""
    import gguf

    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(kind, config.num_layers)
    theirs = _gpt2(config, weights) if family is None else _decoder(config, family, architecture, weights)
    for name, tensor in theirs:
        found = names.get_name(name, try_suffixes=_SUFFIXES)
        assert found is not None, f"{architecture.name} has no {name}"
        yield found, tensor
    if family is not None and architecture.needs_head and isinstance(config, DecoderConfig) and config.tied:
        yield "output.weight", weights["embedding.tokens"]
    if isinstance(config, DecoderConfig) and config.rope_scaling == "llama3":
        scaled, plain = rotary_of(config), plain_rotary(config.rope_theta, config.rotated_size)
        assert scaled is not None, "the architecture has rotary positions"
        pairs = zip(plain.frequencies, scaled.frequencies, strict=True)
        yield "rope_freqs.weight", torch.tensor([frequency / slower for frequency, slower in pairs])


def _gpt2(config: Any, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for weight in gpt2.layout(config):
        tensor = weights[weight.ours]
        shape = tuple(reversed(weight.their_shape)) if weight.is_transposed else weight.their_shape
        yield weight.their_name(), tensor.reshape(shape)


def _decoder(
    config: Any, family: DecoderFamily, architecture: Architecture, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield a decoder's tensors by their names in transformers, with gains as in hornbook."""
    for weight in family.layout(config, "model."):
        for name, tensor in weight.to_theirs(weights[weight.ours]).items():
            swaps = architecture.swaps_columns and (".q_proj." in name or ".k_proj." in name)
            yield name, _adjacent(tensor, config.effective_head_size) if swaps else tensor


def _adjacent(tensor: Tensor, head_size: int) -> Tensor:
    """Return the rows of a matrix, or a bias, with the rotated pairs of each head beside each other."""
    return tensor.view(-1, 2, head_size // 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
