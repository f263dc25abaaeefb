"""Models by name: from a hub on this machine's loopback, then from the cache that it left, each in its own process."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_hub import Answering, Loopback, serving
from tiny_huggingface import tiny_folder, to_pickle

from hornbook.errors import HornbookError, UserError
from hornbook.exchange.huggingface import fetch
from hornbook.text.hub_client import is_model_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub(Loopback):
    """What ``snapshot_download`` asks of the hub, for one folder called ``someone/tiny``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Handler)
        self.folder = folder


class Handler(Answering):
    server: ModelHub

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        known = [f"/api/models/someone/tiny/revision/{name}" for name in (COMMIT, "main", "v1")]
        if path in ("/api/models/someone/tiny", *known):
            return self.send_json({"id": "someone/tiny", "sha": COMMIT, "siblings": self.entries("rfilename")})
        if path == f"/api/models/someone/tiny/tree/{COMMIT}":
            return self.send_json(self.entries("path"))
        file = self.server.folder / Path(path).name
        if path.startswith(f"/someone/tiny/resolve/{COMMIT}/") and file.exists():
            return self.send(file.read_bytes(), ETag=f'"{oid(file)}"', **{"X-Repo-Commit": COMMIT})
        code = "RevisionNotFound" if "someone/tiny" in path else "RepoNotFound"
        return self.send(b"{}", status=404, **{"X-Error-Code": code})

    def entries(self, key: str) -> list[dict[str, object]]:
        return [
            {"type": "file", key: path.name, "size": path.stat().st_size, "oid": oid(path)}
            for path in sorted(self.server.folder.iterdir())
        ]

    def send_json(self, content: object) -> None:
        self.send(json.dumps(content).encode(), **{"X-Repo-Commit": COMMIT})


def oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@pytest.fixture
def hub(tmp_path) -> Iterator[ModelHub]:
    folder = tiny_folder(tmp_path / "served")
    for name in ("flax_model.msgpack", "README.md", "modeling_evil.py"):
        (folder / name).write_text("not wanted")
    with serving(ModelHub(folder)) as server:
        yield server


def hornbook(tmp_path: Path, endpoint: str | None, *commands: str) -> list[dict[str, object]]:
    """Run ``hornbook checkpoint`` commands in one process that sees this hub alone, or none; return their results."""
    home = str(tmp_path / "home")
    own = {"HF_HOME": home, "HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    own |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    program = "import sys; from hornbook.__main__ import main; [main(command.split()) for command in sys.argv[1:]]"
    words = [sys.executable, "-c", program, *(f"checkpoint {command} --json" for command in commands)]
    environment = os.environ | own
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_model_of_the_hub_and_then_of_the_cache(hub, tmp_path):
    first, missing, revision = hornbook(
        tmp_path,
        hub.endpoint,
        "import someone/tiny --output first",
        "import someone/missing --output none",
        "import someone/tiny --output none --revision v2",
    )
    assert COMMIT in first["source"] and first["tokenizer"]
    assert missing["exit_code"] == revision["exit_code"] == 2
    assert missing["error"].startswith("no run or checkpoint at someone/missing; the Hugging Face hub has no such")
    assert revision["error"].startswith("no run or checkpoint at someone/tiny (revision v2); ")
    assert not (tmp_path / "none").exists()
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert fetched.isdisjoint({"flax_model.msgpack", "README.md", "modeling_evil.py"})

    asked = len(hub.asked)
    second, third = hornbook(
        tmp_path, None, "import hf://someone/tiny --output second", "export someone/tiny --output third"
    )
    assert len(hub.asked) == asked, "offline, from the cache"
    weights = Path("checkpoints", "step-00000000", "model-00000.safetensors")
    assert (tmp_path / "first" / weights).read_bytes() == (tmp_path / "second" / weights).read_bytes()
    assert COMMIT in second["source"] and COMMIT in third["checkpoint"]
    assert (tmp_path / "third" / "vocab.json").read_bytes() == (hub.folder / "vocab.json").read_bytes()


@pytest.mark.slow
def test_pickled_weights_are_fetched_with_leave_alone(hub, tmp_path):
    to_pickle(hub.folder)
    refused, taken = hornbook(
        tmp_path,
        hub.endpoint,
        "import someone/tiny --output mine",
        "import someone/tiny --output mine --allow-pickle --revision v1",
    )
    assert refused["exit_code"] == 2 and "has no safetensors" in refused["error"]
    assert "--allow-pickle" in refused["error"]
    first_asked = {name: min(at for at, path in enumerate(hub.asked) if name in path) for name in ("model.bin", "v1")}
    assert first_asked["v1"] < first_asked["model.bin"], "not before they were allowed"
    assert taken["parameters"] == 11776


def test_a_hub_out_of_reach(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        UserError, match=r"^no run or checkpoint at someone/tiny; not in the cache, .* HF_HUB_OFFLINE is set"
    ) as caught:
        fetch("someone/tiny")
    assert "\n" not in str(caught.value)


def test_a_hub_that_fails_is_worth_a_retry(monkeypatch):
    def fail(*arguments, **options):
        raise ConnectionResetError("by peer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(HornbookError, match=r"the Hugging Face hub cannot be reached \(ConnectionResetError") as caught:
        fetch("hf://someone/tiny")
    assert caught.value.exit_code == 1


@pytest.mark.slow
def test_a_hub_that_is_down_is_worth_a_retry(tmp_path):
    nowhere = "http://127.0.0.1:1"
    *meant, bare, again = hornbook(
        tmp_path,
        nowhere,
        "import hf://someone/tiny --output none",
        "import someone/tiny --output none --revision v2",
        "import someone/tiny --output none",
        "import someone/tiny --output none",
    )
    for refused in meant:
        assert refused["exit_code"] == 1 and "no run or checkpoint at someone/tiny" in refused["error"]
        assert "not in the cache, and the Hugging Face hub cannot be reached" in refused["error"]
    assert bare == again and bare["exit_code"] == 1
    assert bare["error"].startswith(
        "no run or checkpoint at someone/tiny, and the Hugging Face hub cannot be reached ("
    )
    assert bare["error"].endswith("); check the path, or try again")
    (tmp_path / "home" / "hub" / "models--someone--tiny").mkdir(parents=True)
    (known,) = hornbook(tmp_path, nowhere, "import someone/tiny --output none")
    assert "check the path" not in known["error"], "some of it came once"
    assert known["exit_code"] == 1


def test_without_the_extra_its_name_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    lead = "^no run or checkpoint at runz/mien; the Hugging Face hub needs huggingface_hub: "
    with pytest.raises(UserError, match=lead + r".*pip install 'hornbook\[hub\]'"):
        fetch("runz/mien")


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a b", "/a", "a/", "a\nb"])
def test_names_that_are_none(name):
    with pytest.raises(UserError, match="is not a name of the Hugging Face hub"):
        fetch(name)


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("openai-community/gpt2", "hf://gpt2", "hf://runs/demo"):
        assert is_model_name(name) and is_model_name(Path(name))
    for path in ("runs/dmeo", "gpt2", "./a/b", "/a/b", "a/b/c", "../a", "a/", "~/a", ""):
        assert not is_model_name(path), "a mistyped path is not sent anywhere"
    (tmp_path / "runs").rmdir()
    assert not is_model_name("runs/dmeo"), "runs is the default folder of runs, even before there is one"
