"""Data sets by name: from a hub on this machine's loopback, then from the cache that it left, in other processes."""

import json
import os
import subprocess
import sys

import pytest
from tiny_hub import CONVERTED, commit_of, serve_hub
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.text.documents import ReadOptions
from hornbook.text.hub_datasets import is_file_name, list_files

COMMIT = commit_of("some/words", "main")
READ = """
import json, sys, time
from hornbook.errors import HornbookError
from hornbook.text.documents import ReadOptions, read_documents

time.sleep = lambda seconds: None  # between tries to reach a hub
for line in sys.argv[1:]:
    request = json.loads(line)
    try:
        documents = list(read_documents(request.pop("inputs"), ReadOptions(**request)))
        print(json.dumps([[document.text, document.source, document.offset] for document in documents]))
    except HornbookError as error:
        print(json.dumps([error.exit_code, str(error)]))
"""


@pytest.fixture
def hub(tmp_path):
    with serve_hub() as hub:
        add(hub, tmp_path, "some/words", {"data.jsonl": b'{"text": "one"}\n{"text": "two"}\n', "README.md": b"# words"})
        yield hub


def add(hub, folder, name, files, revision="main"):
    hub.repositories[name, revision] = home = folder / "served" / name / revision
    for file, data in files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_bytes(data)


def read(tmp_path, endpoint, *requests):
    """What a process reads that sees this hub alone, or none: the documents of each request, or exit code and error."""
    home = str(tmp_path / "home")
    own = {"HF_HOME": home, "HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*", "HF_HUB_DISABLE_XET": "1"}
    own |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    lines = [json.dumps(request if isinstance(request, dict) else {"inputs": [request]}) for request in requests]
    words = [sys.executable, "-c", READ, *lines]
    environment = os.environ | own
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_data_set_of_the_hub_and_then_of_the_cache(hub, tmp_path):
    source = f"hf:some/words@{COMMIT}/data.jsonl"
    documents = [["one", source, 0], ["two", source, 16]]
    found, again, file = read(tmp_path, hub.endpoint, "hf:some/words", "hf://datasets/some/words@main", source)
    assert found == again == file == documents
    fetched = [path for path in hub.asked if path.startswith("GET") and "/resolve/" in path]
    assert fetched == [f"GET /datasets/some/words/resolve/{COMMIT}/data.jsonl"], "once, and nothing else"
    hub.asked.clear()
    found, unknown, tag = read(tmp_path, None, "hf:some/words", "hf:some/other", "hf:some/words@v2")
    assert found == documents and hub.asked == []
    for code, error in (unknown, tag):
        assert code == 2 and "not in the cache, and HF_HUB_OFFLINE is set" in error
    found, *failures = read(tmp_path, "http://127.0.0.1:1", "hf:some/words", "hf:some/other", f"hf:a/b@{COMMIT}/c.txt")
    assert found == documents, "a hub that is down is as good as none"
    for code, error in failures:
        assert code == 1 and "not in the cache, and the Hugging Face hub cannot be reached (Connect" in error


def test_what_was_not_fetched_is_not_left_out_offline(hub, tmp_path):
    parts = {f"data/train-{number:05d}-of-00002.jsonl": b'{"text": "part"}\n' for number in range(2)}
    add(hub, tmp_path, "some/parts", parts)
    [[both]] = [read(tmp_path, hub.endpoint, {"inputs": ["hf:some/parts"], "exclude": ["*-00001-of*"]})]
    assert len(both) == 1
    [[code, error]] = read(tmp_path, None, "hf:some/parts")
    assert code == 2 and "train-00001-of-00002.jsonl: not in the cache" in error


def test_a_download_that_breaks_off_is_resumed(hub, tmp_path):
    lines = b"".join(b'{"text": "%d"}\n' % number for number in range(20_000))
    add(hub, tmp_path, "some/long", {"long.jsonl": lines})
    hub.breaks.add("long.jsonl")
    [found] = read(tmp_path, hub.endpoint, "hf:some/long")
    assert [text for text, _, _ in found] == [str(number) for number in range(20_000)]
    assert hub.asked.count(f"GET /datasets/some/long/resolve/{commit_of('some/long', 'main')}/long.jsonl") == 2


def test_files_by_pattern(hub, tmp_path):
    add(hub, tmp_path, "some/wiki", {"en/a.jsonl": b'{"text": "en"}', "en/b.jsonl": b'{"text": "t"}', "de.txt": b"de"})
    found, tagged, own, none, split = read(
        tmp_path,
        hub.endpoint,
        "hf:some/wiki/*.txt",
        "hf:some/wiki@main/en/[ab].jsonl",
        "hf:some/wiki",
        "hf:some/wiki/fr/*",
        {"inputs": ["hf:some/wiki"], "split": "test"},
    )
    assert [text for text, _, _ in found] == ["de"]
    assert [text for text, _, _ in tagged] == [text for text, _, _ in own] == ["en", "t"], "JSONL comes before text"
    assert none[0] == 2 and "hf:some/wiki/fr/*: no files for `format='auto'`" in none[1]
    assert split[0] == 2 and "select the files with a pattern, as in hf:some/wiki/*test*" in split[1]


