"""Inputs by URL, in a file system of fsspec in memory; and, slowly, on a local S3 server."""

import contextlib
import gzip
import json
import uuid

import pytest
from s3_server import s3_server
from tiny_text import TEXTS, build_tiny, one_line

from hornbook.errors import HornbookError, UserError
from hornbook.text import remote
from hornbook.text.documents import ReadOptions, is_remote, list_sources, read_documents
from hornbook.text.remote import fetched, identity, list_files

fsspec = pytest.importorskip("fsspec")
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)


@pytest.fixture
def bucket():
    """A folder in memory, with its URL and a function that writes files into it."""
    system, folder = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    yield f"memory://{folder}", lambda name, data: system.pipe(f"{folder}/{name}", data)
    with contextlib.suppress(FileNotFoundError):
        system.rm(folder, recursive=True)


def test_what_is_a_url():
    assert all(map(is_remote, ["s3://a/b", "https://example.org/a.txt", "memory://x"]))
    assert not any(map(is_remote, ["a/b", "/a", "-", "hf:a/b", "hf://a/b", "file:///a", "://a", "C:\\a"]))


def test_files_of_a_folder_a_pattern_and_a_name(bucket):
    url, write = bucket
    for name in ("b.jsonl", "a.jsonl.gz", "deep/c.txt", "deep/.hidden", ".git/d.txt", "test_e.jsonl"):
        write(name, b"x")
    names = ["a.jsonl.gz", "b.jsonl", "deep/c.txt", "test_e.jsonl"]
    assert list_files(url) == [f"{url}/{name}" for name in names]
    assert list_files(url, suffixes=[".jsonl"], exclude=["test*"]) == [f"{url}/a.jsonl.gz", f"{url}/b.jsonl"]
    assert list_files(f"{url}/*.jsonl") == [f"{url}/b.jsonl", f"{url}/test_e.jsonl"]
    assert list_files(f"{url}/b.jsonl") == [f"{url}/b.jsonl"]
    assert list_sources([url, f"{url}/b.jsonl"], ReadOptions()) == [f"{url}/{name}" for name in names]
    for missing in (f"{url}/*.csv", f"{url}/none"):
        with pytest.raises(UserError) as caught:
            list_files(missing)
        assert one_line(caught.value, missing, "no file to read")


def test_documents_are_those_of_the_files(bucket):
    url, write = bucket
    write("a.jsonl", LINES.encode())
    write("b.jsonl.gz", gzip.compress(LINES.encode()))
    write("c.txt", b"plain")
    found = list(read_documents([url]))
    assert [document.text for document in found] == [*[text.replace("\r\n", "\n") for text in TEXTS] * 2, "plain"]
    assert {document.source for document in found} == {f"{url}/{name}" for name in ("a.jsonl", "b.jsonl.gz", "c.txt")}


def test_an_identity_changes_with_the_content(bucket):
    url, write = bucket
    write("a", b"one")
    before = identity(f"{url}/a")
    assert identity(f"{url}/a") == before
    write("a", b"two2")
    assert identity(f"{url}/a") != before


def test_the_copy_is_removed(bucket):
    url, write = bucket
    write("a.txt", b"one")
    with fetched(f"{url}/a.txt") as path:
        assert path.read_bytes() == b"one" and path.name == "a.txt"
    assert not path.parent.exists()


def test_a_network_that_drops_is_tried_again_and_then_one_line(bucket, monkeypatch):
    url, write = bucket
    write("a.txt", b"one")
    waits, failures = [], [OSError(104, "Connection reset by peer")] * 3
    monkeypatch.setattr(remote.time, "sleep", waits.append)
    system = type(fsspec.filesystem("memory"))
    whole = system.open

    def flaky(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return whole(self, *arguments, **options)

    monkeypatch.setattr(system, "open", flaky)
    with fetched(f"{url}/a.txt") as path:
        assert path.read_bytes() == b"one"
    assert waits == [0.5, 1.0, 2.0]
    failures += [OSError(104, "Connection reset by peer")] * 4
    with pytest.raises(HornbookError) as caught, fetched(f"{url}/a.txt"):
        pass
    assert one_line(caught.value, f"cannot read {url}/a.txt in 4 attempts", "Connection reset", "run the same command")
    assert caught.value.exit_code == 1


def test_a_missing_file_and_a_missing_library_are_one_line(bucket):
    url, _ = bucket
    with pytest.raises(UserError) as caught, fetched(f"{url}/none"):
        pass
    assert one_line(caught.value, "cannot read", "check the address")
    with pytest.raises(UserError) as caught:
        list_files("nosuch://a/b")
    assert one_line(caught.value, "nosuch://a/b: ", "install the protocol's library, or check the address")


@pytest.fixture
def s3(monkeypatch):
    """A local S3 server; yields a function that uploads."""
    with s3_server(monkeypatch, "texts") as (server, upload):
        yield server, upload


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_build_from_s3_by_workers_resumes_after_the_server_was_gone(tmp_path, s3):
    server, upload = s3
    for number in range(4):
        upload(f"web/{number}.jsonl.gz", gzip.compress(LINES.encode()))
    url, options = "s3://texts/web/*.jsonl.gz", {"validation": 0.0}
    one = build_tiny(tmp_path / "one", inputs=[url], **options)
    build_tiny(tmp_path / "two", inputs=[url], workers=2, **options)
    assert one.splits["train"].documents == 4 * len(TEXTS)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    assert build_tiny(tmp_path / "two", inputs=[url], **options).already_built
    server.kill()
    server.wait()
    with pytest.raises(HornbookError) as caught:
        build_tiny(tmp_path / "three", inputs=[url], **options)
    assert one_line(caught.value, "cannot read s3://texts/web", "check the network") and caught.value.exit_code == 1
