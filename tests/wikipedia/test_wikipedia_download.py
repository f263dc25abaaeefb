import random

import pytest
from crashes import crashes_in_child
from tiny_mirror import NAME, PREFIX, serve
from tiny_text import one_line

from hornbook.errors import DataError, HornbookError, StorageError, UserError
from hornbook.storage.faults import inject
from hornbook.wikipedia import download
from hornbook.wikipedia.download import download_dump

DUMP = random.Random(1).randbytes(300_000)


@pytest.fixture
def mirror():
    with serve(DUMP) as running:
        yield running


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def fetch(mirror, output, **options):
    return download_dump("xx", "20260101", output, mirror=mirror.url, pause=lambda seconds: None, **options)


def fails(mirror, output, error, *parts):
    with pytest.raises(error) as caught:
        fetch(mirror, output)
    assert one_line(caught.value, *parts), str(caught.value)


def test_a_dump_comes_whole_and_alone(mirror, tmp_path):
    steps = []
    found = fetch(mirror, tmp_path / "new" / "dumps", on_progress=lambda done, total: steps.append((done, total)))
    assert found.path.read_bytes() == DUMP and [path.name for path in found.path.parent.iterdir()] == [NAME]
    assert (found.size, found.fetched, found.algorithm) == (len(DUMP), len(DUMP), "sha1")
    assert steps[-1] == (len(DUMP), len(DUMP))


def test_one_that_is_there_is_checked_and_left(mirror, tmp_path):
    fetch(mirror, tmp_path)
    assert fetch(mirror, tmp_path).fetched == 0 and len(mirror.ranges) == 1
    (tmp_path / NAME).write_bytes(b"other")
    fails(mirror, tmp_path, DataError, NAME, "exists already and is not the published file")
    assert (tmp_path / NAME).read_bytes() == b"other"


def test_cut_connections_are_resumed(mirror, tmp_path):
    mirror.moods = ["cut:100000", "503", "cut:0", "cut:150000"]
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP
    assert mirror.ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=100000-", "bytes=250000-"]


def test_what_a_slow_server_sends_is_kept_as_it_comes(mirror, tmp_path):
    mirror.moods = ["stall:100000"]
    content = tmp_path / f".{NAME}.partial" / "content"
    sizes = []

    def note(done, total):
        sizes.append((done, content.stat().st_size))
        if done >= 100_000:
            mirror.go_on.set()

    assert fetch(mirror, tmp_path, on_progress=note).path.read_bytes() == DUMP
    assert any(done == size == 100_000 for done, size in sizes), "before the rest came"


def test_a_later_call_continues(mirror, tmp_path):
    mirror.moods = ["cut:200000", *["500"] * 6]
    fails(mirror, tmp_path, HornbookError, "the server answered 500")
    assert not (tmp_path / NAME).exists()
    found = fetch(mirror, tmp_path)
    assert found.path.read_bytes() == DUMP and found.fetched == 100_000
    assert mirror.ranges[-1] == "bytes=200000-"


def test_a_server_that_gets_no_further_is_given_up(mirror, tmp_path):
    mirror.moods = ["cut:1000", *["cut:0"] * 20]
    waits = []
    with pytest.raises(HornbookError, match="ended at byte 1000 of 300000") as caught:
        download_dump("xx", "20260101", tmp_path, mirror=mirror.url, pause=waits.append)
    assert caught.value.exit_code == 1 and waits == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("mood", ["whole", "other"])
def test_a_server_without_ranges_or_with_wrong_ones(mirror, tmp_path, mood):
    mirror.moods = ["cut:100000", mood]
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP


def test_wrong_content_is_thrown_away(mirror, tmp_path):
    mirror.publish("sha1", b"something else")
    with pytest.raises(HornbookError, match=r"the downloaded file is not the published one \(sha1") as caught:
        fetch(mirror, tmp_path)
    assert caught.value.exit_code == 1, "worth another attempt"
    assert not (tmp_path / NAME).exists()
    mirror.publish("sha1", DUMP)
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP
    assert mirror.ranges == [None, None]


def test_a_file_that_changed_between_attempts_is_thrown_away(mirror, tmp_path):
    mirror.moods = ["cut:200000", *["500"] * 6]
    fails(mirror, tmp_path, HornbookError, "500")
    mirror.files = {path: data for path, data in mirror.files.items() if path.endswith(".txt")} | {
        f"/xxwiki/20260101/{NAME}": DUMP[::-1]
    }
    mirror.publish("sha1", DUMP[::-1])
    fails(mirror, tmp_path, HornbookError, "the downloaded file is not the published one")
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP[::-1]


def test_more_than_the_whole_is_noticed(mirror, tmp_path):
    folder = tmp_path / f".{NAME}.partial"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "content").write_bytes(DUMP + b"more")
    fails(mirror, tmp_path, HornbookError, "the downloaded file is not the published one")
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP


def test_md5_where_there_is_no_sha1(mirror, tmp_path):
    del mirror.files[f"{PREFIX}sha1sums.txt"]
    mirror.publish("md5", DUMP)
    assert fetch(mirror, tmp_path).algorithm == "md5"


def test_dumps_that_are_not_there(mirror, tmp_path):
    mirror.moods = ["404"]
    fails(mirror, tmp_path, UserError, "no such dump")
    mirror.moods = ["403"]
    fails(mirror, tmp_path, UserError, "the server answered 403")
    mirror.files[f"{PREFIX}sha1sums.txt"] = b"<html>\xff nothing here</html>"
    fails(mirror, tmp_path, UserError, "has no checksum of " + NAME)
    mirror.files.clear()
    fails(mirror, tmp_path, UserError, "has no checksum of " + NAME)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("EN", "20260101", None), "'EN' is no language"),
        (("../x", "20260101", None), "is no language"),
        (("en", "latest", None), "'latest' is no date of a dump"),
        (("en", "2026-01-01", None), "is no date of a dump"),
        (("en", "20260101", "file:///etc"), "is no address of a mirror"),
    ],
)
def test_mistakes(tmp_path, arguments, part):
    language, date, url = arguments
    with pytest.raises(UserError) as caught:
        download_dump(language, date, tmp_path, mirror=url or download.MIRROR)
    assert one_line(caught.value, part)


def test_an_unreachable_server(tmp_path):
    with serve(DUMP) as gone:
        pass
    fails(gone, tmp_path, HornbookError, "cannot be reached", "check the network")


def test_a_full_disk_is_reported_and_what_was_received_stays(mirror, tmp_path):
    mirror.moods = ["cut:100000"]
    with inject("write", 2, "enospc"), pytest.raises(StorageError) as caught:
        fetch(mirror, tmp_path)
    assert one_line(caught.value, "free")
    assert fetch(mirror, tmp_path).path.read_bytes() == DUMP


def test_too_little_space_is_reported_before(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "free_bytes", lambda path: 1000)
    fails(mirror, tmp_path, StorageError, "293.0 KiB more, but 1000 B are free")


def test_a_killed_download_resumes(mirror, tmp_path):
    """Killed at each of its operations on the disk, and then started again."""
    for number in range(1, 50):
        output = tmp_path / str(number)
        crashed = crashes_in_child(lambda output=output: fetch(mirror, output), "any", number, "crash-before")
        found = fetch(mirror, output)
        assert found.path.read_bytes() == DUMP and not [path for path in output.glob("*") if path.name != NAME]
        if not crashed:
            break
    assert number > 6
