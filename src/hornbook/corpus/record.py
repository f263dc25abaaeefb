"""``build.json``, what a corpus says of itself as a whole: what was asked for, what was left out, which splits it has.

    {"format": "hornbook corpus", "format_version": 1, "checksum": "<SHA-256 of the rest>",
     "request": {"inputs": "<hash>", "tokenizer": "<digest>", "options": {"validation": 0.02, ...}},
     "read": {"sources": 40, "empty": 1, "dropped": {"exact duplicates": 12}, ...}}

A split whose folder is gone is missed by it.
"""

from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError
from hornbook.storage.json_files import is_intact, read_json

BUILD: Final = "build.json"
RECORD_FORMAT: Final = {"format": "hornbook corpus", "format_version": 1}
_READ: Final = {"sources", "empty", "faults", "messages", "skipped", "dropped"}


def splits_of_share(validation: float) -> tuple[str, ...]:
    """The splits that there will be with such a share of validation."""
    return ("train", "validation") if validation else ("train",)


def recorded_splits(corpus: Path) -> tuple[str, ...]:
    """The splits with which a corpus was built; none where there is no record of a build; raises as ``read_record``."""
    if not (corpus / BUILD).is_file():
        return ()
    options = read_record(corpus)[0].get("options")
    return splits_of_share(options.get("validation") or 0) if isinstance(options, dict) else ()


def read_record(corpus: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``build.json`` says that was asked for, and what was read.

    Raises:
        DataError: it is damaged, or not there.
        StorageError: it cannot be read.
    """
    path, remedy = corpus / BUILD, "restore the file, or build the corpus again"
    record = read_json(path, "the record of the build")
    if not isinstance(record, dict) or {name: record.get(name) for name in RECORD_FORMAT} != RECORD_FORMAT:
        raise DataError(f"{path}: expected the record of a build, version 1; {remedy}")
    request, read = record.get("request"), record.get("read")
    if isinstance(read, dict):
        read = {"dropped": {}} | read  # of a version that knew no filters
    if not isinstance(request, dict) or not isinstance(read, dict) or set(read) != _READ or not is_intact(record):
        raise DataError(f"{path}: the record of the build is damaged; {remedy}")
    return request, read
