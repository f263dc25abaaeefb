"""hornbook: from raw text to a pre-trained, evaluated language model.

    import hornbook

    run = hornbook.train("demo", {"data.train": "corpora/mine"})     the same as the command ``hornbook train``
    print(run.load().generate("Once upon a time"))

``__all__`` lists the public names; docs/python.md describes them, and `hornbook.extend` is the public API for custom
models, objectives and other parts. Every other module is private and may change. Names are imported on first use, so
that ``import hornbook`` does not import torch. Here, the rooms for other systems' files are plugged into the core
(`hornbook.plugs`), by name, too.
"""

import importlib
from typing import TYPE_CHECKING

from hornbook.errors import HornbookError, UserError
from hornbook.plugs import plug
from hornbook.version import __version__

if TYPE_CHECKING:
    from hornbook.api.corpora import Corpus, build_corpus, corpus, train_tokenizer
    from hornbook.api.model import Model, load
    from hornbook.api.training import Run, metrics, runs, train
    from hornbook.text.tokenizer import Tokenizer

__all__ = [
    "Corpus",
    "HornbookError",
    "Model",
    "Run",
    "Tokenizer",
    "UserError",
    "__version__",
    "build_corpus",
    "corpus",
    "load",
    "metrics",
    "runs",
    "train",
    "train_tokenizer",
]

_MODULES = {
    "hornbook.api.corpora": ("Corpus", "build_corpus", "corpus", "train_tokenizer"),
    "hornbook.api.model": ("Model", "load"),
    "hornbook.api.training": ("Run", "metrics", "runs", "train"),
    "hornbook.text.tokenizer": ("Tokenizer",),
}

plug("store openers", "hornbook.interop.convert.token_files")
plug("sample sources", "hornbook.interop.instances.static_instances")
plug("checkpoint readers", "hornbook.interop.tensorflow")
plug("document readers", "hornbook.wikipedia.reader")


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'hornbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return list(__all__)
