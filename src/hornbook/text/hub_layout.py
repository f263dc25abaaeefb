"""Which files of a data set's repository are a split of a configuration, as its card or its names say.

    card:    configs: [{config_name: en, data_files: [{split: train, path: "en/*.parquet"}]}]     en, train: en/...
    names:   data/train-00000-of-00002.parquet, data/test-00000-of-00001.parquet                  default, train, test
    hub's:   en/train/0000.parquet, en/test/0000.parquet     in refs/convert/parquet, made of whatever the data set is

The rules are those of ``datasets`` (https://huggingface.co/docs/hub/datasets-data-files-configuration), without its
scripts: nothing of a data set is ever run. The price: a split that is made of archives, images or CSV is not found
here.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from hornbook.errors import UserError
from hornbook.text.reading import has_suffix

CONVERTED: Final = "refs/convert/parquet"
"""The branch that the hub keeps of data sets that are not Parquet."""

_KEYWORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD: Final = re.compile(r"data/(?P<split>\w+(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}[^/]*")
_NO_DATA: Final = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json")
_DEFAULT: Final = "default"

Splits: TypeAlias = dict[str, dict[str, list[str]]]
"""The files by configuration and split."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A repository at one commit.

    Attributes:
        commit: its hash.
        files: the names of all files.
        configs: what the data set's card says of its configurations, as the hub hands it out.
    """

    commit: str
    files: tuple[str, ...]
    configs: list[Any]


def splits_of(listing: Listing, *, converted: bool) -> Splits:
    """Every split of every configuration; ``converted`` is for the hub's own branch."""
    files = sorted(file for file in listing.files if _is_data(file))
    if converted:
        return _by_folders(files)
    configs = _configs(listing)
    return {name: _of_config(config, files) for name, config in configs.items()} or {_DEFAULT: _by_names(files)}


def default_config(listing: Listing) -> str:
    """The configuration that is meant where none is named, if there is one of that name."""
    configs = _configs(listing)
    return next((name for name, config in configs.items() if config.get("default") is True), _DEFAULT)


def of_one_kind(files: list[str], kinds: Sequence[tuple[str, ...]]) -> list[str]:
    """Keep files with the suffixes of one of the kinds: the one that most are of, the first of several such."""
    by_kind = [[file for file in files if has_suffix(file, kind)] for kind in kinds]
    return max(by_kind, key=len)


def choose(found: Mapping[str, Any], wanted: str | None, name: str, option: str, preferred: str | None = None) -> str:
    """The configuration or split that is wanted, or the only one.

    Raises:
        UserError: it is not there, or there are several and none is wanted.
    """
    if wanted is None and (len(found) == 1 or preferred in found):
        return str(preferred if preferred in found else next(iter(found)))
    if wanted is None or wanted not in found:
        kind = {"config": "configurations", "split": "splits"}[option]
        names = ", ".join(map(_shown, list(found)[:12])) + ", ..." * (len(found) > 12)
        what = "none is called" + f" {wanted!r:.60}; " if wanted is not None else ""
        raise UserError(f"{name} has the {kind} {names}; {what}choose one with --{option}")
    return wanted


def _configs(listing: Listing) -> dict[str, dict[str, Any]]:
    return {str(config.get("config_name", _DEFAULT)): config for config in listing.configs if isinstance(config, dict)}


def _of_config(config: dict[str, Any], files: list[str]) -> dict[str, list[str]]:
    folder = str(config.get("data_dir") or "").strip("/")
    below = [file for file in files if not folder or file.startswith(f"{folder}/")]
    entries = config.get("data_files")
    if entries is None:
        return _by_names(below)
    if isinstance(entries, dict):
        entries = [{"split": split, "path": path} for split, path in entries.items()]
    elif not (isinstance(entries, list) and any(isinstance(entry, dict) for entry in entries)):
        entries = [{"split": "train", "path": entries}]
    splits: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, dict):
            paths = entry.get("path")
            for path in paths if isinstance(paths, list) else [paths]:
                glob = f"{folder}/{path}" if folder else str(path)
                splits[str(entry.get("split", "train"))] += [file for file in below if _fits(file, glob)]
    return {split: list(dict.fromkeys(some)) for split, some in splits.items() if some}


def _by_folders(files: list[str]) -> Splits:
    """``config/split/0000.parquet``; where the hub converted a part only, the split is called ``partial-split``."""
    splits: Splits = {}
    for file in files:
        config, _, rest = file.partition("/")
        split, slash, _ = rest.partition("/")
        if slash:
            splits.setdefault(config, {}).setdefault(split, []).append(file)
    return splits


def _by_names(files: list[str]) -> dict[str, list[str]]:
    """Splits by the names of files, else of their folders; where no name tells, all is for training."""
    shards = [(match["split"], file) for file in files if (match := _SHARD.fullmatch(file))]
    by_file = [(split, file) for file in files if (split := _keyword(PurePosixPath(file).name))]
    by_folder = [(split, file) for file in files if (split := _keyword(str(PurePosixPath(file).parent)))]
    splits: dict[str, list[str]] = {}
    for split, file in shards or by_file or by_folder or [("train", file) for file in files]:
        splits.setdefault(split, []).append(file)
    return splits


def _keyword(name: str) -> str | None:
    words = re.split("[-._ /0-9]+", name.lower())
    return next((split for split, keywords in _KEYWORDS.items() if not set(words).isdisjoint(keywords)), None)


def _is_data(file: str) -> bool:
    path = PurePosixPath(file)
    hidden = path.is_absolute() or any(part.startswith((".", "__")) for part in path.parts)
    return file.isprintable() and not hidden and path.name not in ("", *_NO_DATA)


def _fits(file: str, glob: str) -> bool:
    """Whether a glob names a file: ``*`` stays in a folder, ``**`` is any number of folders."""
    parts = file.split("/")
    reached = {0}
    for pattern in glob.removeprefix("./").split("/"):
        if pattern == "**" and reached:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {place + 1 for place in reached if place < len(parts) and fnmatchcase(parts[place], pattern)}
    return len(parts) in reached


def _shown(name: str) -> str:
    return " ".join(name.split())[:60]
