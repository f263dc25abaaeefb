"""The peak rates in the user's cache: what is kept, and that no content of a file does harm."""

from pathlib import Path

import pytest

from hornbook.run import peaks
from hornbook.run.peaks import fastest


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peaks.folder() == tmp_path / "hornbook" / "peaks"
    return peaks.folder()


def test_the_fastest_rate_of_each_product_is_kept(folder: Path) -> None:
    assert [fastest("one", rate) for rate in (2e9, 1e9, 3e9)] == [2e9, 2e9, 3e9]
    assert fastest("another", 1e9) == 1e9
    assert len([*folder.iterdir()]) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff" * 100,
        b'{"product": "one"}',
        b'{"product": "another", "flops_per_second": 2e9}',
        b'{"product": "one", "flops_per_second": true}',
        b'{"product": "one", "flops_per_second": "2e9"}',
        b'{"product": "one", "flops_per_second": -2e9}',
        b'{"product": "one", "flops_per_second": NaN}',
        b'{"product": "one", "flops_per_second": 1e400}',
        b'{"product": "one", "flops_per_second": 2e15}',
        b" " * 100_000,
    ],
)
def test_damaged_content_is_replaced(folder: Path, content: bytes) -> None:
    fastest("one", 1e9)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert fastest("one", 1.5e9) == 1.5e9
    assert fastest("one", 1e9) == 1.5e9


def test_a_cache_that_cannot_be_used_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest("one", 1e9)
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert fastest("one", 2e9) == 2e9 and [*folder.iterdir()] == [path]
    path.rmdir()
    folder.rmdir()
    folder.write_text("a file")
    assert fastest("one", 2e9) == 2e9
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert fastest("one", 2e9) == 2e9


def no_home(path: Path) -> Path:
    """Fail as ``Path.expanduser`` does for a user without a home."""
    raise RuntimeError("Could not determine home directory.")
