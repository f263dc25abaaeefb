"""Search for the files of tokenizers by name, and in runs and corpora.

    gpt2                      vocab.bpe and encoder.json, or the files of transformers, in the first of
                                  ./tokenizers/gpt2/
                                  the cache of the Hugging Face hub, models--openai-community--gpt2 or models--gpt2
                                  the cache of tiktoken, which has OpenAI's two files
    Qwen/Qwen2.5-0.5B         the tokenizer of a model of the hub, downloaded if necessary; also hf://owner/name
    corpora/mine              corpora/mine/train/tokenizer.json
    runs/mine                 runs/mine/checkpoints/step-00000400/tokenizer.json, the newest

An existing path takes precedence over a name. ``gpt2`` is never downloaded, so it needs no network and no extra.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import UserError
from hornbook.text.hub_client import hub_hint, is_model_name, model_of, snapshot
from hornbook.text.special_tokens import SETTINGS_FILES

FILES: Final = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", *SETTINGS_FILES)
"""The names of a tokenizer's files in transformers."""
_LEGACY_FILES: Final = ("encoder.json", "vocab.bpe", "dict.txt")
_OPENAI: Final = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_OPENAI_FILES: Final = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
"""The SHA-256 of OpenAI's files, the same as in tiktoken's source."""


def find(source: str | Path) -> list[Path]:
    """Return the path of a named tokenizer's file or folder, or the paths of its vocabulary and its merges.

    Args:
        source: ``gpt2``, or ``owner/name`` of the hub; anything else is returned as a path.

    Raises:
        UserError: ``gpt2`` or the path was not found, the name lacks its owner, or see
            `hornbook.text.hub_client.snapshot`.
        HornbookError, StorageError: see `hornbook.text.hub_client.snapshot`.
    """
    name = str(source)
    if name == "gpt2":
        return _find_gpt2()
    if is_model_name(name) and not name.endswith((".json", ".txt")):
        model = model_of(name)
        return [snapshot(model, (*FILES, *_LEGACY_FILES), what="tokenizer", is_meant=model != name)]
    path = Path(name)
    if not path.exists():
        if hint := hub_hint(name):
            raise UserError(f"no tokenizer at {name}{hint}, which is downloaded if necessary")
        raise UserError(f"no tokenizer at {name}{did_you_mean_path(path)}; make one with `hornbook tokenizer train`")
    return [path]


def find_inside(folder: Path) -> Path | None:
    """Return the ``tokenizer.json`` of a corpus, or of the newest checkpoint of a run; None if there is none."""
    steps = sorted(folder.glob("checkpoints/step-*/tokenizer.json"), reverse=True)
    saved = [file for file in steps if file.parent.name.removeprefix("step-").isdigit()]
    return next((file for file in (folder / "train" / "tokenizer.json", *saved) if file.is_file()), None)


def _find_gpt2() -> list[Path]:
    for folder in (Path("tokenizers/gpt2"), *_cached_gpt2s()):
        pairs = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
        if (folder / "tokenizer.json").exists() or any(
            all((folder / name).exists() for name in pair) for pair in pairs
        ):
            return [folder]
    if files := _tiktokens_gpt2():
        return files
    raise UserError(
        "the tokenizer gpt2 was not found in ./tokenizers/gpt2 or the caches of the Hugging Face hub and of tiktoken; "
        "use `tokenizer='openai-community/gpt2'` to download it (pip install 'hornbook[hub]'), or name a folder with "
        "its vocab.json and merges.txt"
    )


def _cached_gpt2s() -> Iterator[Path]:
    """Yield the folders in the hub's cache that may have GPT-2's tokenizer; does not need the client library."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    try:
        cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    except RuntimeError:  # the user has no home folder
        return
    for name in ("models--openai-community--gpt2", "models--gpt2"):
        yield from sorted(cache.glob(f"{name}/snapshots/*"))


def _tiktokens_gpt2() -> list[Path]:
    """Return OpenAI's vocabulary and merges in tiktoken's cache; empty if one is missing or damaged."""
    named = (os.environ[name] for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR") if name in os.environ)
    cache = Path(next(named, Path(tempfile.gettempdir()) / "data-gym-cache"))
    files = []
    for name, sha256 in _OPENAI_FILES.items():
        file = cache / hashlib.sha1(f"{_OPENAI}{name}".encode(), usedforsecurity=False).hexdigest()
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            return []
        files.append(file)
    return files
