"""The validation loss against a window-by-window computation in float64."""

import math

import pytest
import torch
from tiny import hidden_states, randomize, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.engine.validation import validate
from hornbook.errors import DataError
from hornbook.objective import CausalLM
from hornbook.parallel.ranks import Ranks
from hornbook.samples.batches import HeldOutWindows, evaluation_batches
from hornbook.samples.synthetic import SyntheticTokens
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows

SOURCE = SyntheticTokens(vocab_size=70, seed=1, num_documents=7, document_length=9)


class Share(Ranks):
    """One of several ranks that keeps its own sums."""

    def sum_floats(self, values):
        return list(values)

    def sum_integers(self, values):
        return list(values)


@pytest.fixture(scope="module")
def model():
    model = tiny_model(residual_dropout=0.5, attention_dropout=0.5)
    randomize(model)
    return model


def make_windows(score_end_of_text: bool = False) -> EvaluationWindows:
    return EvaluationWindows(SOURCE, 8, score_end_of_text=score_end_of_text)


def measure(model, windows, *, document_mask: bool = False, **options):
    return validate(model, HeldOutWindows(windows, document_mask=document_mask), CausalLM(), **options)


def naive(model, windows, indices, *, document_mask: bool = False) -> tuple[float, int]:
    """Sum in nats and number of the scored targets, a window at a time, all logits at once."""
    model.eval()
    nats, count = 0.0, 0
    for index in indices:
        window = windows.window(index)
        batch = {"tokens": torch.tensor(window.tokens)[None], "positions": torch.arange(8)[None]}
        batch["keys"] = torch.zeros_like(batch["tokens"])
        if document_mask:
            batch["documents"] = torch.tensor(window.documents)[None]
        logits = model.head.logits(hidden_states(model, batch))[0].detach().double()
        for row, target in zip(logits.log_softmax(-1), window.targets.tolist(), strict=True):
            if target != NOT_SCORED:
                nats -= float(row[target])
                count += 1
    model.train()
    return nats, count


@pytest.mark.parametrize("document_mask", [False, True])
@pytest.mark.parametrize("score_end_of_text", [False, True])
@pytest.mark.parametrize("micro_batch_size", [1, 3, 64])
def test_equals_the_naive_computation(model, micro_batch_size, score_end_of_text, document_mask):
    windows = make_windows(score_end_of_text)
    result = measure(
        model,
        windows,
        ranks=Ranks(),
        micro_batch_size=micro_batch_size,
        document_mask=document_mask,
        num_bytes=123,
    )
    nats, count = naive(model, windows, range(windows.num_items), document_mask=document_mask)
    assert result.tokens == count == SOURCE.num_tokens + score_end_of_text * SOURCE.num_documents
    assert result.loss == pytest.approx(nats / count, rel=1e-6)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / 123, rel=1e-6)


def test_document_mask_matters(model):
    plain, masked = (
        measure(model, make_windows(), ranks=Ranks(), micro_batch_size=4, document_mask=mask) for mask in (False, True)
    )
    assert plain.tokens == masked.tokens
    assert plain.loss != masked.loss


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_share_the_windows(model, size):
    windows = make_windows()
    whole = measure(model, windows, ranks=Ranks(), micro_batch_size=2)
    parts = [measure(model, windows, ranks=Share(rank, size), micro_batch_size=2) for rank in range(size)]
    assert sum(part.tokens for part in parts) == whole.tokens
    assert sum(part.loss * part.tokens for part in parts) == pytest.approx(whole.loss * whole.tokens, rel=1e-6)


