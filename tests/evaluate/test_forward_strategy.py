"""Validation, tasks, samples and filled gaps look at a model through the forward strategy, and through nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from tiny import tiny_model
from tiny_runs import run_tiny
from tiny_text import build_tiny

from hornbook.engine.build_training import build_training
from hornbook.evaluate.spans import Span, score
from hornbook.generate import generate
from hornbook.model.language_model import forward_resident
from hornbook.run import launch
from hornbook.track.metrics import read


class Remote:
    """Forwards by a model that others cannot reach: it raises as soon as anything else evaluates it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.calls, self._inside = 0, False
        for module in (model, model.embedding, *model.blocks, model.head):
            module.register_forward_pre_hook(self._check)

    def _check(self, module: torch.nn.Module, _: Sequence[Any]) -> None:
        assert self._inside or module.training, f"{type(module).__name__} was called beside the strategy"

    def __call__(self, model: torch.nn.Module, batch: dict[str, torch.Tensor], use: Callable[..., Any]) -> Any:
        self.calls, self._inside = self.calls + 1, True
        try:
            return forward_resident(model, batch, use)
        finally:
            self._inside = False


def test_generation_goes_through_the_strategy_and_writes_the_same():
    model = tiny_model().eval()
    expected = generate(model, [1, 2, 3], num_tokens=5, seed=0)
    remote = Remote(model)
    assert generate(model, [1, 2, 3], num_tokens=5, seed=0, forward=remote) == expected
    assert remote.calls == 5


def test_scores_of_spans_go_through_the_strategy():
    model = tiny_model().eval()
    spans = [Span(tokens=torch.arange(1, 6).numpy(), num_scored=2)]
    (expected,) = score(model, spans, micro_batch_size=1)
    remote = Remote(model)
    (found,) = score(model, spans, forward=remote, micro_batch_size=1)
    assert found.nats.tolist() == expected.nats.tolist() and remote.calls == 1


def test_a_run_looks_at_its_model_through_the_strategy(tmp_path, monkeypatch):
    """Validation, a task and a sample; training has an executor of its own, in training mode."""
    remotes = []

    def build_remote(*arguments: Any) -> Any:
        state, step_config = build_training(*arguments)
        remotes.append(Remote(state.model))
        return state, replace(step_config, forward=remotes[0])

    monkeypatch.setattr(launch, "build_training", build_remote)
    build_tiny(tmp_path / "corpus")
    data = ("--data.train", str(tmp_path / "corpus"), "--data.synthetic=false", "--model.vocab-size=none")
    measured = ("--evaluation.tasks", "bits_per_byte", "--tracking.sample-every-steps=8", "--tracking.sample-tokens=5")
    run_tiny(tmp_path, *data, *measured)
    kinds = {row["kind"] for row in read(tmp_path / "run" / "metrics.jsonl")}
    assert kinds == {"train", "validation", "task"} and len(read(tmp_path / "run" / "samples.jsonl")) == 1
    assert remotes[0].calls > 5, "the sample alone takes five"
