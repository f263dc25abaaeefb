"""Access to the Hugging Face hub through its client, any release since 0.30, with errors of one line.

    with hub_errors("hf:owner/name: ", "data set", "owner/name"):
        client.hf_hub_download(...)

    no such name, no access, not cached in offline mode                  UserError, exit code 2
    the hub is unreachable, or fails                                     HornbookError, exit code 1: try again
    the disk of the cache is full, read-only or failing                  StorageError, exit code 1
    the path of the cache is wrong or not accessible                     PathError, exit code 2

Uses only names of errors that all releases have, whatever HTTP library they use.
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
"""A pattern for the owner, and for the name after it, of a repository of the hub."""
SCHEME: Final = re.compile("hf://?")  # pathlib joins the two slashes
_LOCAL_OWNER: Final = "runs"
"""The default folder of runs, which is never looked up on the hub, even if it does not exist."""

_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


def is_model_name(source: str | Path) -> bool:
    """Return whether a source of weights is a model of the hub, not a path, so that local names are not sent anywhere.

    ``hf://owner/name`` always is. ``owner/name``, with exactly one slash, is if the working directory has no ``owner``
    and the owner is not ``runs``.
    """
    text = str(source)
    owner = text.partition("/")[0]
    is_name = re.fullmatch(f"{NAME_PART}/{NAME_PART}", text) is not None and owner != _LOCAL_OWNER
    return SCHEME.match(text) is not None or (is_name and not Path(owner).exists())


class OutOfReachError(HornbookError):
    """The hub is unreachable and the files are not in the cache; ``reason`` names the failure."""

    def __init__(self, lead: str, reason: str) -> None:
        super().__init__(
            f"{lead}not in the cache, and the Hugging Face hub cannot be reached ({reason}; HF_ENDPOINT?); try again, "
            "or copy the files into a local folder and name that"
        )
        self.reason = reason


_OWNERS: Final = {
    "gpt2": "openai-community",
    "bert": "google-bert",
    "roberta": "FacebookAI",
    "distilgpt2": "distilbert",
    "distilbert": "distilbert",
}
"""Owners of models that the hub once listed without one, by the first part of their names."""


class OfflineError(UserError):
    """Offline mode is set, and the files are not in the cache."""


def import_client(lead: str) -> Any:
    """Return the module ``huggingface_hub``. Raises UserError, with ``lead`` as prefix, if it is not installed."""
    purpose = f"{lead}the Hugging Face hub"
    for module in ("huggingface_hub.constants", "huggingface_hub.errors"):
        require(module, extra="hub", purpose=purpose)
    return require("huggingface_hub", extra="hub", purpose=purpose)


def cache_folder(client: Any, kind: Kind, repository: str) -> Path:
    """Return the folder of a repository in the client's cache; it exists once a file was downloaded."""
    kinds = {"data set": "datasets", "model": "models"}
    return Path(client.constants.HF_HUB_CACHE) / f"{kinds[kind]}--{repository.replace('/', '--')}"


def model_of(source: str | Path) -> str:
    """Return the name of a model, ``owner/name``, without ``hf://``. Raises UserError if it is malformed."""
    name = SCHEME.sub("", str(source), count=1)
    if not re.fullmatch(f"({NAME_PART}/)?{NAME_PART}", name):
        raise UserError(
            f"{name!r:.120} is not a name of the Hugging Face hub; expected one such as openai-community/gpt2"
        )
    return name


def hub_hint(name: str | Path) -> str:
    """Return the end of an error message: the hub's name of a model such as ``bert-base-uncased``, or nothing."""
    owner = _OWNERS.get(str(name).partition("-")[0])
    return f'; on the Hugging Face hub, it is "{owner}/{name}"' if owner and "/" not in str(name) else ""


def snapshot(name: str, patterns: Sequence[str], *, revision: str | None = None, what: str, is_meant: bool) -> Path:
    """Return the cached folder of a model with the files that match patterns, downloaded if necessary.

    Args:
        name: ``owner/name``.
        patterns: patterns of file names.
        revision: branch, tag or commit; None means the main branch.
        what: the kind of thing to find, such as ``"tokenizer"``, for errors.
        is_meant: whether the user explicitly named the hub; otherwise the name may be a mistyped path.

    Raises:
        UserError: there is no such model or revision, the extra is not installed, or the files are not in the cache and
            HF_HUB_OFFLINE is set.
        HornbookError: the hub failed or is unreachable; trying again may help. Unless ``is_meant`` or a part of the
            model is in the cache, the message also asks to check the path.
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
        raise HornbookError(
            f"no {what} at {where}, and the Hugging Face hub cannot be reached ({error.reason}){near}; check the path, "
            "or try again"
        ) from error


@contextmanager
def hub_errors(lead: str, kind: Kind, repository: str) -> Iterator[None]:
    """Convert the client's errors inside the block to errors of one line with ``lead`` as prefix.

    Raises:
        UserError: the repository, revision or file does not exist or is not accessible; ``OfflineError`` in offline
            mode.
        HornbookError: the hub failed; ``OutOfReachError`` if it is unreachable.
        StorageError: the disk of the cache is full or failing; ``PathError`` if its path is wrong or not accessible.
    """
    client = import_client(lead)
    errors = client.errors
    try:
        yield
    except errors.GatedRepoError:
        page = f"https://huggingface.co/{'datasets/' * (kind == 'data set')}{repository}"
        raise UserError(
            f"{lead}the {kind} is gated; request access at {page}, and log in with `hf auth login`"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{lead}the Hugging Face hub has no such {kind}, or you have no access; check the name, or log in with "
            "`hf auth login`"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _not_cached(lead, error, is_offline=client.constants.HF_HUB_OFFLINE) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError):
        raise UserError(f"{lead}the {kind} has no such revision or file; check its name") from None
    except errors.HfHubHTTPError as error:
        raise HornbookError(f"{lead}the Hugging Face hub failed ({type(error).__name__}); try again") from error
    except (OSError, errors.HTTPError) as error:
        # unlike network errors, disk errors have a file name or one of these numbers
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_DISK):
            raise as_storage_error("use the cache", Path(client.constants.HF_HUB_CACHE), error) from error
        raise _not_cached(lead, error, is_offline=False) from error


def _not_cached(lead: str, error: Exception, *, is_offline: bool) -> HornbookError:
    if is_offline:
        return OfflineError(
            f"{lead}not in the cache, and HF_HUB_OFFLINE is set; unset it, or copy the files into a local folder and "
            "name that"
        )
    return OutOfReachError(lead, reason=type(error.__cause__ or error).__name__)
