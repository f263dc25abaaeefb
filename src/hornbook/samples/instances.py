"""Instances: sequences that another system has cut, and often masked, in files that the rooms plugged in here open.

holds_instances("pretrain.tfrecord")            whether a room knows the files
open_instances("pretrain.tfrecord", seed=1)     a source of sequences, in a shuffled order; see `InstanceSource`
"""

from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from hornbook.errors import UserError
from hornbook.plugs import plugged
from hornbook.samples.sequences import SequenceSource


class Record(NamedTuple):
    """The origin of an instance: record or row ``number`` (from 0) of a file, and the epoch."""

    epoch: int
    file: Path
    number: int


@runtime_checkable
class InstanceSource(SequenceSource, Protocol):
    """A source of sequences that may already be masked: then, each sequence has its positions and labels."""

    @property
    def is_masked(self) -> bool:
        """Whether the instances have masks; if not, none has, and sequences have no ``positions``."""

    @property
    def max_predictions(self) -> int | None:
        """Padded number of predictions of every instance; None if the file does not state it."""

    @property
    def first_token(self) -> int:
        """First token of the first instance: the [CLS] of the tokenizer that made it."""

    def provenance(self, sample: int) -> Record:
        """Return the origin of a sample's instance."""


def holds_instances(path: str | Path) -> bool:
    """Return whether a path has instances for an encoder; False for an unknown format."""
    return any(room.holds_instances(path) for room in plugged("sample sources"))


def open_instances(path: str | Path, *, seed: int) -> InstanceSource:
    """Open a file or folder of instances, in an order shuffled by ``seed``.

    Raises:
        UserError: the path has no instances, or an extra is not installed.
        DataError: a file is empty or damaged; most damage is found only when a record is read.
        StorageError: a file cannot be read.
    """
    rooms = plugged("sample sources")
    room = next((room for room in rooms if room.holds_instances(path)), next(iter(rooms), None))
    if room is None:
        raise UserError(f"{path}: files of instances cannot be read here; train on a token store")
    opened: InstanceSource = room.open_instances(path, seed=seed)  # which says what is wrong with other files
    return opened
