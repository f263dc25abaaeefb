"""Runs on a corpus at a URL are those on the local one, bit for bit."""

import json

import pytest
from ranks import train_on_ranks
from s3_server import s3_server
from tiny_runs import RECIPE, run_tiny, stop_after
from tiny_text import build_tiny, one_line

from hornbook.cli.main import main
from hornbook.corpora import remote_store
from hornbook.errors import HornbookError, StoppedBySignal

fsspec = pytest.importorskip("fsspec")
NOT_SYNTHETIC = ("--data.synthetic=false", "--model.vocab-size=none", "--data.windows=stream")


def losses(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row.get("gradient_norm")) for row in rows if "loss" in row and "step" in row]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote") / "corpus"
    build_tiny(folder)
    return folder


def test_losses_a_resume_and_evaluations_are_those_of_the_local_store(corpus, tmp_path, monkeypatch, capsys):
    far = (f"--data.train=file://{corpus}", f"--data.cache={tmp_path / 'cache'}", *NOT_SYNTHETIC)
    run_tiny(tmp_path / "near", f"--data.train={corpus}", *NOT_SYNTHETIC)
    expected = losses(tmp_path / "near" / "run")
    with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
        stop_after(patch, 4)
        run_tiny(tmp_path / "moved", f"--data.train={corpus}", *NOT_SYNTHETIC)
    run_tiny(tmp_path / "moved", *far)  # which begins on the disk, and goes on from afar
    assert losses(tmp_path / "moved" / "run") == expected and len(expected) >= 8
    monkeypatch.setattr(remote_store, "cache_home", lambda: tmp_path)
    capsys.readouterr()
    for url in ("", "file://"):
        assert main(["evaluate", str(tmp_path / "near" / "run"), "--data", f"{url}{corpus}", "--json"]) == 0
    near, far = (json.loads(line)["tasks"][0]["rows"][:2] for line in capsys.readouterr().out.splitlines())
    assert near == far


@pytest.mark.slow
def test_two_ranks_share_a_cache(corpus, tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    words = [tmp_path / "tiny.toml", *NOT_SYNTHETIC]
    far = [f"--data.train=file://{corpus}", f"--data.cache={tmp_path / 'cache'}"]
    train_on_ranks(2, {tmp_path / "near": [*words, f"--data.train={corpus}"], tmp_path / "far": [*words, *far]})
    assert losses(tmp_path / "far") == losses(tmp_path / "near") != []
    assert list((tmp_path / "cache" / "chunks").glob("??/*"))


def test_the_commands_take_a_url_and_say_what_the_network_must_do(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(remote_store, "cache_home", lambda: tmp_path)
    url = f"file://{corpus}"
    assert main(["corpus", "inspect", url]) == 0 and f"{url}/validation" in capsys.readouterr().out
    assert main(["corpus", "verify", url]) == 0 and f"{url}/train: sound" in capsys.readouterr().out
    assert main(["plan", "demo", f"--data.train={url}"]) == 0 and "by chunks of 64.0 KiB" in capsys.readouterr().out
    assert main(["train", "demo", f"--data.train={url}/none", f"--output={tmp_path / 'run'}"]) == 2
    assert "no token store there" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_from_s3_whose_server_dies_ends_in_one_line_and_resumes_elsewhere(corpus, tmp_path, monkeypatch):
    near = (f"--data.train={corpus}", *NOT_SYNTHETIC)
    run_tiny(tmp_path / "near", *near)
    cache = f"--data.cache={tmp_path / 'cache'}"
    with s3_server(monkeypatch, "corpora") as (server, upload):
        for path in corpus.rglob("*"):
            if path.is_file():
                upload(f"mine/{path.relative_to(corpus)}", path.read_bytes())
        run_tiny(tmp_path / "s3", "--data.train=s3://corpora/mine", cache, *NOT_SYNTHETIC)
        with monkeypatch.context() as patch, pytest.raises(StoppedBySignal):
            stop_after(patch, 4)
            run_tiny(tmp_path / "lost", "--data.train=s3://corpora/mine", cache, *NOT_SYNTHETIC)
        server.kill()
        server.wait()
        with pytest.raises(HornbookError) as caught:
            run_tiny(tmp_path / "lost", "--data.train=s3://corpora/mine", cache, *NOT_SYNTHETIC)
        assert one_line(caught.value, "cannot read s3://corpora/mine", "to resume") and caught.value.exit_code == 1
    run_tiny(tmp_path / "lost", *near)
    assert losses(tmp_path / "s3" / "run") == losses(tmp_path / "lost" / "run") == losses(tmp_path / "near" / "run")
