"""Data sets by name from the Hugging Face hub, through its own client; nothing of them is run.

    hf:owner/name@main/en/*.parquet   ->  the files of that revision whose paths match, * and / included
    hf:owner/name                     ->  the files of the Parquet branch, <config>/<split>/*.parquet
                                          without one, or with only a part of the rows there: the repository's data
                                          files, of the first suffix in _KINDS that it has

A name becomes sources that name a commit, ``hf:owner/name@<commit>/<file>``, so they mean the same bytes for ever; each
is fetched when its turn comes and stays in the client's cache. What a revision held when it was last asked for is kept
there, too, so a data set that was read once is read again without a network, whole or not at all. ``HF_ENDPOINT``,
``HF_HOME``, ``HF_HUB_OFFLINE`` and the token are the client's matter. ``huggingface_hub`` is the extra ``hub``.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hornbook.errors import HornbookError, UserError
from hornbook.storage import make_directory, replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.text.hub_client import NAME_PART, OfflineError, OutOfReachError, cache_folder, hub_errors, import_client
from hornbook.text.readers.jsonl import JSONL_SUFFIXES
from hornbook.text.reading import ReadOptions, has_suffix, is_excluded

CONVERTED: Final = "refs/convert/parquet"
"""The branch with the Parquet files that the hub makes of most data sets."""

_REPOSITORY: Final = rf"(?P<repository>{NAME_PART}/{NAME_PART}|{NAME_PART}(?=@|$))"
_NAME: Final = re.compile(
    rf"hf:(?://datasets/)?{_REPOSITORY}(?:@(?P<revision>refs/\w+/\w+|[A-Za-z0-9][A-Za-z0-9._-]{{0,200}}))?"
    r"(?:/(?P<pattern>[^\n]+))?"
)
_COMMIT: Final = "[0-9a-f]{40}"
_FILE: Final = re.compile(rf"hf:{_REPOSITORY}@(?P<commit>{_COMMIT})/(?P<file>.+)")
_KINDS: Final = {
    "auto": ((".parquet",), JSONL_SUFFIXES, (".txt",)),
    "parquet": ((".parquet",),),
    "arrow": ((".arrow",),),
    "jsonl": (JSONL_SUFFIXES,),
    "csv": ((".csv",),),
    "tsv": ((".tsv",),),
    "wikipedia": ((".xml",),),
}
"""The files that a format takes of a repository, by their suffixes; it is ``.txt`` for those that are not here."""
_NO_DATA: Final = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json")


def is_file_name(source: str) -> bool:
    """Whether a source is a file of a data set of the hub."""
    match = _FILE.fullmatch(source)
    return match is not None and ".." not in match["file"].split("/")


def list_files(name: str, options: ReadOptions) -> list[str]:
    """Return the sources that a data set consists of.

    Args:
        name: ``hf:owner/name``, with a branch, tag or commit after an ``@``, and with a pattern of files after a ``/``;
            or one of these sources, which is itself.
        options: of the Parquet branch, the split and the configuration; the format, suffixes and names of files.

    Raises:
        UserError: the name is malformed or names nothing, it has no files that can be read, or as ``hub_errors``.
        HornbookError: as ``hub_errors``.
    """
    if is_file_name(name) and not has_magic(name):
        return [name]
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise UserError(
            f"{name!r:.120} is no data set of the Hugging Face hub; expected hf:owner/name, hf:owner/name@tag or "
            "hf:owner/name/pattern"
        )
    repository, revision, pattern = match["repository"], match["revision"], match["pattern"]
    if pattern is None and revision in (None, CONVERTED) and options.format in ("auto", "parquet"):
        is_named = revision == CONVERTED
        try:
            commit, files = _listing(repository, CONVERTED)
        except (UserError, OutOfReachError):  # if the hub is out of reach, the repository's own files tell so
            if is_named:
                raise
            files = []
        # of a split over 5 GB the hub converts the first 5, into a folder partial-<split>; read only by name
        if is_named or (files and not any("/partial-" in file for file in files)):
            chosen = _of_split(_kept(files, options, (".parquet",)), options, f"hf:{repository}")
            return [f"hf:{repository}@{commit}/{file}" for file in chosen]
    commit, files = _listing(repository, revision)
    for option in ("config", "split"):
        if getattr(options, option) is not None:
            raise UserError(
                f"{name}: --{option} applies to the Parquet branch, which is not read here; name the files by a "
                f"pattern, as in hf:{repository}/*{getattr(options, option)}*"
            )
    if pattern is not None:
        found = _kept([file for file in files if fnmatchcase(file, pattern)], options, options.suffixes)
    else:
        kinds = (options.suffixes,) if options.suffixes else _KINDS.get(options.format, ((".txt",),))
        found = next((some for kind in kinds if (some := _kept(files, options, kind))), [])
    if not found:
        raise UserError(
            f"{name}: has no files that can be read as --from {options.format}; expected Parquet, JSONL or text, or a "
            f"pattern of its files, as in hf:{repository}/data/*.parquet"
        )
    return [f"hf:{repository}@{commit}/{file}" for file in found]


def fetch(source: str) -> Path:
    """Return the path of a file of the hub in the cache, fetched if need be. Raises as ``hub_errors``."""
    match = _FILE.fullmatch(source)
    assert match is not None, "callers ask is_file_name"
    lead = f"{source}: "
    client = import_client(lead)
    with hub_errors(lead, "data set", match["repository"]):
        path = client.hf_hub_download(match["repository"], match["file"], repo_type="dataset", revision=match["commit"])
    return Path(path)


def _kept(files: Iterable[str], options: ReadOptions, suffixes: tuple[str, ...]) -> list[str]:
    """Return the data files of some suffix that the options do not leave out."""
    kept = []
    for file in files:
        path = PurePosixPath(file)
        hidden = path.is_absolute() or any(part.startswith((".", "__")) for part in path.parts)
        is_data = file.isprintable() and not hidden and path.name not in _NO_DATA
        if is_data and has_suffix(file, suffixes) and not is_excluded(file, options.exclude):
            kept.append(file)
    return kept


def _of_split(files: list[str], options: ReadOptions, name: str) -> list[str]:
    """The files ``config/split/*`` of one configuration and split."""
    for place, option, kind in ((0, "config", "configurations"), (1, "split", "splits")):
        names = list(dict.fromkeys(file.split("/")[place] for file in files if file.count("/") > place))
        wanted = getattr(options, option)
        if wanted is None and (len(names) == 1 or (option == "config" and "default" in names)):
            wanted = names[0] if len(names) == 1 else "default"
        if wanted not in names:
            listed = ", ".join(f"{each:.60}" for each in names[:12]) + ", ..." * (len(names) > 12)
            what = "" if wanted is None else f"none is called {wanted!r:.60}; "
            raise UserError(f"{name} has the {kind} {listed or 'none'}; {what}choose one with --{option}")
        files = [file for file in files if file.split("/")[place] == wanted]
    return files


def _listing(repository: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit of a revision and its files; a commit is asked for once, any other whenever the hub can be reached."""
    where = f"hf:{repository}@{revision}" if revision else f"hf:{repository}"
    client = import_client(f"{where}: ")
    folder = cache_folder(client, "data set", repository)
    saved = folder / f"hornbook-{(revision or 'main').replace('/', '--')}.json"
    if revision and re.fullmatch(_COMMIT, revision) and saved.exists():
        return _read_listing(saved)
    try:
        with hub_errors(f"{where}: ", "data set", repository):
            info = client.HfApi().dataset_info(repository, revision=revision)
    except (OutOfReachError, OfflineError):
        if not saved.exists():
            raise
        return _read_listing(saved)
    content = {"commit": info.sha, "files": [sibling.rfilename for sibling in info.siblings or []]}
    make_directory(folder)
    replace_file(saved, dump_json(content))
    return _to_listing(content, where)


def _read_listing(path: Path) -> tuple[str, list[str]]:
    return _to_listing(read_json(path, "the list of a data set's files"), str(path))


def _to_listing(content: Any, where: str) -> tuple[str, list[str]]:
    match content:
        case {"commit": str(commit), "files": [*files]} if re.fullmatch(_COMMIT, commit):
            return commit, [name for name in files if isinstance(name, str)]
    raise HornbookError(f"{where}: expected a commit and a list of files from the Hugging Face hub; try again")
