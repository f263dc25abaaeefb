"""Hugging Face folders, read and written: GPT-2, BERT and RoBERTa with their tokenizers.

::

    gpt2/  config.json  model.safetensors  vocab.json  merges.txt
      -> read_folder(path)   -> Contents(step=0, tensors={"model": ...}, documents={"recipe": ...}, files=...)
    write_folder(path, contents, dtype="fp32")
      -> the same files, which ``transformers`` loads with ``AutoModelForCausalLM`` and ``AutoTokenizer``

What comes out of ``read_folder`` is what a checkpoint holds, so whoever takes the one takes the other. It takes
checkpoints of TensorFlow, too, since `hornbook.exchange.tensorflow` puts them into transformers' words.
``gpt2`` and ``encoders`` know names, shapes and options; ``weights`` knows files; ``pickled`` alone may open a pickle;
``hub`` alone may use the network. The price of a table instead of transformers' own code: a family is read when
somebody wrote its module, and refused in one line until then.
"""

from hornbook.exchange.huggingface.export import write_folder
from hornbook.exchange.huggingface.hub_models import fetch
from hornbook.exchange.huggingface.model_folder import UNTRAINED, is_folder, read_folder

__all__ = ["UNTRAINED", "fetch", "is_folder", "read_folder", "write_folder"]
