"""The Hugging Face hub's own client, any release of it since 0.30, and what its errors mean to a user.

    with hub_errors("hf:owner/name: ", "data set", "owner/name"):
        client.hf_hub_download(...)

    no such name, no access, a cache alone by the user's own setting     UserError, exit code 2
    the hub cannot be reached, or fails                                  HornbookError, exit code 1: try again
    the cache's disk is full, or read-only, or fails                     StorageError, exit code 1
    the cache's place is wrong, or not this user's                       PathError, exit code 2

Only error names that all releases share are used, whichever HTTP library they were built on.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import HornbookError, UserError
from hornbook.extras import require
from hornbook.storage.system import as_storage_error

Kind: TypeAlias = Literal["data set", "model"]

NAME_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""A pattern of the owner, or of what is owned, in a name of the hub."""
SCHEME: Final = re.compile("hf://?")  # pathlib makes one slash of two
_LOCAL_OWNER: Final = "runs"
"""The default folder of runs, never asked of the hub, even where it does not exist."""

_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


def is_model_name(source: str | Path) -> bool:
    """Whether a source of weights is a model of the hub, and not a path, so that no folder's name leaves the machine.

    ``hf://owner/name`` is always the hub. Otherwise a name is ``owner/name`` with exactly one slash, where the working
    directory has no ``owner`` and the owner is not ``runs``.
    """
    text = str(source)
    owner = text.partition("/")[0]
    is_name = re.fullmatch(f"{NAME_PART}/{NAME_PART}", text) is not None and owner != _LOCAL_OWNER
    return SCHEME.match(text) is not None or (is_name and not Path(owner).exists())


class OutOfReachError(HornbookError):
    """The hub cannot be reached now, and the cache does not have what was asked for; ``reason`` names the failure."""

    def __init__(self, lead: str, reason: str) -> None:
        super().__init__(
            f"{lead}not in the cache, and the Hugging Face hub cannot be reached ({reason}; HF_ENDPOINT?); try again, "
            "or bring the files into a folder here"
        )
        self.reason = reason


class OfflineError(UserError):
    """The hub may not be asked, by the user's own setting, and the cache does not have what was asked for."""


def import_client(lead: str) -> Any:
    """Return the module ``huggingface_hub``. Raises UserError, beginning with ``lead``, if it is not installed."""
    purpose = f"{lead}the Hugging Face hub"
    for module in ("huggingface_hub.constants", "huggingface_hub.errors"):
        require(module, extra="hub", purpose=purpose)
    return require("huggingface_hub", extra="hub", purpose=purpose)


def cache_folder(client: Any, kind: Kind, repository: str) -> Path:
    """Where the client's cache keeps what it has of a repository; there is no such folder before anything came."""
    kinds = {"data set": "datasets", "model": "models"}
    return Path(client.constants.HF_HUB_CACHE) / f"{kinds[kind]}--{repository.replace('/', '--')}"


def model_of(source: str | Path) -> str:
    """Return the name of a model, ``owner/name``, without ``hf://``. Raises UserError if it is malformed."""
    name = SCHEME.sub("", str(source), count=1)
    if not re.fullmatch(f"({NAME_PART}/)?{NAME_PART}", name):
        raise UserError(f"{name!r:.120} is no name of the Hugging Face hub; expected one like openai-community/gpt2")
    return name


def snapshot(name: str, patterns: Sequence[str], *, revision: str | None = None, what: str, is_meant: bool) -> Path:
    """Return the folder of the cache with those files of a model that match patterns, fetched if need be.

    Args:
        name: ``owner/name``.
        patterns: of files.
        revision: branch, tag or commit; the main branch if None.
        what: the user looks for, as in ``"tokenizer"``, for errors.
        is_meant: whether the user has said that it is a model of the hub; otherwise it may be a mistyped path.

    Raises:
        UserError: there is no such model or revision, the extra is not installed, or the cache does not have it and
            HF_HUB_OFFLINE is set; the hub is out of reach, and neither ``is_meant`` nor the cache says that a model is
            meant.
        HornbookError: the hub failed half-way, or is out of reach; trying again may help.
        StorageError: the disk of the cache is full or failing.
    """
    where = f"{name} (revision {revision})" if revision else name
    near = "" if is_meant else did_you_mean_path(Path(name))
    lead = f"no {what} at {where}{near}; "
    client = import_client(lead)
    try:
        with hub_errors(lead, "model", name):
            return Path(client.snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except OutOfReachError as error:
        if is_meant or cache_folder(client, "model", name).exists():
            raise
        raise UserError(
            f"no {what} at {where}, and the Hugging Face hub cannot be reached ({error.reason}){near}; check the path, "
            "or try again"
        ) from error


@contextmanager
def hub_errors(lead: str, kind: Kind, repository: str) -> Iterator[None]:
    """Turn the client's errors inside the block into errors of one line that begin with ``lead``.

    Raises:
        UserError: there is no such thing, or not for this user; ``OfflineError``, it may not be asked for.
        HornbookError: the hub failed; ``OutOfReachError``, it cannot be reached.
        StorageError: the disk of the cache is full or failing; ``PathError``, its path is wrong or not this user's.
    """
    client = import_client(lead)
    errors = client.errors
    try:
        yield
    except errors.GatedRepoError:
        page = f"https://huggingface.co/{'datasets/' * (kind == 'data set')}{repository}"
        raise UserError(
            f"{lead}the {kind} is gated; ask for access at {page}, and log in with `hf auth login`"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{lead}the Hugging Face hub has no such {kind}, or not for you; check the name, or log in with "
            "`hf auth login`"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _not_cached(lead, error, is_offline=client.constants.HF_HUB_OFFLINE) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError):
        raise UserError(f"{lead}the {kind} has no such revision or file; check the name of it") from None
    except errors.HfHubHTTPError as error:
        raise HornbookError(f"{lead}the Hugging Face hub failed ({type(error).__name__}); try again") from error
    except (OSError, errors.HTTPError) as error:
        # an error of the disk names a file, or says so by its number, which no error of a network does
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_DISK):
            raise as_storage_error("use the cache", Path(client.constants.HF_HUB_CACHE), error) from error
        raise _not_cached(lead, error, is_offline=False) from error


def _not_cached(lead: str, error: Exception, *, is_offline: bool) -> HornbookError:
    if is_offline:
        return OfflineError(
            f"{lead}not in the cache, and the Hugging Face hub may not be asked (HF_HUB_OFFLINE); unset that, or "
            "bring the files into a folder here"
        )
    return OutOfReachError(lead, reason=type(error.__cause__ or error).__name__)
