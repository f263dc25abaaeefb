"""Save and load checkpoints: folders of safetensors and JSON that are either complete or absent.

    save(folder, contents) -> folder/step-00001200/   newest_sound(folder, warn) -> path   load(path) -> contents

Importing this does not import torch; `hornbook.exchange.restore` turns a checkpoint into a model.
"""

from hornbook.checkpoint.commit import prune, save, save_share, set_aside, temporary_of
from hornbook.checkpoint.load import Info, list_checkpoints, load, newest_sound, resolve, steps_in
from hornbook.checkpoint.manifest import Stamps, folder_of, stamps, verify
from hornbook.checkpoint.tensors import Contents, Shard

__all__ = [
    "Contents",
    "Info",
    "Shard",
    "Stamps",
    "folder_of",
    "list_checkpoints",
    "load",
    "newest_sound",
    "prune",
    "resolve",
    "save",
    "save_share",
    "set_aside",
    "stamps",
    "steps_in",
    "temporary_of",
    "verify",
]
