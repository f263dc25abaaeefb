"""The errors of the hub's client by kind: not found, offline by choice, unreachable, a failing disk."""

import errno
import sys

import pytest
from huggingface_hub import errors
from tiny_text import one_line

from hornbook.errors import HornbookError, StorageError, UserError
from hornbook.text.hub_client import OfflineError, OutOfReachError, hub_errors, import_client


def error_of(error, monkeypatch, tmp_path, *, is_offline=False):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HornbookError) as caught, hub_errors("hf:a/b: ", "data set", "a/b"):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (OSError(errno.EIO, "Input/output error"), 1),
        (OSError(errno.EROFS, "Read-only file system"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/somewhere/blobs"), 2),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/somewhere"), 2),
    ],
)
def test_errors_of_the_disk_are_no_errors_of_the_network(error, code, monkeypatch, tmp_path):
    found = error_of(error, monkeypatch, tmp_path, is_offline=True)
    assert isinstance(found, StorageError) and one_line(found, f"cannot use the cache {tmp_path}: {error.strerror}")
    assert found.exit_code == code


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "by peer"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        TimeoutError("timed out"),
        errors.HTTPError("all connection attempts failed"),
        errors.LocalEntryNotFoundError("not in the cache"),
    ],
)
def test_a_hub_out_of_reach_is_worth_a_retry(error, monkeypatch, tmp_path):
    found = error_of(error, monkeypatch, tmp_path)
    assert isinstance(found, OutOfReachError) and found.exit_code == 1
    assert one_line(found, "hf:a/b: not in the cache", type(error).__name__, "try again")


def test_offline_by_setting_is_the_users_matter(monkeypatch, tmp_path):
    for error in (errors.LocalEntryNotFoundError("not in the cache"), errors.OfflineModeIsEnabled("offline")):
        found = error_of(error, monkeypatch, tmp_path, is_offline=True)
        assert isinstance(found, OfflineError) and found.exit_code == 2
        assert one_line(found, "hf:a/b: not in the cache", "HF_HUB_OFFLINE")


def test_without_the_client_the_subject_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    with pytest.raises(UserError) as caught:
        import_client("hf:a/b: ")
    assert one_line(caught.value, "hf:a/b: the Hugging Face hub needs huggingface_hub: ", "'hornbook[hub]'")
