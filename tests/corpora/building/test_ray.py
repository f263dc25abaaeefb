"""Builds on a Ray cluster of two nodes on this machine, one of which is killed."""

import json

import pytest
from tiny_documents import some_words
from tiny_text import TEXTS, build_tiny, one_line

from hornbook.errors import DataError, HornbookError
from hornbook.text import slices
from hornbook.text.documents import ReadOptions
from hornbook.text.quality.policy import QualityOptions, Tolerance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PAGE = " ".join(some_words(150, 1))
QUALITY = {
    "quality": QualityOptions(exact_duplicates=True, near_duplicates=0.8),
    "reading": ReadOptions(on_error="skip"),
    "tolerance": Tolerance(max_dropped=1.0, allow=("unused-file",)),
}


@pytest.fixture
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", 1500)
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(6):
        some = [*TEXTS[number * 8 :][:20], *(f"{PAGE} {number} {text}" for text in TEXTS[:9])]
        (folder / f"{number}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in some))
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_node_is_killed_and_the_corpus_is_that_of_one_process(tmp_path, texts, cluster):
    good = build_tiny(tmp_path / "good", **QUALITY)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    seen = []

    def kill(progress):
        seen.append(progress.documents)
        if progress.documents and len(nodes) == 2:
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    made = build_tiny(tmp_path / "corpus", ray=cluster.address, on_progress=kill, **QUALITY)
    assert len(nodes) == 1 and seen[-1] > seen[0]
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")
    assert made.dropped == good.dropped and min(made.dropped.values()) > 0


def test_a_driver_that_ends_is_resumed_and_errors_are_those_of_one_process(tmp_path, texts, cluster):
    build_tiny(tmp_path / "good", **QUALITY)
    cluster.add_node(num_cpus=1)
    notices = []

    def stop(progress):
        if progress.documents:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", ray=cluster.address, on_progress=stop, **QUALITY)
    build_tiny(tmp_path / "corpus", ray=cluster.address, on_notice=notices.append, **QUALITY)
    assert "resuming after" in notices[0]
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")
    (texts / "9.jsonl").write_text("broken")
    with pytest.raises(DataError) as caught:
        build_tiny(tmp_path / "other", ray=cluster.address)
    assert one_line(caught.value, "9.jsonl, line 1: not valid JSON")


def test_an_address_that_nothing_answers_is_one_line(tmp_path, texts):
    pytest.importorskip("ray")
    with pytest.raises(HornbookError) as caught:
        build_tiny(tmp_path / "corpus", ray="127.0.0.1:9")
    assert one_line(caught.value, "cannot reach the Ray cluster at 127.0.0.1:9", "`ray`")
    assert caught.value.exit_code == 1 and not (tmp_path / ".corpus.building").exists()
