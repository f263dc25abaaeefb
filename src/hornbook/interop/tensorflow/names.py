"""Translate the variables of TensorFlow's BERT and GPT-2 to transformers' names and shapes.

::

    bert/encoder/layer_3/attention/self/query/kernel  [in, out]   bert.encoder.layer.3.attention.self.query.weight
    bert/embeddings/word_embeddings                               bert.embeddings.word_embeddings.weight
    cls/seq_relationship/output_weights  [2, D]                   cls.seq_relationship.weight

    GroupNorm/gamma, attention/projection/dense/kernel,           Graphcore's BERT for TensorFlow 1: other names for
    pooler/dense/kernel, attention/self/kernel/qkv_weight         LayerNorm, output, bert/pooler; query, key and value

    model/h3/attn/c_attn/w  [1, in, out]                          h.3.attn.c_attn.weight  [in, out]
    model/h3/ln_1/g, model/wte                                    h.3.ln_1.weight, wte.weight

BERT's kernels are multiplied from the right, so they are transposed here; transformers' GPT-2 keeps OpenAI's layout.
Optimizer state has a name that continues a weight's (``.../kernel/adam_m``), or is a counter: both are recognized by
names and dtypes alone, for any optimizer. The price: a weight whose name continues another's would be left out.
"""

import re
from collections.abc import Mapping
from typing import Final

from torch import Tensor

from hornbook.interop.tensorflow.bundle import Variable

_WHOLE: Final = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_GRAPHCORE: Final = {
    r"\bGroupNorm\b": "LayerNorm",
    r"\battention/projection\b": "attention/output",
    r"^pooler\b": "bert/pooler",
}
_FUSED: Final = {"kernel/qkv_weight": "kernel", "qkv_bias": "bias"}
_PARTS: Final = ("query", "key", "value")
_THEIRS: Final = {
    r"/layer_(\d+)/": r"/layer/\1/",
    r"/gamma$": "/weight",
    r"/beta$": "/bias",
    r"/kernel$": "/weight",
    r"_embeddings$": "_embeddings/weight",
}


_GPT2: Final = {
    r"^model/": "",
    r"^h(\d+)/": r"h/\1/",
    r"^(wte|wpe)$": r"\1/weight",
    r"/[wg]$": "/weight",
    r"/b$": "/bias",
}
GPT2_TABLE: Final = "model/wte"


def weight_names(variables: Mapping[str, Variable]) -> list[str]:
    """Return the names of the weights: floats of at least one dimension that are not optimizer slots."""
    names: list[str] = []
    owner = None
    for name in sorted(variables, key=lambda name: name.split("/")):  # names that continue another follow it
        if owner is not None and name.startswith(f"{owner}/"):
            continue
        owner, (dtype, shape, *_) = name, variables[name]
        if dtype is not None and dtype.is_floating_point and shape:
            names.append(name)
    return names


def translate_gpt2(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a weight of OpenAI's GPT-2 with transformers' name, without a copy."""
    if name.endswith("/w") and tensor.dim() == 3 and len(tensor) == 1:
        tensor = tensor[0]  # the width of a convolution
    for pattern, replacement in _GPT2.items():
        name = re.sub(pattern, replacement, name)
    return {name.replace("/", "."): tensor}


def translate_bert(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a weight of BERT with transformers' name, without a copy; a fused one becomes three."""
    for pattern, replacement in _GRAPHCORE.items():
        name = re.sub(pattern, replacement, name)
    stem, found, rest = name.partition("/attention/self/")
    if found and rest in _FUSED and tensor.dim() and tensor.shape[-1] % 3 == 0:
        thirds = zip(_PARTS, tensor.chunk(3, -1), strict=True)
        return dict(_renamed(f"{stem}{found}{part}/{_FUSED[rest]}", third) for part, third in thirds)
    return dict([_renamed(name, tensor)])


def _renamed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    if name in _WHOLE:
        return _WHOLE[name], tensor
    is_transposed = name.endswith("/kernel") and tensor.dim() == 2
    for pattern, replacement in _THEIRS.items():
        name = re.sub(pattern, replacement, name)
    return name.replace("/", "."), tensor.t() if is_transposed else tensor
