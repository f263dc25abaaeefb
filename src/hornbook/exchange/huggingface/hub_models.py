"""Download models from the Hugging Face hub with its own client; in this package, only this module uses the network.

    openai-community/gpt2  ->  ~/.cache/huggingface/hub/models--openai-community--gpt2/snapshots/<commit>/

``hornbook.text.hub_client.is_model_name`` distinguishes names from paths. While the hub cannot be reached, a name that
is not in the cache is an error like a mistyped path, which a retry would not fix. Only safetensors are downloaded,
unless there are none and pickles are allowed. ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE`` and the token are
handled by the client. The price: ``huggingface_hub`` is an extra, ``pip install 'hornbook[hub]'``.
"""

from pathlib import Path
from typing import Final

from hornbook.errors import UserError
from hornbook.exchange.huggingface.weights import SAFE_FILES
from hornbook.text.hub_client import model_of, snapshot
from hornbook.text.tokenizer_names import FILES

_SAFE: Final = ("config.json", *FILES, *SAFE_FILES, "model-*.safetensors")
_PICKLED: Final = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def fetch(source: str | Path, *, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """Return the cache folder of a model on the hub, downloading it if necessary.

    Args:
        source: ``owner/name``, or ``hf://owner/name``.
        revision: branch, tag or commit; None for the main branch.
        allow_pickle: download ``pytorch_model.bin`` if there are no safetensors.

    Raises:
        UserError: the name is malformed, or has no safetensors while pickles are not allowed; or see `snapshot`, if
            neither ``hf://`` nor a revision shows that a model is meant.
        HornbookError, StorageError: see `snapshot`.
    """
    name, what = model_of(source), "run or checkpoint"
    is_meant = name != str(source) or revision is not None
    folder = snapshot(name, _SAFE, revision=revision, what=what, is_meant=is_meant)
    if any((folder / file).exists() for file in SAFE_FILES):
        return folder
    if not allow_pickle:
        raise UserError(
            f"{name} has no safetensors on the Hugging Face hub: if it has pytorch_model.bin and you trust its source, "
            f"run `hornbook checkpoint import {name} --output FOLDER --allow-pickle` and use that folder"
        )
    return snapshot(name, (*_SAFE, *_PICKLED), revision=revision, what=what, is_meant=True)
