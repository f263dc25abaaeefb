"""Read ``pytorch_model.bin``; the only module that opens pickles, and only with ``--allow-pickle``.

A pickle is a program. ``torch.load(weights_only=True)`` runs it in an interpreter that knows only tensors (PyTorch >=
2.10; earlier versions had vulnerabilities, CVE-2025-32434 and CVE-2026-24747): a name of any other function is rejected
before it is called. Zip files with compressed entries are rejected, too: PyTorch never writes them, but a zip bomb
needs them. The price of relying on a third party's safeguard: safetensors remain the better choice, and the default.
"""

import struct
import warnings
import zipfile
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from hornbook.errors import CheckpointError
from hornbook.storage.system import storage_errors

# Exceptions of PyTorch's unpickler for malformed files, found by flipping bytes and reading its source.
_MALFORMED = (
    UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    ImportError,
    EOFError,
    MemoryError,
    struct.error,
)


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a PyTorch file by name, on the CPU; no code in the file is run.

    Raises CheckpointError if it is malformed, has anything but named tensors, or needs other functions.
    """
    try:
        with storage_errors("read", path):
            _refuse_compressed(path)
            tensors = _load(path)
    except UnpicklingError as error:  # its message explains how to disable the safeguard, so it is not passed on
        raise CheckpointError(
            f"{path} is rejected, and no code in it was run: it is malformed, or a program that does more than create "
            "tensors; use the model's safetensors, from a source that you trust"
        ) from error
    except _MALFORMED as error:
        raise CheckpointError(
            f"{path} is not a valid PyTorch file ({type(error).__name__}); download it again"
        ) from error
    if tensors is None:
        raise CheckpointError(f"{path} does not contain only named tensors; expected a model's state_dict")
    return tensors


def _load(path: Path) -> dict[str, Tensor] | None:
    with warnings.catch_warnings():  # about other protocols and old formats
        warnings.simplefilter("ignore")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            return None
        tensors = {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}
    return tensors if len(tensors) == len(state) and all(isinstance(name, str) for name in tensors) else None


def _refuse_compressed(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is not a valid PyTorch file ({error}); download it again") from error
    if packed:
        raise CheckpointError(f"{path} is rejected: {packed[0]!r:.80} in it is compressed, which PyTorch never does")
