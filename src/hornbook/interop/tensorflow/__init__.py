"""Read models trained in TensorFlow, without it: Google's BERTs, those of Graphcore's example, OpenAI's GPT-2.

::

    uncased_L-2_H-128_A-2/  bert_config.json  vocab.txt  bert_model.ckpt.index  bert_model.ckpt.data-00000-of-00001
    124M/                     hparams.json  encoder.json  vocab.bpe  model.ckpt.index  model.ckpt.data-00000-of-00001
      -> find_index(path)    the index of a folder, a prefix or a file
      -> config_name(index)  the file that describes the model, like transformers' ``config.json``
      -> translate_config(name, content, what)  its content in transformers' names
      -> read_weights(index, model_type) the content of its ``model.safetensors``

`bundle` reads the format, `variables` finds the files and translates names. Translating
TensorFlow's names to transformers' leaves a single translation to hornbook's, in `hornbook.exchange.huggingface`. The
price: errors have transformers' names.
"""

from hornbook.interop.tensorflow.variables import (
    config_name,
    find_index,
    is_checkpoint,
    read_weights,
    translate_config,
)

__all__ = ["config_name", "find_index", "is_checkpoint", "read_weights", "translate_config"]
