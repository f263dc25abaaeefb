"""Buffers of one's own blocks: changed by training, saved, and there again after a resume and in a loaded model."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_runs
import torch
from torch import nn

from hornbook import extend
from hornbook.config import options as registry
from hornbook.errors import StoppedBySignal
from hornbook.exchange.restore import load_model


@dataclass(frozen=True, kw_only=True)
class CountingConfig:
    family: str = extend.option("counting", help="kind of model")
    vocab_size: int | None = extend.option(70, help="tokens", minimum=1)
    max_positions: int = extend.option(16, help="positions", minimum=1)


class CountingBlock(nn.Module):
    """Scales its input by a pattern that changes with every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.up = extend.Linear(8, 8, std=0.1)
        self.register_buffer("pattern", torch.empty(8))
        self.register_buffer("num_calls", torch.empty((), dtype=torch.int64))
        self.register_buffer("signs", torch.empty(8), persistent=False)

    def draw(self, draw: extend.Draw) -> None:
        self.pattern.fill_(1.0)
        self.num_calls.zero_()
        self.signs.copy_(torch.tensor([1.0, -1.0]).repeat(4))

    def forward(self, x_BTD: torch.Tensor, context: extend.Context) -> torch.Tensor:
        if self.training:
            self.num_calls.add_(1)
            self.pattern.copy_((self.num_calls % 5 + torch.arange(8)) / 10)
        return x_BTD + self.up(x_BTD) * self.pattern.to(x_BTD.dtype) * self.signs.to(x_BTD.dtype)


def build_counting(config: CountingConfig, compute_dtype: torch.dtype) -> extend.LanguageModel:
    options = {"dropout": 0.0, "std": 0.02, "compute_dtype": compute_dtype}
    embedding = extend.Embedding(config.vocab_size, config.max_positions, 8, **options)
    head = extend.CausalHead(8, config.vocab_size, epsilon=1e-5)
    return extend.LanguageModel(embedding, [CountingBlock()], head, max_positions=config.max_positions)


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    extend.build_model.register(CountingConfig)(build_counting)
    monkeypatch.setitem(registry._CHOICES, "model", dict(registry._CHOICES["model"]))
    extend.register("model", "counting", CountingConfig)
    monkeypatch.setattr(
        tiny_runs,
        "RECIPE",
        '[model]\nfamily = "counting"\n' + tiny_runs.RECIPE[tiny_runs.RECIPE.index("[data]") :],
    )


def test_a_loaded_model_has_the_buffers_that_training_left(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path)
    block = load_model(tmp_path / "run", torch.device("cpu"), compute="fp32").model.blocks[0]
    assert block.num_calls == 16 and block.num_calls.dtype == torch.int64, "8 steps of 2 micro-batches"
    assert torch.equal(block.pattern, (1 + torch.arange(8)) / 10)
    assert block.signs.tolist() == [1.0, -1.0] * 4


def test_a_resume_continues_from_the_saved_buffers_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    tiny_runs.run_tiny(whole)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 3)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(stopped)
    tiny_runs.run_tiny(stopped)
    assert tiny_runs.digest(stopped, 8) == tiny_runs.digest(whole, 8)