def test_configurations_and_splits_are_those_of_the_parquet_branch(hub, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    add(hub, tmp_path, "some/wiki", {"all.jsonl": b'{"text": "all"}'})
    branch = {}
    for config, split in (("en", "train"), ("en", "test"), ("de", "train")):
        parquet.write_table(pyarrow.table({"text": [f"{config} {split}"]}), tmp_path / "x.parquet")
        branch[f"{config}/{split}/0000.parquet"] = (tmp_path / "x.parquet").read_bytes()
    add(hub, tmp_path, "some/wiki", branch, revision=CONVERTED)
    name = {"inputs": ["hf:some/wiki"]}
    asked = [
        name | {"config": "en", "split": "test"},
        name | {"config": "de"},
        name | {"format": "jsonl"},
        name | {"inputs": ["hf:some/wiki@main"]},
        name,
        name | {"config": "fr"},
        name | {"config": "en"},
        name | {"config": "en", "split": "dev"},
    ]
    for endpoint in (hub.endpoint, None):
        *found, none, config, splits, split = read(tmp_path, endpoint, *asked)
        assert [text for [[text, _, _]] in found] == ["en test", "de train", "all", "all"]
        assert none == [2, "hf:some/wiki has the configurations de, en; choose one with `config`"]
        assert "none is named 'fr'; choose one with `config`" in config[1]
        assert "has the splits test, train; choose one with `split`" in splits[1]
        assert "none is named 'dev'; choose one with `split`" in split[1]


def test_a_branch_with_a_part_of_the_rows_is_read_by_its_name_alone(hub, tmp_path):
    add(hub, tmp_path, "some/large", {"all.jsonl": b'{"text": "all"}'})
    add(hub, tmp_path, "some/large", {"default/partial-train/0000.parquet": b"PAR1"}, revision=CONVERTED)
    found, part = read(tmp_path, hub.endpoint, "hf:some/large", f"hf:some/large@{CONVERTED}")
    assert [text for text, _, _ in found] == ["all"]
    assert part[0] == 2 and "0000.parquet: damaged, or not a valid Parquet file" in part[1]


def test_data_sets_of_scripts_are_read_as_the_hub_converted_them(hub, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "x.parquet")
    add(hub, tmp_path, "some/script", {"script.py": b"import os; os.abort()", "data.zip": b"PK"})
    [[code, error]] = read(tmp_path, hub.endpoint, "hf:some/script")
    assert code == 2 and "no files for `format=" in error
    data = {"plain/train/0000.parquet": (tmp_path / "x.parquet").read_bytes(), "plain/test/0000.parquet": b"PAR1"}
    add(hub, tmp_path, "some/script", data, revision=CONVERTED)
    found, parquets = read(
        tmp_path,
        hub.endpoint,
        {"inputs": ["hf:some/script"], "split": "train"},
        {"inputs": [f"hf:some/script@{CONVERTED}"], "split": "train", "format": "parquet"},
    )
    assert found == parquets
    source = f"hf:some/script@{commit_of('some/script', CONVERTED)}/plain/train/0000.parquet"
    assert found == [["one", source, 0], ["two", source, 1]]


def test_refusals_are_one_line(hub, tmp_path):
    add(hub, tmp_path, "some/secret", {"a.jsonl": b"{}"})
    hub.gated.add("some/secret")
    no_file = f"hf:some/words@{COMMIT}/none.txt"
    outcomes = read(tmp_path, hub.endpoint, "hf:some/none", "hf:some/secret", "hf:some/words@v9", no_file)
    parts = ["no such data set", "datasets/some/secret, and log in", "has no such revision", "has no such revision"]
    for (code, error), part in zip(outcomes, parts, strict=True):
        assert code == 2 and part in error and "\n" not in error
    hub.fails = True
    [[code, error]] = read(tmp_path, hub.endpoint, "hf:some/words")
    assert code == 1 and "the Hugging Face hub failed (HfHubHTTPError); try again" in error


@pytest.mark.slow
def test_a_full_disk_or_a_listing_that_rotted_is_one_line(hub, tmp_path):
    read(tmp_path, hub.endpoint, "hf:some/words")
    [saved] = (tmp_path / "home").rglob("hornbook-main.json")
    for content in ('{"commit": "../x", "files": [], "x": []}', '{"commit', "[]"):
        saved.write_text(content)
        [[code, error]] = read(tmp_path, None, "hf:some/words")
        assert code in (1, 2) and "\n" not in error and "hornbook-main.json" in error


def test_names(monkeypatch):
    assert is_file_name(f"hf:a/b@{COMMIT}/c d.txt") and not is_file_name("hf:a/b@main/c") and not is_file_name("hf:a/b")
    for name in ("hf:", "hf:../x", "hf:a/../b", "hf:a b", "hf:a/b@", "hf:a/b@../x", "hf:a\nb", f"hf:a/b@{COMMIT}/../c"):
        with pytest.raises(UserError) as caught:
            list_files(name, ReadOptions())
        assert one_line(caught.value, "is not a data set of the Hugging Face hub; expected hf:owner/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError) as caught:
        list_files("hf:a/b", ReadOptions())
    assert one_line(caught.value, "hf:a/b: the Hugging Face hub needs huggingface_hub: ", "pip install 'hornbook[hub]'")
