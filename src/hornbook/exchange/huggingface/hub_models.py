"""Models by name from the Hugging Face hub, through its own client: the one place that may use the network.

    openai-community/gpt2  ->  ~/.cache/huggingface/hub/models--openai-community--gpt2/snapshots/<commit>/

``hornbook.text.hub_client.is_model_name`` tells names from paths. While the hub cannot be reached, a name that the
cache does not know counts as a mistyped path, too, which no other attempt would mend. Safetensors alone are fetched,
unless pickles are allowed and there are no safetensors. ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE`` and the token
are the client's matter. The price: ``huggingface_hub`` is an extra, ``pip install 'hornbook[hub]'``.
"""

import re
from pathlib import Path
from typing import Final

from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import UserError
from hornbook.exchange.huggingface.tokenizer_files import FILES
from hornbook.exchange.huggingface.weights import SAFE_FILES
from hornbook.text.hub_client import NAME_PART, SCHEME, OutOfReachError, cache_folder, hub_errors, import_client

_SAFE: Final = ("config.json", *FILES, *SAFE_FILES, "model-*.safetensors")
_PICKLED: Final = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def fetch(source: str | Path, *, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """Return the folder of the cache that holds a model of the hub, fetched if need be.

    Args:
        source: ``owner/name``, or ``hf://owner/name``.
        revision: branch, tag or commit; the main branch if None.
        allow_pickle: fetch ``pytorch_model.bin`` where there are no safetensors.

    Raises:
        UserError: the name is malformed, there is no such model or revision, it has no safetensors while pickles are
            not allowed, the extra is not installed, or the cache does not have it and HF_HUB_OFFLINE is set; the hub is
            out of reach, and neither ``hf://``, a revision nor the cache says that a model is meant.
        HornbookError: the hub failed half-way, or is out of reach; trying again may help.
        StorageError: the disk of the cache is full or failing.
    """
    name = SCHEME.sub("", str(source), count=1)
    if not re.fullmatch(f"({NAME_PART}/)?{NAME_PART}", name):
        raise UserError(f"{name!r:.120} is no name of the Hugging Face hub; expected one like openai-community/gpt2")
    is_meant = name != str(source) or revision is not None
    folder = _snapshot(name, revision, _SAFE, is_meant=is_meant)
    if any((folder / file).exists() for file in SAFE_FILES):
        return folder
    if not allow_pickle:
        raise UserError(
            f"{name} has no safetensors on the Hugging Face hub: if it has pytorch_model.bin and you trust its source, "
            f"run `hornbook checkpoint import {name} --output FOLDER --allow-pickle` and use that folder"
        )
    return _snapshot(name, revision, (*_SAFE, *_PICKLED), is_meant=True)


def _snapshot(name: str, revision: str | None, patterns: tuple[str, ...], *, is_meant: bool) -> Path:
    where = f"{name} (revision {revision})" if revision else name
    near = "" if is_meant else did_you_mean_path(Path(name))
    lead = f"no run or checkpoint at {where}{near}; "
    client = import_client(lead)
    try:
        with hub_errors(lead, "model", name):
            return Path(client.snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except OutOfReachError as error:
        if is_meant or cache_folder(client, "model", name).exists():
            raise
        raise UserError(
            f"no run or checkpoint at {where}, and the Hugging Face hub cannot be reached ({error.reason}){near}; "
            "check the path, or try again"
        ) from error
