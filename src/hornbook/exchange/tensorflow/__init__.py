"""Models that TensorFlow trained, read without it: Google's BERTs, those of Graphcore's example, OpenAI's GPT-2.

::

    uncased_L-2_H-128_A-2/  bert_config.json  vocab.txt  bert_model.ckpt.index  bert_model.ckpt.data-00000-of-00001
    124M/                     hparams.json  encoder.json  vocab.bpe  model.ckpt.index  model.ckpt.data-00000-of-00001
      -> find_index(path)    the index that a folder, a prefix or a file stands for
      -> config_name(index)  the file that says what the model is, as a ``config.json`` of transformers would
      -> read_weights(index, model_type) what its ``model.safetensors`` would hold

`table` and `bundle` know the format, `names` the variables, `folder` the files around them. Making transformers' words
of TensorFlow's leaves one map from others' weights to ours, that of `hornbook.exchange.huggingface`. The
price: errors name a weight as transformers does.
"""

from hornbook.exchange.tensorflow.variables import (
    ARGUMENTS,
    CONFIG,
    HPARAMS,
    config_name,
    find_index,
    is_checkpoint,
    of_arguments,
    of_hparams,
    read_weights,
)

__all__ = [
    "ARGUMENTS",
    "CONFIG",
    "HPARAMS",
    "config_name",
    "find_index",
    "is_checkpoint",
    "of_arguments",
    "of_hparams",
    "read_weights",
]
