"""BERTs that TensorFlow trained: Google's folders and the checkpoints of Graphcore's example, without TensorFlow.

::

    uncased_L-2_H-128_A-2/  bert_config.json  vocab.txt  bert_model.ckpt.index  bert_model.ckpt.data-00000-of-00001
      -> find_index(path)    the index that a folder, a prefix or a file stands for
      -> config_name(index)  the file that says what the model is, as a ``config.json`` of transformers would
      -> read_weights(index) what its ``model.safetensors`` would hold

`table` and `bundle` know the format, `names` the variables, `folder` the files around them. Making transformers' words
of TensorFlow's leaves one map from others' weights to ours, that of `hornbook.checkpoint.huggingface.encoders`. The
price: errors name a weight as transformers does.
"""

from hornbook.checkpoint.tensorflow.folder import (
    ARGUMENTS,
    CONFIG,
    config_name,
    find_index,
    is_checkpoint,
    of_arguments,
    read_weights,
)

__all__ = ["ARGUMENTS", "CONFIG", "config_name", "find_index", "is_checkpoint", "of_arguments", "read_weights"]
