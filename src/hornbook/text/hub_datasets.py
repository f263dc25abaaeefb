"""Data sets by name from the Hugging Face hub, through its own client; nothing of them is run.

    hf:owner/name@main  ->  hf:owner/name@<commit>/data/train-00000-of-00002.parquet, hf:owner/name@<commit>/...
                        ->  ~/.cache/huggingface/hub/datasets--owner--name/snapshots/<commit>/data/train-...

A name becomes sources that name a commit, so they mean the same bytes for ever; each is fetched when its turn comes and
stays in the client's cache. What a revision held when it was last asked for is kept there, too, so a data set that was
read once is read again without a network, whole or not at all. ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE`` and the
token are the client's matter. The price: ``huggingface_hub`` is an extra, ``pip install 'hornbook[hub]'``.
"""

import re
from pathlib import Path
from typing import Any, Final

from hornbook.errors import HornbookError, UserError
from hornbook.storage import make_directory, replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.text.hub_client import NAME_PART, OfflineError, OutOfReachError, cache_folder, import_client, translated
from hornbook.text.hub_layout import CONVERTED, Listing, Splits, choose, default_config, of_one_kind, splits_of
from hornbook.text.readers.jsonl import JSONL_SUFFIXES
from hornbook.text.reading import ReadOptions, is_excluded

_NAME: Final = re.compile(
    rf"hf:(?://datasets/)?(?P<repository>(?:{NAME_PART}/)?{NAME_PART})"
    r"(?:@(?P<revision>(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,200}))?"
)
_COMMIT: Final = "[0-9a-f]{40}"
_FILE: Final = re.compile(rf"hf:(?P<repository>(?:{NAME_PART}/)?{NAME_PART})@(?P<commit>{_COMMIT})/(?P<file>.+)")
_KINDS: Final = {
    "auto": ((".parquet",), JSONL_SUFFIXES, (".txt",)),
    "parquet": ((".parquet",),),
    "arrow": ((".arrow",),),
    "jsonl": (JSONL_SUFFIXES,),
    "wikipedia": ((".xml",),),
}
"""The files that a format takes of a repository, by their suffixes; it is ``.txt`` for those that are not here."""


def is_file_name(source: str) -> bool:
    """Whether a source is a file of a data set of the hub."""
    match = _FILE.fullmatch(source)
    return match is not None and ".." not in match["file"].split("/")


def list_files(name: str, options: ReadOptions) -> list[str]:
    """The sources that a split of a data set consists of.

    Args:
        name: ``hf:owner/name``, with a branch, tag or commit after an ``@``; or one of these sources, which is itself.
        options: the split and the configuration, if there are several; the format, suffixes and names of files.

    Raises:
        UserError: the name is malformed, there is no such data set, revision, configuration or split, it has no files
            that can be read, the extra is not installed, or the cache does not have it and HF_HUB_OFFLINE is set.
        HornbookError: the hub failed, or is out of reach and the cache does not have it; trying again may help.
        StorageError: the disk of the cache is full or failing.
    """
    if is_file_name(name):
        return [name]
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name!r:.120} is no data set of the Hugging Face hub; expected hf:owner/name or hf:owner/name@tag"
        )
    repository, revision = match["repository"], match["revision"]
    listing = _listing(repository, revision)
    splits = _readable(splits_of(listing, converted=revision == CONVERTED), options)
    if not splits and revision is None:
        listing = _listing(repository, CONVERTED)
        splits = _readable(splits_of(listing, converted=True), options)
    if not splits:
        raise UserError(
            f"{name}: has no files that can be read as --from {options.format}; expected Parquet, JSONL or text"
        )
    shown = f"hf:{repository}"
    config = choose(splits, options.config, shown, "config", preferred=default_config(listing))
    split = choose(splits[config], options.split, shown, "split")
    return [f"hf:{repository}@{listing.commit}/{file}" for file in splits[config][split]]


def fetch(source: str) -> Path:
    """Where a file of the hub lies in the cache, fetched if need be.

    Raises:
        UserError: it is not there, or not for this user, or not in the cache while HF_HUB_OFFLINE is set.
        HornbookError: the hub failed half-way, or is out of reach; trying again goes on from there.
        StorageError: the disk of the cache is full or failing.
    """
    match = _FILE.fullmatch(source)
    assert match is not None, "callers ask is_file_name"
    lead = f"{source}: "
    client = import_client(lead)
    with translated(lead, "data set", match["repository"]):
        path = client.hf_hub_download(match["repository"], match["file"], repo_type="dataset", revision=match["commit"])
    return Path(path)


def _readable(splits: Splits, options: ReadOptions) -> Splits:
    """What there is to read, of the splits that have anything and the configurations that have such a split."""
    kinds = (options.suffixes,) if options.suffixes else _KINDS.get(options.format, ((".txt",),))

    def kept(files: list[str]) -> list[str]:
        return of_one_kind([file for file in files if not is_excluded(file, options.exclude)], kinds)

    readable = {
        config: {split: some for split, files in named.items() if (some := kept(files))}
        for config, named in splits.items()
    }
    return {config: named for config, named in readable.items() if named}


def _listing(repository: str, revision: str | None) -> Listing:
    """What a repository holds; a commit is asked for once, any other revision whenever the hub can be reached."""
    where = f"hf:{repository}@{revision}" if revision else f"hf:{repository}"
    client = import_client(f"{where}: ")
    folder = cache_folder(client, "data set", repository)
    saved = folder / f"hornbook-{(revision or 'main').replace('/', '--')}.json"
    if revision and re.fullmatch(_COMMIT, revision) and saved.exists():
        return _read_listing(saved)
    try:
        with translated(f"{where}: ", "data set", repository):
            info = client.HfApi().dataset_info(repository, revision=revision)
    except (OutOfReachError, OfflineError):
        if not saved.exists():
            raise
        return _read_listing(saved)
    card = info.card_data.to_dict() if info.card_data else {}
    configs = card.get("configs")
    content = {
        "commit": info.sha,
        "files": [sibling.rfilename for sibling in info.siblings or []],
        "configs": configs if isinstance(configs, list) else [],
    }
    make_directory(folder)
    replace_file(saved, dump_json(content))
    return _to_listing(content, where)


def _read_listing(path: Path) -> Listing:
    return _to_listing(read_json(path, "the list of a data set's files"), str(path))


def _to_listing(content: Any, where: str) -> Listing:
    match content:
        case {"commit": str(commit), "files": [*files], "configs": [*configs]} if re.fullmatch(_COMMIT, commit):
            return Listing(commit=commit, files=tuple(name for name in files if isinstance(name, str)), configs=configs)
    raise HornbookError(f"{where}: expected a commit and a list of files from the Hugging Face hub; try again")
