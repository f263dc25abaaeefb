"""Where the stores of a corpus are, and what a path is that has none.

locate_store("corpora/wikipedia", "train")      corpora/wikipedia/train, the folder of a store
locate_store("text_document.bin", "train")      text_document, the prefix of another program's files
splits_of("corpora/wikipedia")                  ("train", "validation")
"""

import shlex
from pathlib import Path
from typing import Final

from hornbook.config.suggest import did_you_mean_path
from hornbook.corpora.megatron import index_paths
from hornbook.corpora.store_manifest import MANIFEST, recorded_splits
from hornbook.errors import DataError
from hornbook.plugs import plugged

SPLITS: Final = ("train", "validation")


def splits_of(path: str | Path) -> tuple[str, ...]:
    """Return the splits that a corpus was built with, or those it has if there is no record; empty for a store."""
    if (Path(path) / MANIFEST).exists():
        return ()
    there = tuple(split for split in SPLITS if (Path(path) / split / MANIFEST).exists())
    return recorded_splits(Path(path)) or there


def locate_store(path: Path, split: str) -> Path:
    """Return the folder of a store with a manifest, or the prefix of one without; see ``open_store``."""
    if not path.is_dir():
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        if not index_paths(prefix)[1].is_file():
            _refuse_other_files(path)
            raise DataError(
                f"{path}: no such token store{did_you_mean_path(path)}; expected a folder written by corpus build, or "
                "a .bin and .idx"
            )
        return prefix.parent if prefix.name == "tokens" and (prefix.parent / MANIFEST).exists() else prefix
    if (path / MANIFEST).exists():
        return path
    if splits := splits_of(path):
        if split not in splits:
            raise DataError(f"{path}: the corpus has no {split} split; build it with, for example, `validation=0.02`")
        if not (path / split / MANIFEST).exists():
            raise DataError(
                f"{path / split / MANIFEST} is missing, but the corpus was built with a {split} split; restore it, or "
                "build the corpus again"
            )
        return path / split
    pairs = sorted(path.glob("*.idx"))
    if (path / "documents.npy").exists():
        raise DataError(f"{path / MANIFEST} is missing; build the store again")
    if len(pairs) != 1:
        _refuse_other_files(path)
        raise DataError(
            f"{path}: no token store; expected a manifest.json, or one .bin and .idx, found {len(pairs)} .idx"
        )
    return pairs[0].with_suffix("")


def _refuse_other_files(path: Path) -> None:
    """Raise DataError with the remedy if a path that is no store has tokens of another program, or text."""
    for room in plugged("store openers"):
        if advice := room.how_to_convert(path):
            raise DataError(advice)
    if path.name == "tokenizer.json" or (path / "tokenizer.json").is_file():
        raise DataError(
            f"{path}: a tokenizer, not a token store; to make one: `hornbook corpus build TEXTS --tokenizer "
            f"{shlex.quote(str(path))} --output corpora/{shlex.quote(path.stem)}`"
        )
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not list(path.glob("*.idx"))):
        raise DataError(
            f"{path}: not a token store; to make one from text: `hornbook corpus build {shlex.quote(str(path))} "
            f"--tokenizer TOKENIZER --output corpora/{shlex.quote(path.stem)}`"
        )
