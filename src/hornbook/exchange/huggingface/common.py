"""What all model families share in the translation to transformers: activations, defaults, checks of weights."""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from hornbook.config import TransformerConfig
from hornbook.errors import CheckpointError
from hornbook.wording import first_few

ACTIVATIONS: Final = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' names to hornbook's; of several names for one function, the first is written."""

_FLOATS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MOST_LAYERS: Final = 10_000
_TASKS: Final = {"ForSequenceClassification": "classification", "ForQuestionAnswering": "span"}

_WITHOUT_EFFECT: Final = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_cache",
    }
)
"""Options of any ``config.json`` about files, tokens and outputs."""


class Imported(NamedTuple):
    """The imported weights of a file.

    Attributes:
        weights: weights in hornbook's names and shapes, fp32.
        untrained: names of ``weights`` that the file lacks, which are random.
        notes: messages for the user.
    """

    weights: dict[str, Tensor]
    untrained: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Weight(NamedTuple):
    """A parameter of hornbook and its tensor in transformers, or several concatenated ones; ``part`` is its head."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    part: str = ""

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Shape of each tensor in transformers."""
        return self.shape if len(self.theirs) == 1 else self.shape[1:]

    def to_ours(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the parameter in fp32."""
        parts = [tensors[name].float() for name in self.theirs]
        return parts[0] if len(parts) == 1 else torch.cat(parts).view(self.shape)

    def to_theirs(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return transformers' tensors as views."""
        parts = tensor.view(len(self.theirs), *self.their_shape)
        return dict(zip(self.theirs, parts.unbind(0), strict=True))


Options = Mapping[str, tuple[tuple[str, ...], Any]]
"""hornbook's options: their names in transformers, preferred one first, and their defaults there."""


def options_of(config: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the options of a ``config.json`` under hornbook's names, unchecked."""
    return {
        ours: next((config[name] for name in names if config.get(name) is not None), default)
        for ours, (names, default) in options.items()
    }


def their_activation(activation: str) -> str:
    """Return transformers' name of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def option_problems(activation_name: str, activation: object, layers_name: str, num_layers: object) -> Iterator[str]:
    """Yield error messages for an unknown activation and for too many layers."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        yield f"{activation_name} is {activation!r:.80}, expected one of {', '.join(ACTIVATIONS)}"
    if isinstance(num_layers, int) and num_layers > _MOST_LAYERS:
        yield f"{layers_name} is {num_layers}, expected at most {_MOST_LAYERS}"


def unknown_options(config: Mapping[str, Any], known: Collection[str], neutral: Mapping[str, object]) -> Iterator[str]:
    """Yield error messages for options with another value than the neutral one, and for unknown ones.

    Args:
        config: the content of ``config.json``; null is as absent.
        known: names of options that are translated, or change nothing.
        neutral: names of options that change the computation, and the one value that is supported.
    """
    for name, value in config.items():
        if value is None or name in known or name in _WITHOUT_EFFECT or name.startswith("transformers."):
            continue
        if name not in neutral:
            yield f"{name!r:.80} is not known"
        elif value != neutral[name]:
            yield f"{name} is {value!r:.80}, expected {neutral[name]!r}"


def refuse_head_size(config: TransformerConfig, name: str) -> None:
    """Raise CheckpointError unless the heads have the size that transformers requires."""
    if config.effective_head_size * config.num_heads != config.hidden_size:
        raise CheckpointError(
            f"model.head_size is {config.effective_head_size}, but the heads of transformers' {name} are hidden_size / "
            f"num_heads = {config.hidden_size} / {config.num_heads} wide; this model cannot be exported"
        )


def faults(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Iterator[str]:
    """Yield error messages unless a tensor has a shape and finite floats."""
    if tuple(tensor.shape) != shape:
        yield f"{name} is {list(tensor.shape)}, expected {list(shape)}"
    elif tensor.dtype not in _FLOATS or tensor.layout != torch.strided:
        yield f"{name} is {str(tensor.dtype).removeprefix('torch.')}, expected fp32, bf16 or fp16"
    elif not bool(tensor.isfinite().all()):
        yield f"{name} has values that are not finite"


def is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are bitwise equal."""
    alike = (first.shape, first.dtype, first.layout) == (second.shape, second.dtype, second.layout)
    return alike and first.layout == torch.strided and torch.equal(first, second)


def check_weights(
    found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], what: str, untied: list[str]
) -> None:
    """Raise CheckpointError unless a file has exactly the expected tensors; the message has the first few problems.

    Args:
        found: the file's tensors, without those that a model may leave out.
        expected: shapes by name.
        what: name of the file.
        untied: problems with a tied head.
    """
    missing = [f"{name} is missing" for name in expected if name not in found]
    unknown = [f"{name!r:.120} is not expected" for name in sorted(found.keys() - expected.keys())]
    there = sorted(expected.keys() & found.keys())
    faulty = [fault for name in there for fault in faults(name, found[name], expected[name])]
    kinds = (untied, missing, unknown, faulty)
    if told := "; ".join(chain.from_iterable(map(first_few, kinds))):
        raise CheckpointError(f"{what} does not have the weights of its config: {told}")


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of a ``config.json`` in the order of their numbers; transformers omits the default two."""
    named = config.get("id2label")
    if not isinstance(named, Mapping) or not named:
        return ("LABEL_0", "LABEL_1")
    return tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(len(named)))


def task_of(config: Mapping[str, Any]) -> str:
    """Return the task of a ``config.json`` by its class: pretraining, classification or span."""
    architectures = config.get("architectures") or [""]
    name = architectures[0] if isinstance(architectures, list) else ""
    return next((task for suffix, task in _TASKS.items() if str(name).endswith(suffix)), "pretraining")


def head_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head of a ``config.json`` and its number of classes, as options of ``[model]``."""
    task = task_of(config)
    return {"head": task} | ({"num_labels": len(labels_of(config))} if task == "classification" else {})
