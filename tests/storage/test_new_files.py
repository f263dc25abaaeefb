import pytest

from hornbook.errors import StorageError, UserError
from hornbook.storage.faults import inject
from hornbook.storage.new_files import open_partial


def test_content_grows_over_attempts(tmp_path):
    final = tmp_path / "a.bin"
    with open_partial(final) as partial:
        assert partial.size == 0
        partial.write(b"one")
    with open_partial(final) as partial:
        assert partial.size == 3
        partial.write(b"two")
        assert not final.exists()
        partial.commit()
    assert final.read_bytes() == b"onetwo" and [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_restart(tmp_path):
    with open_partial(tmp_path / "a.bin") as partial:
        partial.write(b"wrong")
        partial.restart()
        partial.write(b"right")
        partial.commit()
    assert (tmp_path / "a.bin").read_bytes() == b"right"


def test_one_at_a_time(tmp_path):
    with (
        open_partial(tmp_path / "a.bin"),
        pytest.raises(UserError, match="in use by another process"),
        open_partial(tmp_path / "a.bin"),
    ):
        raise AssertionError("two hold it")


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_a_failing_disk_keeps_what_is_there(tmp_path, operation):
    final = tmp_path / "a.bin"
    with open_partial(final) as partial:
        partial.write(b"one")
    with inject(operation, 1, "eio"), pytest.raises(StorageError), open_partial(final) as partial:
        partial.write(b"two")
        partial.commit()
    with open_partial(final) as partial:
        assert partial.size in (3, 6)
    assert not final.exists()


def test_short_writes_are_completed(tmp_path):
    with inject("write", 1, "short-write"), open_partial(tmp_path / "a.bin") as partial:
        partial.write(b"0123456789")
        partial.commit()
    assert (tmp_path / "a.bin").read_bytes() == b"0123456789"


def test_content_that_leads_elsewhere_is_refused(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".a.bin.partial").mkdir()
    (tmp_path / ".a.bin.partial" / "lock").touch()
    (tmp_path / ".a.bin.partial" / "content").symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="content: expected a regular file"), open_partial(tmp_path / "a.bin"):
        raise AssertionError("opened")
    assert (tmp_path / "mine").read_text() == "mine"
