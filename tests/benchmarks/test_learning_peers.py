"""The comparison of what is learned in the same time: nanochat's schedule, its windows, its score, hornbook's run."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_text import build_tiny

import learning_peers as peers
from hornbook.corpora.store import TokenStore, open_store
from hornbook.samples.windows import Stream


def test_nanochats_schedule_rises_stays_and_falls() -> None:
    shares = [peers.rate_share(step, 400) for step in range(400)]
    assert shares[0] == 1 / 40 and shares[39] == shares[140] == 1.0
    assert all(after < before for before, after in pairwise(shares[140:]))
    assert shares[-1] == pytest.approx(0.05 + 0.95 / 400 / 0.65)
    assert peers.momentum(0, 4000) == 0.85 and peers.momentum(400, 4000) == pytest.approx(0.97)
    assert peers.momentum(3999, 4000) == pytest.approx(0.90, abs=1e-3)


def test_only_contenders_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["learning_peers.py", str(tmp_path), "--corpus", "owt", "--only"]
    monkeypatch.setattr("sys.argv", [*words, "hornbok"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "unknown: 'hornbok'; expected 'hornbook', 'GPT-2, AdamW'" in capsys.readouterr().err
    score = {"steps": 3, "step_seconds": 1.0, "bits_per_byte": 2.0}
    monkeypatch.setattr("sys.argv", [*words, "hornbook"])
    monkeypatch.setattr(peers, "train_hornbook", lambda task, recipe, words: score)
    peers.main()
    assert [path.name for path in tmp_path.iterdir()] == ["owt hornbook 576s seed 0.json"]


def test_windows_are_all_of_a_store_in_another_order_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_tiny(tmp_path / "corpus")
    store = open_store(tmp_path / "corpus", "train")
    monkeypatch.setattr(peers, "_LENGTH", 4)
    monkeypatch.setattr(peers, "_BATCH", 2)
    num_batches = len(range(0, store.num_tokens - 4, 4)) // 2
    first, second, again = (_epochs(store, seed, num_batches) for seed in (1, 2, 1))
    assert first[0].equal(again[0]) and first[1].equal(again[1]) and not first[0].equal(second[0])
    assert not first[0].equal(first[1]) and first[0].dtype == torch.int64
    starts = np.arange(0, store.num_tokens - 4, 4)
    known = Counter(tuple(row) for row in Stream(store).read(starts, 5).tokens.tolist())
    for epoch in first:  # an odd last window is left out
        seen = Counter(tuple(row) for row in epoch.view(-1, 5).tolist())
        assert seen <= known and known.total() - seen.total() == len(starts) % 2


def _epochs(store: TokenStore, seed: int, num_batches: int) -> list[torch.Tensor]:
    """Return the batches of two epochs."""
    found = peers.windows(store, seed)
    return [torch.stack([next(found) for _ in range(num_batches)]) for _ in range(2)]


def test_bits_per_byte_of_equal_probabilities(tmp_path: Path) -> None:
    """Each token but those of end of text costs log2 of the vocabulary's size."""
    build_tiny(tmp_path / "corpus")
    store = open_store(tmp_path / "corpus", "validation")
    num_text = store.num_tokens - store.num_documents

    class Uniform(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tokens.shape, 512)

    assert peers.bits_per_byte(Uniform(), store) == pytest.approx(num_text * math.log2(512) / (store.num_bytes or 0))