def test_a_part_of_the_windows_is_spread_and_has_no_bits_per_byte(model):
    windows = make_windows()
    result = measure(model, windows, ranks=Ranks(), micro_batch_size=2, max_windows=3, num_bytes=123)
    nats, count = naive(model, windows, [index * windows.num_items // 3 for index in range(3)])
    assert (result.tokens, result.bits_per_byte) == (count, None)
    assert result.loss == pytest.approx(nats / count, rel=1e-6)


def test_the_standard_error_of_a_part_is_that_of_a_ratio_estimator(model):
    windows, num = make_windows(), 5
    result = measure(model, windows, ranks=Ranks(), micro_batch_size=1, max_windows=num)
    found = [naive(model, windows, [index * windows.num_items // num]) for index in range(num)]
    mean = sum(nats for nats, _ in found) / result.tokens
    variance = sum((nats - mean * count) ** 2 for nats, count in found) / (num - 1)
    share = num / windows.num_items
    assert result.share == pytest.approx(share)
    assert result.standard_error == pytest.approx(math.sqrt((1 - share) * num * variance) / result.tokens, rel=1e-4)
    assert measure(model, windows, ranks=Ranks(), micro_batch_size=num, max_windows=num).standard_error is None
    whole = measure(model, windows, ranks=Ranks(), micro_batch_size=2)
    assert (whole.share, whole.standard_error) == (1.0, None)


def test_more_windows_than_there_are_is_all_of_them(model):
    windows = make_windows()
    whole = measure(model, windows, ranks=Ranks(), micro_batch_size=2, num_bytes=123)
    assert measure(model, windows, ranks=Ranks(), micro_batch_size=2, max_windows=999, num_bytes=123) == whole


def test_bits_need_bytes(model):
    assert measure(model, make_windows(), ranks=Ranks(), micro_batch_size=2).bits_per_byte is None


@pytest.mark.parametrize("training", [True, False])
def test_model_keeps_its_mode_and_gets_no_gradients(model, training):
    model.train(training)
    first = measure(model, make_windows(), ranks=Ranks(), micro_batch_size=2)
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert measure(model, make_windows(), ranks=Ranks(), micro_batch_size=2) == first


def test_a_token_that_the_model_lacks_is_refused_in_one_line() -> None:
    windows = EvaluationWindows(SyntheticTokens(vocab_size=300, seed=1), 8, score_end_of_text=False)
    with pytest.raises(DataError, match=r"the data contain token \d+, but model\.vocab_size 70"):
        measure(tiny_model(), windows, ranks=Ranks(), micro_batch_size=1)


def test_the_mode_comes_back_after_an_error(model):
    model.train()
    windows = EvaluationWindows(SyntheticTokens(vocab_size=300, seed=1), 8, score_end_of_text=False)
    with pytest.raises(DataError):
        measure(model, windows, ranks=Ranks(), micro_batch_size=1)
    assert model.training


class Watched(CausalLM):
    """The text, and two terms beside it that encode nothing: one is looked at, one regularizes."""

    weights = {"causal_lm": 1.0, "watch": 0.0, "activation": 0.5}

    def counts(self, batch):
        return dict.fromkeys(self.weights, super().counts(batch)["causal_lm"])

    def sums(self, head, x_BTD, batch):
        size = x_BTD.square().sum()
        return super().sums(head, x_BTD, batch) | {"watch": 100.0 * size, "activation": size}


def test_bits_per_byte_are_those_of_the_text_alone(model):
    options = {"ranks": Ranks(), "micro_batch_size": 3, "num_bytes": 123}
    plain = measure(model, make_windows(), **options)
    watched = validate(model, HeldOutWindows(make_windows()), Watched(), **options)
    assert watched.bits_per_byte == plain.bits_per_byte
    assert watched.loss == plain.loss + 0.5 * watched.terms["activation"]


def test_sums_are_added_batch_by_batch_in_float64(model):
    """To the bit, so that another way to fetch them is no other number."""
    held_out, objective, nats, count = HeldOutWindows(make_windows()), CausalLM(), 0.0, 0
    model.eval()
    for batch in evaluation_batches(held_out, micro_batch_size=1, rank=0, world_size=1):
        nats += float(objective.sums(model.head, hidden_states(model, batch), batch)["causal_lm"].detach())
        count += objective.counts(batch)["causal_lm"]
    assert measure(model, make_windows(), ranks=Ranks(), micro_batch_size=1).loss == nats / count


class Fetched(TorchDispatchMode):
    """Counts how often a number is asked of the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_nothing_is_fetched_batch_by_batch(model, monkeypatch):
    monkeypatch.setattr(CausalLM, "counts", lambda self, batch: {"causal_lm": batch["targets"].numel()})
    fetched = []
    for micro_batch_size in (64, 2):
        with Fetched() as mode:
            measure(model, make_windows(), ranks=Ranks(), micro_batch_size=micro_batch_size)
        fetched.append(mode.count)
    assert fetched[0] == fetched[1]
