"""Export models as GGUF, the file format of llama.cpp, with the library ``gguf`` (extra ``hornbook[gguf]``).

::

    Contents (checkpoint)  ->  mine.gguf:  keys (sizes, rotary positions), tokenizer (tokens, merges), tensors

``architectures`` has the models that llama.cpp computes as hornbook does, and refuses all others; ``vocabulary``
translates the tokenizer; ``export`` writes the file.
"""

from hornbook.exchange.gguf.export import write_gguf

__all__ = ["write_gguf"]
