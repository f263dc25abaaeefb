"""``pytorch_model.bin``: the one place in hornbook where a pickle is opened, and only with ``--allow-pickle``.

A pickle is a program. ``torch.load(weights_only=True)`` runs it in an interpreter that knows tensors and nothing else
(PyTorch >= 2.10; earlier ones had holes, CVE-2025-32434 and CVE-2026-24747): what names any other function is refused
before it is called. A zip whose entries are compressed is refused too, since PyTorch never writes one and a bomb needs
it. The price of a guard that is somebody else's: safetensors stay the better choice, and the default.
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

# What PyTorch's unpickler answers to bytes that make no sense: found by flipping them, and by reading its source.
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
    """Return the tensors of a PyTorch file by name, on the CPU; nothing in the file is run.

    Raises CheckpointError if it is malformed, holds something else than named tensors, or a program that needs more.
    """
    try:
        with storage_errors("read", path):
            _refuse_compressed(path)
            tensors = _load(path)
    except UnpicklingError as error:  # its message, which tells how to switch the guard off, is not passed on
        raise CheckpointError(
            f"{path} is refused, and nothing of it was run: it is malformed, or a program that does more than make "
            "tensors; take the model's safetensors, from a source that you trust"
        ) from error
    except _MALFORMED as error:
        raise CheckpointError(f"{path} is no sound PyTorch file ({type(error).__name__}); fetch it again") from error
    if tensors is None:
        raise CheckpointError(f"{path} holds something else than tensors by name; expected a model's state_dict alone")
    return tensors


def _load(path: Path) -> dict[str, Tensor] | None:
    with warnings.catch_warnings():  # of other protocols and old formats: a file is read or it is not
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
        raise CheckpointError(f"{path} is no sound PyTorch file ({error}); fetch it again") from error
    if packed:
        raise CheckpointError(f"{path} is refused: {packed[0]!r:.80} in it is compressed, which PyTorch never does")
