"""Read and write Hugging Face folders: models of transformers with their tokenizers.

::

    gpt2/  config.json  model.safetensors  vocab.json  merges.txt
      -> read_folder(path)   -> Contents(step=0, tensors={"model": ...}, documents={"recipe": ...}, files=...)
    write_folder(path, contents, dtype="fp32")
      -> the same files, which transformers loads with ``AutoModelForCausalLM`` and ``AutoTokenizer``

``read_folder`` returns the contents of a checkpoint, so code for checkpoints works for folders, too. It also reads
checkpoints that a plugged-in room translates to transformers' names, such as TensorFlow's (`hornbook.plugs`). ``gpt2``,
``decoders`` and ``encoders`` define names, shapes and options; ``weights`` reads files; only ``torch_pickles`` opens
pickles, and only ``hub_models`` uses the network. The price of tables instead of transformers' own code: families
without a table are rejected.
"""

from hornbook.exchange.huggingface.export import write_folder
from hornbook.exchange.huggingface.hub_models import fetch
from hornbook.exchange.huggingface.model_folder import is_folder, read_folder

__all__ = ["fetch", "is_folder", "read_folder", "write_folder"]
