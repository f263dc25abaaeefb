import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fake_run import make_run

from hornbook.cli.main import main
from hornbook.track.serve import BoardServer


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_serves_until_ctrl_c_and_warns_where_others_can_read(tmp_path: Path, host: str) -> None:
    make_run(tmp_path / "runs" / "mine")
    command = [sys.executable, "-m", "hornbook", "runs", "serve", "--host", host, "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as served:
        assert served.stdout and served.stderr
        first = served.stderr.readline()
        if host == "0.0.0.0":
            expected = "other machines with this address can read these runs, unencrypted"
            assert first == f"hornbook: warning: {expected}\n"
            first = served.stderr.readline()
        url = first.split()[0].replace("0.0.0.0", "127.0.0.1")
        page, _, token = url.partition("?token=")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{page}data")
        with urllib.request.urlopen(f"{page}data?token={token}") as reply:
            assert json.load(reply)["selected"] == ["runs/mine"]
        served.send_signal(signal.SIGINT)
        assert json.loads(served.stdout.read())["url"].startswith(f"http://{host}:")
        assert served.wait(600) == 0


def test_without_a_token_everyone_on_the_machine_can_read_and_it_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    command = [sys.executable, "-m", "hornbook", "runs", "serve", "--no-token"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout and served.stderr
        url = served.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}data") as reply:
            assert json.load(reply)["selected"] == ["runs/mine"]
        served.send_signal(signal.SIGINT)
        assert "other users of this machine can read these runs" in served.stderr.read()
        assert served.wait(600) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rnus"], 'no folder rnus here; did you mean "runs"?'),
        (["file"], "file is a file; expected a folder with runs"),
        (["--port", "70000"], '"70000": must be at least 0 and at most 65535'),
        (["--host", "no.such.host.invalid"], "choose another --host or --port"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_the_folders_are_searched_by_the_board_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "mine")
    searched: list[object] = []
    monkeypatch.setattr(os, "walk", lambda root: searched.append(root) or iter(()))
    monkeypatch.setattr(BoardServer, "serve_forever", lambda self, **_: searched.append("served"))
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "serve"]) == 0
    assert searched == ["served"]
