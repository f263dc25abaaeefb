"""hornbook takes raw text to a pre-trained, evaluated language model.

    import hornbook

    run = hornbook.train("demo", {"data.train": "corpora/mine"})     the same as the command ``hornbook train``
    print(run.load().generate("Once upon a time"))

``__all__`` lists what is public here; docs/python.md describes it, and `hornbook.extend` is the public API for parts of
your own. Every other module is private and may change. An attribute is imported when it is first used, so that
``import hornbook`` takes no torch.

`hornbook.corpus` is a package and can be called: ``hornbook.corpus(path)`` opens a corpus. The trade-off is a class for
one module, whose call type checkers know by the import below.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

import hornbook.corpus as _package
from hornbook.errors import HornbookError, UserError
from hornbook.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

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
    "hornbook.api.corpora": ("Corpus", "build_corpus", "train_tokenizer"),
    "hornbook.api.model": ("Model", "load"),
    "hornbook.api.training": ("Run", "metrics", "runs", "train"),
    "hornbook.text.tokenizer": ("Tokenizer",),
}


class _CallablePackage(ModuleType):
    """The package `hornbook.corpus`, which is also the function of that name."""

    def __call__(
        self, path: "str | Path", *, split: str = "train", sequence_length: int | None = None, seed: int = 0
    ) -> "Corpus":
        """Open a corpus; see `hornbook.api.corpora.corpus`."""
        from hornbook.api.corpora import corpus

        return corpus(path, split=split, sequence_length=sequence_length, seed=seed)


_package.__class__ = _CallablePackage


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    raise AttributeError(f"module 'hornbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return list(__all__)
