"""The files of a TensorFlow checkpoint: its index, its model's options, and its weights.

::

    bert_config.json    Google's; transformers has the same options
    arguments.json      all options of a run of Graphcore's TensorFlow BERT, those of the model among them
    hparams.json        OpenAI's, of a GPT-2: n_vocab, n_ctx, n_embd, n_head, n_layer
    checkpoint          model_checkpoint_path: "ckpt-7000", written by a Saver to name its last checkpoint

Graphcore's model has an epsilon of 1e-3, by default a feed-forward of four times the hidden size, and switches for
biases and a head that are off by default. Variables are translated to transformers' names and shapes:

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
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from hornbook.errors import CheckpointError
from hornbook.exchange.contents import inside
from hornbook.interop.tensorflow.bundle import Bundle, Variable, is_table, open_bundle, read_variables
from hornbook.storage.json_files import read_bytes
from hornbook.wording import counted

CONFIG: Final = "bert_config.json"
ARGUMENTS: Final = "arguments.json"
HPARAMS: Final = "hparams.json"

_CONFIGS: Final = (CONFIG, ARGUMENTS, HPARAMS)
_HPARAMS: Final = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")
_SAVER: Final = "checkpoint"
_MOST_SAVER_BYTES: Final = 1 << 20
_SWITCHES: Final = {
    "qkv_bias": "use_qkv_bias",
    "projection_bias": "use_attention_projection_bias",
    "head_transform": "use_cls_layer",
    "prediction_bias": "use_prediction_bias",
}
_EPSILON: Final = 1e-3
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


def is_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is one: a prefix, its index, or a folder with an index and a config."""
    if path.is_dir():
        has_config = any((path / name).exists() for name in _CONFIGS)
        return has_config and (any(path.glob("*.index")) or _find_format_1(path) is not None)
    return _index_of(path).is_file() or _find_format_1(path) is not None


def find_index(path: Path) -> Path | None:
    """Return the index of a checkpoint's prefix, index or folder, or None if there is none.

    Raises CheckpointError if a folder has several and does not name the last, or the checkpoint has format 1.
    """
    found = sorted(path.glob("*.index")) if path.is_dir() else [_index_of(path)] * _index_of(path).is_file()
    if not found and (old := _find_format_1(path)):
        raise CheckpointError(
            f"{old} is a TensorFlow checkpoint of format 1, but hornbook reads format 2: restore it in TensorFlow and "
            "save it with tf.train.Saver(write_version=tf.train.SaverDef.V2)"
        )
    if len(found) < 2:
        return found[0] if found else None
    last = _last_of(path)
    if last not in found:
        names = ", ".join(index.stem for index in found[:8])
        raise CheckpointError(f"{path} has several checkpoints: {names}; name one, as in {found[-1].with_suffix('')}")
    return last


def config_name(index: Path) -> str:
    """Return the name of the file next to an index that describes the model.

    Raises CheckpointError if there is none.
    """
    for name in (*_CONFIGS, "config.json"):
        if (index.parent / name).exists():
            return name
    if GPT2_TABLE in open_bundle(index).variables:
        raise CheckpointError(f"{index} is a GPT-2 of OpenAI: put its {HPARAMS} next to it")
    raise CheckpointError(
        f"{index} does not describe its model: put {' or the '.join((CONFIG, ARGUMENTS))} of its training next to it"
    )


def translate_config(name: str, content: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the content of the file of this name, see `config_name`, as in a ``config.json``, unchecked.

    Raises CheckpointError if it is for a model of another kind, or an option is missing.
    """
    if name == HPARAMS:
        return _of_hparams(content, what)
    return _of_arguments(content, what) if name == ARGUMENTS else dict(content)


def _of_arguments(arguments: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the options of Graphcore's model as in a ``config.json``, unchecked, and its switches as in hornbook.

    Raises CheckpointError if it is not a BERT.
    """
    if arguments.get("groupbert"):
        raise CheckpointError(
            f"{what} is for a GroupBERT; hornbook reads only TensorFlow checkpoints of BERT and GPT-2"
        )
    hidden = arguments.get("hidden_size")
    inner = {"intermediate_size": 4 * hidden} if isinstance(hidden, int) else {}
    switches = {ours: arguments.get(theirs, False) for ours, theirs in _SWITCHES.items()}
    return {**inner, **arguments, "model_type": "bert", "layer_norm_eps": _EPSILON, **switches}


def _of_hparams(hparams: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the options of OpenAI's GPT-2 as in a ``config.json``, unchecked.

    Raises CheckpointError if one is missing.
    """
    if missing := [name for name in _HPARAMS if name not in hparams]:
        raise CheckpointError(f"{what} lacks {', '.join(missing)}; expected the hparams.json of OpenAI's GPT-2")
    return {**hparams, "model_type": "gpt2", "vocab_size": hparams["n_vocab"]}


def read_weights(index: Path, model_type: str) -> tuple[dict[str, Tensor], list[Path], list[str]]:
    """Return a model's weights in transformers' names, their files, and messages about what is left out.

    Args:
        index: index of the checkpoint.
        model_type: transformers' name of the family, ``"gpt2"`` or an encoder's.

    Raises:
        CheckpointError: a file is missing, malformed or damaged, or two variables have the same weight.
    """
    bundle = open_bundle(index)
    names = weight_names(bundle.variables)
    weights: dict[str, Tensor] = {}
    translate = translate_gpt2 if model_type == "gpt2" else translate_bert
    for name, tensor in read_variables(bundle, names).items():
        translated = translate(name, tensor)
        if twice := sorted(translated.keys() & weights.keys()):
            raise CheckpointError(f"{index} has {', '.join(twice)} twice, the second time as {name!r:.120}")
        weights |= translated
    return weights, [index, *bundle.shards(names)], list(_left_out(bundle, names))


def _left_out(bundle: Bundle, names: Collection[str]) -> Iterator[str]:
    """Yield a message about the optimizer's moments and counters, if any, which are not read."""
    state = sorted(name for name, variable in bundle.variables.items() if variable.dtype and name not in names)
    if state:
        number = counted(len(state), "variable")
        yield f"{bundle.index}: the optimizer state is left out ({number}, such as {state[-1]!r:.120})"


def _index_of(path: Path) -> Path:
    return path if path.suffix == ".index" else path.with_name(f"{path.name}.index")


def _find_format_1(path: Path) -> Path | None:
    """Return the file of a checkpoint as written before TensorFlow 0.12: a single table."""
    files = sorted(path.glob("*.ckpt*")) if path.is_dir() else [path]
    return next((file for file in files if file.suffix != ".index" and file.is_file() and is_table(file)), None)


def _last_of(folder: Path) -> Path | None:
    """Return the index named in a Saver's file ``checkpoint``."""
    if not (folder / _SAVER).is_file():
        return None
    text = read_bytes(inside(folder, _SAVER), "the Saver's list", limit=_MOST_SAVER_BYTES).decode("utf-8", "replace")
    found = re.search(r'^model_checkpoint_path: "([^"\n]+)"', text, re.MULTILINE)
    return folder / f"{Path(found[1]).name}.index" if found else None


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
