"""Data sets of the Hugging Face hub, downloaded with its client; code of a data set never runs.

    hf:owner/name@main/en/*.parquet   ->  the files of that revision whose paths match; * also matches /
    hf:owner/name                     ->  the files of the Parquet branch, <config>/<split>/*.parquet
                                          if the branch is missing or incomplete, the repository's data files
                                          with the first suffix in _KINDS that it has

A name is resolved to sources with a commit, ``hf:owner/name@<commit>/<file>``, which always mean the same bytes. Each
is downloaded into the client's cache when it is read. The list of files of a revision is also stored there when it is
requested, so a data set that was read once can be read offline, completely or not at all. ``HF_ENDPOINT``, ``HF_HOME``,
``HF_HUB_OFFLINE`` and the token are handled by the client, ``huggingface_hub``, the extra ``hub``.
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
from hornbook.text.file_names import has_suffix, is_excluded
from hornbook.text.hub_client import NAME_PART, OfflineError, OutOfReachError, cache_folder, hub_errors, import_client
from hornbook.text.readers.jsonl import JSONL_SUFFIXES
from hornbook.text.reading import ReadOptions

CONVERTED: Final = "refs/convert/parquet"
"""The branch with the Parquet files that the hub creates for most data sets."""

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
"""The suffixes of a repository's files for each format, in order of preference; ``.txt`` for other formats."""
_NO_DATA: Final = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json")


def is_file_name(source: str) -> bool:
    """Return whether a source is a file of a data set of the hub."""
    match = _FILE.fullmatch(source)
    return match is not None and ".." not in match["file"].split("/")


def list_files(name: str, options: ReadOptions) -> list[str]:
    """Return the sources of a data set.

    Args:
        name: ``hf:owner/name``, optionally with a branch, tag or commit after an ``@`` and a pattern of files after a
            ``/``; or such a source, which is returned unchanged.
        options: the split and configuration of the Parquet branch; the format, suffixes and excluded names of files.

    Raises:
        UserError: the name is malformed, matches nothing, or has no readable files; or see ``hub_errors``.
        HornbookError: see ``hub_errors``.
    """
    if is_file_name(name) and not has_magic(name):
        return [name]
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise UserError(
            f"{name!r:.120} is not a data set of the Hugging Face hub; expected hf:owner/name, hf:owner/name@tag or "
            "hf:owner/name/pattern"
        )
    repository, revision, pattern = match["repository"], match["revision"], match["pattern"]
    if pattern is None and revision in (None, CONVERTED) and options.format in ("auto", "parquet"):
        is_named = revision == CONVERTED
        try:
            commit, files = _listing(repository, CONVERTED)
        except (UserError, OutOfReachError):  # if the hub is unreachable, listing the repository raises the error
            if is_named:
                raise
            files = []
        # of a split over 5 GB, the hub converts only the first 5 GB, into partial-<split>; read those only by name
        if is_named or (files and not any("/partial-" in file for file in files)):
            chosen = _of_split(_kept(files, options, (".parquet",)), options, f"hf:{repository}")
            return [f"hf:{repository}@{commit}/{file}" for file in chosen]
    commit, files = _listing(repository, revision)
    for option in ("config", "split"):
        if getattr(options, option) is not None:
            raise UserError(
                f"{name}: `{option}` applies to the Parquet branch, which is not used here; select the files with a "
                f"pattern, as in hf:{repository}/*{getattr(options, option)}*"
            )
    if pattern is not None:
        found = _kept([file for file in files if fnmatchcase(file, pattern)], options, options.suffixes)
    else:
        kinds = (options.suffixes,) if options.suffixes else _KINDS.get(options.format, ((".txt",),))
        found = next((some for kind in kinds if (some := _kept(files, options, kind))), [])
    if not found:
        raise UserError(
            f"{name}: no files for `format={options.format!r}`; expected Parquet, JSONL or text, or a pattern of "
            f"files, as in hf:{repository}/data/*.parquet"
        )
    return [f"hf:{repository}@{commit}/{file}" for file in found]


def fetch(source: str) -> Path:
    """Return the cached path of a file of the hub, downloaded if necessary. Raises the errors of ``hub_errors``."""
    match = _FILE.fullmatch(source)
    assert match is not None, "callers check is_file_name"
    lead = f"{source}: "
    client = import_client(lead)
    with hub_errors(lead, "data set", match["repository"]):
        path = client.hf_hub_download(match["repository"], match["file"], repo_type="dataset", revision=match["commit"])
    return Path(path)


def _kept(files: Iterable[str], options: ReadOptions, suffixes: tuple[str, ...]) -> list[str]:
    """Return the data files with one of the suffixes that the options do not exclude."""
    kept = []
    for file in files:
        path = PurePosixPath(file)
        hidden = path.is_absolute() or any(part.startswith((".", "__")) for part in path.parts)
        is_data = file.isprintable() and not hidden and path.name not in _NO_DATA
        if is_data and has_suffix(file, suffixes) and not is_excluded(file, options.exclude):
            kept.append(file)
    return kept


def _of_split(files: list[str], options: ReadOptions, name: str) -> list[str]:
    """Return the files ``config/split/*`` of the configuration and split. Raises UserError if one must be chosen."""
    for depth, option, kind in ((0, "config", "configurations"), (1, "split", "splits")):
        names = list(dict.fromkeys(file.split("/")[depth] for file in files if file.count("/") > depth))
        wanted = getattr(options, option)
        if wanted is None and (len(names) == 1 or (option == "config" and "default" in names)):
            wanted = names[0] if len(names) == 1 else "default"
        if wanted not in names:
            listed = ", ".join(f"{each:.60}" for each in names[:12]) + ", ..." * (len(names) > 12)
            what = "" if wanted is None else f"none is named {wanted!r:.60}; "
            raise UserError(f"{name} has the {kind} {listed or 'none'}; {what}choose one with `{option}`")
        files = [file for file in files if file.split("/")[depth] == wanted]
    return files


def _listing(repository: str, revision: str | None) -> tuple[str, list[str]]:
    """Return the commit of a revision and its files; a commit is requested once, others if the hub is reachable."""
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
    raise HornbookError(f"{where}: the Hugging Face hub did not return a commit and a list of files; try again")
