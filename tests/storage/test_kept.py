"""What is kept in the user's cache, and that no content of a file does harm."""

from pathlib import Path

import pytest

from hornbook.storage.json_files import keep, kept


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a kind in an own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hornbook" / "rates"


def test_a_value_is_kept_for_each_thing(folder: Path) -> None:
    assert kept("rates", "one") is None
    keep("rates", "one", 2e9)
    keep("rates", "another", True)
    assert (kept("rates", "one"), kept("rates", "another"), kept("others", "one")) == (2e9, True, None)
    assert len([*folder.iterdir()]) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff" * 100,
        b'{"of": "one"}',
        b'{"of": "another", "value": 2e9}',
        b'{"of": "one", "value": NaN}',
        b'{"of": "one", "value": 1e400}',
        b" " * 100_000,
    ],
)
def test_damaged_content_counts_for_nothing_and_is_replaced(folder: Path, content: bytes) -> None:
    keep("rates", "one", 1e9)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert kept("rates", "one") is None
    keep("rates", "one", 1e9)
    assert kept("rates", "one") == 1e9


def test_a_cache_that_cannot_be_used_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("rates", "one", 1e9)
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    keep("rates", "one", 1e9)
    assert kept("rates", "one") is None and [*folder.iterdir()] == [path]
    path.rmdir()
    folder.rmdir()
    folder.write_text("a file")
    keep("rates", "one", 1e9)
    assert kept("rates", "one") is None
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME")
    keep("rates", "one", 1e9)
    assert kept("rates", "one") is None


def no_home(path: Path) -> Path:
    """Fail as ``Path.expanduser`` does for a user without a home."""
    raise RuntimeError("Could not determine home directory.")
