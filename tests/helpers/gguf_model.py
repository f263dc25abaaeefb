"""A GGUF file computed as llama.cpp computes it, from nothing but its keys and tensors, in float64."""

import math
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from torch.nn import functional

NORMAL_ROPE = ("llama",)
"""Architectures whose rotation takes adjacent columns; in the others, column i and i + K/2."""


class GGUFModel:
    """The keys and tensors of a file, and the logits of its model."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.keys: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self.name: str = self.keys["general.architecture"]
        self.types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        self.tensors = {tensor.name: self._read(tensor) for tensor in reader.tensors}

    @staticmethod
    def _read(tensor: Any) -> Tensor:
        data = torch.from_numpy(tensor.data.copy())
        return data.view(torch.bfloat16) if tensor.tensor_type.name == "BF16" else data

    def key(self, name: str, default: Any = None) -> Any:
        return self.keys.get(f"{self.name}.{name}", default)

    def logits(self, ids: list[int]) -> Tensor:
        """Return the logits ``[T, V]``."""
        x = self._of("token_embd")[ids]
        if self.name == "gpt2":
            x = x + self._of("position_embd")[: len(ids)]
        if self.name.startswith("gemma"):
            x = x * math.sqrt(x.shape[1])
        for index in range(self.key("block_count")):
            prefix = f"blk.{index}."
            mixed = self._attention(prefix, index, self._norm(x, f"{prefix}attn_norm"))
            x = x + self._norm(mixed, f"{prefix}post_attention_norm")
            gate = self._linear(u := self._norm(x, f"{prefix}ffn_norm"), f"{prefix}ffn_up")
            if f"{prefix}ffn_gate.weight" in self.tensors:
                other = self._linear(u, f"{prefix}ffn_gate")
                gate = gate * (functional.silu(other) if not self.name.startswith("gemma") else self._gelu(other))
            else:
                gate = self._gelu(gate)
            x = x + self._norm(self._linear(gate, f"{prefix}ffn_down"), f"{prefix}post_ffw_norm")
        head = self._of("output" if "output.weight" in self.tensors else "token_embd")
        logits = self._norm(x, "output_norm") @ head.T
        cap = self.key("final_logit_softcapping")
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _attention(self, prefix: str, index: int, x: Tensor) -> Tensor:
        heads = self.key("attention.head_count")
        groups, size = self.key("attention.head_count_kv", heads), self.key("attention.key_length", x.shape[1] // heads)
        if f"{prefix}attn_qkv.weight" in self.tensors:
            q, k, v = self._linear(x, f"{prefix}attn_qkv").chunk(3, 1)
        else:
            q, k, v = (self._linear(x, f"{prefix}attn_{part}") for part in "qkv")
        is_local = bool((self.key("attention.sliding_window_pattern") or [False] * (index + 1))[index])
        q, k = (self._enter(part, f"{prefix}attn_{name}_norm", size, is_local) for part, name in ((q, "q"), (k, "k")))
        v = v.view(len(x), groups, size).transpose(0, 1)
        k, v = (part.repeat_interleave(heads // groups, 0) for part in (k, v))
        ages = torch.arange(len(x)).unsqueeze(1) - torch.arange(len(x))
        sees = (ages >= 0) & ((ages < self.key("attention.sliding_window", 0)) | (not is_local))
        scores = (q @ k.mT / math.sqrt(size)).masked_fill(~sees, -torch.inf)
        return self._linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), f"{prefix}attn_output")

    def _enter(self, x: Tensor, norm: str, size: int, is_local: bool) -> Tensor:
        is_wide = f"{norm}.weight" in self.tensors and len(self.tensors[f"{norm}.weight"]) > size
        x = self._norm(x, norm) if is_wide else x
        x = x.view(len(x), -1, size).transpose(0, 1)
        x = x if is_wide else self._norm(x, norm)
        if self.name == "gpt2":
            return x
        base = self.key("rope.freq_base_swa") if is_local else self.key("rope.freq_base")
        speeds = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        factors = self.tensors.get("rope_freqs.weight")
        speeds = speeds if factors is None else speeds / factors
        if self.key("rope.scaling.type") == "linear" and not is_local:
            speeds = speeds / self.key("rope.scaling.factor")
        angles = torch.arange(x.shape[1], dtype=torch.float64).unsqueeze(1) * speeds
        pairs = x.unflatten(2, (-1, 2)) if self.name in NORMAL_ROPE else x.unflatten(2, (2, -1)).transpose(2, 3)
        a, b = pairs.unbind(-1)
        turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
        return torch.stack(turned, -1 if self.name in NORMAL_ROPE else -2).flatten(2)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        gain = self.tensors.get(f"{name}.weight")
        if gain is None:
            return x
        if self.name == "gpt2":
            bias = self.tensors[f"{name}.bias"].double()
            return functional.layer_norm(x, gain.shape, gain.double(), bias, self.key("attention.layer_norm_epsilon"))
        return functional.rms_norm(x, gain.shape, gain.double(), self.key("attention.layer_norm_rms_epsilon"))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.tensors.get(f"{name}.bias")
        return functional.linear(x, self._of(name), None if bias is None else bias.double())

    def _of(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"].double()

    @staticmethod
    def _gelu(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate="tanh")
