import threading
import time
from itertools import islice

import numpy as np
import pytest
import torch
from cases import mostly_slow
from in_memory import InMemoryTokens, numbered, window_of

from hornbook.errors import DataError, StorageError, UserError
from hornbook.samples.batches import (
    HeldOutWindows,
    Loader,
    WindowBatches,
    evaluation_batches,
    micro_batch_offsets,
    refuse_unknown_ids,
    token_keys,
)
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows, Windows

WORLD_SIZES = (1, 2, 3, 4, 6, 8)
GLOBAL_BATCH_SIZE = 24
SEED = 77
WINDOWS = Windows(numbered(num_documents=9, mean=33), 5, seed=SEED)


def make_loader(windows=WINDOWS, **options):
    defaults = {
        "global_batch_size": GLOBAL_BATCH_SIZE,
        "micro_batch_size": 1,
        "rank": 0,
        "world_size": 1,
        "start_sample": 0,
    }
    maker = WindowBatches(windows, seed=SEED, document_mask=options.pop("document_mask", False))
    return Loader(maker, **(defaults | options))


def samples_of(steps, world_size, start_sample, prefetch):
    """What all ranks together read, in the order of the samples; and where the loaders stand."""
    per_rank, states = [], set()
    for rank in range(world_size):
        with make_loader(rank=rank, world_size=world_size, start_sample=start_sample, prefetch=prefetch) as loader:
            per_rank.append(list(islice(loader, steps)))
            states.add(loader.next_sample)
    read = []
    for step in range(steps):
        for number in range(GLOBAL_BATCH_SIZE // world_size):
            for rank in range(world_size):
                batch = per_rank[rank][step][number]
                read += zip(batch["tokens"].tolist(), batch["targets"].tolist(), batch["keys"].tolist(), strict=True)
    (state,) = states
    return read, state


def expected_samples(count):
    read = []
    for sample in range(count):
        tokens = window_of(WINDOWS, sample).tokens.tolist()
        keys = token_keys(SEED, np.array([sample]), 5)[0].tolist()
        read.append((tokens[:-1], tokens[1:], keys))
    return read


NUM_STEPS = -(-5 * WINDOWS.num_items // (2 * GLOBAL_BATCH_SIZE))  # two and a half epochs
EXPECTED = expected_samples(NUM_STEPS * GLOBAL_BATCH_SIZE)


@pytest.mark.parametrize("prefetch", mostly_slow([2, 0]))
@pytest.mark.parametrize("resumed_world_size", WORLD_SIZES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_same_samples_on_any_number_of_ranks(world_size, resumed_world_size, prefetch):
    """R5: exact lists over two and a half epochs, saved at one world size and resumed at another."""
    assert NUM_STEPS >= 4 and WINDOWS.num_items % GLOBAL_BATCH_SIZE != 0
    steps = 1 + (world_size + resumed_world_size) % (NUM_STEPS - 1)
    before, state = samples_of(steps, world_size, 0, prefetch)
    assert state == steps * GLOBAL_BATCH_SIZE
    after, _ = samples_of(NUM_STEPS - steps, resumed_world_size, state, prefetch)
    assert before + after == EXPECTED


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_run_may_resume_after_every_step(prefetch):
    for step in range(NUM_STEPS):
        read, _ = samples_of(1, 1, step * GLOBAL_BATCH_SIZE, prefetch)
        assert read == EXPECTED[step * GLOBAL_BATCH_SIZE : (step + 1) * GLOBAL_BATCH_SIZE]


def test_micro_batches_are_dealt_round_robin():
    layout = {"global_batch_size": 8, "micro_batch_size": 2, "world_size": 2}
    assert micro_batch_offsets(rank=0, **layout).tolist() == [[0, 1], [4, 5]]
    assert micro_batch_offsets(rank=1, **layout).tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("batch_sizes", "world_size", "advice"),
    [
        ((10, 4), 1, "set training.micro_batch_size to 2, which does not change the training"),
        ((16, 16), 2, "set training.micro_batch_size to 8, which does not change the training"),
        ((65600, 32), 4, "set training.micro_batch_size to 25, which does not change the training"),
        ((4, 8), 1, "set training.micro_batch_size to 4, which does not change the training"),
        ((10, 2), 3, "take a multiple of 3, such as 9 or 12"),
        ((0, 8), 2, "take a multiple of 2, such as 2"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_advice(batch_sizes, world_size, advice):
    global_batch_size, micro_batch_size = batch_sizes
    message = rf"^global_batch_size {global_batch_size} does not divide .* {world_size} ranks?: {advice}$"
    with pytest.raises(UserError, match=message):
        make_loader(global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, world_size=world_size)


def test_what_a_batch_holds():
    with make_loader(micro_batch_size=4, world_size=2, rank=1, document_mask=True, start_sample=48) as loader:
        batches = next(loader)
    assert len(batches) == 3
    for number, batch in enumerate(batches):
        samples = 48 + (2 * number + 1) * 4 + np.arange(4)
        window = WINDOWS.batch(samples)
        assert sorted(batch) == ["documents", "keys", "positions", "targets", "tokens"]
        assert all(tensor.dtype == torch.int64 and tensor.shape == (4, 5) for tensor in batch.values())
        assert all(tensor.is_contiguous() for tensor in batch.values())
        assert batch["tokens"].tolist() == window.tokens[:, :-1].tolist()
        assert batch["targets"].tolist() == window.tokens[:, 1:].tolist()
        assert batch["documents"].tolist() == window.documents[:, :-1].tolist()
        assert batch["positions"].tolist() == [[0, 1, 2, 3, 4]] * 4
        assert batch["keys"].tolist() == token_keys(SEED, samples, 5).tolist()


def test_documents_only_where_they_are_asked_for():
    with make_loader() as loader:
        assert sorted(next(loader)[0]) == ["keys", "positions", "targets", "tokens"]


def test_keys_are_32_random_bits_of_seed_sample_and_position():
    keys = token_keys(5, np.arange(500), 300)
    assert keys.dtype == np.int64 and keys.min() >= 0 and keys.max() < 2**32
    assert abs(keys.mean() / 2**32 - 0.5) < 0.005
    assert len(np.unique(keys)) > 0.9999 * keys.size
    assert np.array_equal(token_keys(5, np.array([7, 499]), 20), keys[[7, 499], :20])
    assert not (token_keys(6, np.arange(500), 300) == keys).any()


class FailingTokens(InMemoryTokens):
    """Raises from the ninth window on."""

    def __init__(self, error):
        super().__init__([range(1, 1001)])
        self.error, self.num_reads = error, 0

    def read(self, document, start, count):
        self.num_reads += 1
        if self.num_reads > 8:
            raise self.error
        return super().read(document, start, count)


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("error", [DataError("x.bin is truncated"), StorageError("I/O error"), MemoryError()])
def test_an_error_is_raised_as_itself_where_its_step_is_asked_for(prefetch, error):
    windows = Windows(FailingTokens(error), 10, seed=0)
    with make_loader(windows, global_batch_size=4, prefetch=prefetch) as loader:
        assert len(next(loader)) == 4
        assert len(next(loader)) == 4
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                next(loader)
            assert caught.value is error
            assert loader.next_sample == 8


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("hornbook-loader")]


def test_close_leaves_no_thread_behind():
    loader = make_loader(prefetch=2)
    assert not loader_threads()
    next(loader)
    assert len(loader_threads()) == 1
    loader.close()
    assert not loader_threads()
    loader.close()
    assert list(loader) == []


def test_an_error_of_the_consumer_leaves_no_thread_behind():
    with pytest.raises(ZeroDivisionError), make_loader(prefetch=2) as loader:
        next(loader)
        _ = 1 / 0
    assert not loader_threads()


def test_without_prefetch_there_is_no_thread():
    with make_loader(prefetch=0) as loader:
        next(loader)
        assert not loader_threads()


class CountingTokens(InMemoryTokens):
    num_reads = 0

    def read(self, document, start, count):
        self.num_reads += 1
        return super().read(document, start, count)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prefetch_is_bounded(prefetch):
    source = CountingTokens([range(1, 30_001)])
    with make_loader(Windows(source, 10, seed=0), global_batch_size=4, prefetch=prefetch) as loader:
        next(loader)
        deadline = time.monotonic() + 120
        while source.num_reads < 4 * (1 + prefetch) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert source.num_reads == 4 * (1 + prefetch)


def test_the_source_is_read_while_the_consumer_works():
    threads = set()

    class Watching(InMemoryTokens):
        def read(self, document, start, count):
            threads.add(threading.current_thread().name)
            return super().read(document, start, count)

    with make_loader(Windows(Watching([range(1, 1000)]), 10, seed=0), prefetch=2) as loader:
        next(loader)
    assert threads and all(name.startswith("hornbook-loader") for name in threads)


def evaluation(**options):
    defaults = {"micro_batch_size": 2, "rank": 0, "world_size": 1}
    held_out = HeldOutWindows(EVALUATION, document_mask=options.pop("document_mask", False))
    return list(evaluation_batches(held_out, **(defaults | options)))


EVALUATION = EvaluationWindows(numbered(num_documents=6, mean=20), 7, score_end_of_text=True)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 5])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_an_evaluation_in_step(world_size, micro_batch_size):
    per_rank = [
        evaluation(micro_batch_size=micro_batch_size, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert len({len(batches) for batches in per_rank}) == 1
    read = []
    for batches in zip(*per_rank, strict=True):
        for batch in batches:
            assert all(tensor.shape == (micro_batch_size, 7) for tensor in batch.values())
            read += batch["targets"].tolist()
    windows = [EVALUATION.window(index).targets.tolist() for index in range(EVALUATION.num_items)]
    assert read[: len(windows)] == windows
    assert all(target == -100 for row in read[len(windows) :] for target in row)
    assert len(read) - len(windows) < micro_batch_size * world_size


def test_what_an_evaluation_batch_holds():
    first = evaluation(document_mask=True)[0]
    window = EVALUATION.window(1)
    assert sorted(first) == ["documents", "keys", "positions", "targets", "tokens"]
    assert first["tokens"][1].tolist() == window.tokens.tolist()
    assert first["documents"][1].tolist() == window.documents.tolist()
    assert first["positions"].tolist() == [list(range(7))] * 2
    assert first["keys"].tolist() == [[0] * 7] * 2
    assert "documents" not in evaluation()[0]


def test_a_limited_evaluation_is_spread_over_the_store():
    number = EVALUATION.num_items
    rows = torch.cat([batch["tokens"] for batch in evaluation(micro_batch_size=1, max_windows=3)]).tolist()
    assert rows == [EVALUATION.window(index).tokens.tolist() for index in (0, number // 3, 2 * number // 3)]
    assert len(evaluation(micro_batch_size=1, max_windows=10 * number)) == number


@pytest.mark.gpu
def test_pinned_batches():
    with make_loader(pin_memory=True, document_mask=True) as loader:
        assert all(tensor.is_pinned() for batch in next(loader) for tensor in batch.values())


def test_pinning_is_asked_of_torch(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    with make_loader(pin_memory=True, prefetch=0) as loader:
        next(loader)
    assert len(pinned) == 4 * GLOBAL_BATCH_SIZE  # tokens, targets, positions and keys of each micro-batch
    with make_loader(prefetch=0) as loader:
        next(loader)
    assert len(pinned) == 4 * GLOBAL_BATCH_SIZE


def batch_of(tokens, targets):
    return {"tokens": torch.tensor(tokens, dtype=torch.int64), "targets": torch.tensor(targets, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("tokens", "targets", "unknown"),
    [([3, 70], [4, 5], 70), ([3, -5], [4, 5], -5), ([3, 4], [4, 70], 70), ([3, 4], [4, -5], -5), ([-100], [], -100)],
)
def test_a_token_outside_the_vocabulary_is_refused(tokens, targets, unknown):
    with pytest.raises(DataError, match=rf"the data contain token {unknown}, but model\.vocab_size 70"):
        refuse_unknown_ids(batch_of(tokens, targets), 70, 1)


@pytest.mark.parametrize(("tokens", "targets"), [([0, 69], [69, NOT_SCORED]), ([0], []), ([], []), ([0], [NOT_SCORED])])
def test_a_batch_of_known_tokens_is_taken_with_or_without_targets(tokens, targets):
    refuse_unknown_ids(batch_of(tokens, targets), 70, 1)


def test_a_loader_that_knows_the_vocabulary_refuses_the_step_that_has_an_unknown_token():
    windows = Windows(InMemoryTokens([[3, 4, 5, 70, 0]], "stored"), 4, seed=0)
    with (
        make_loader(windows, global_batch_size=1, vocab_size=70) as loader,
        pytest.raises(DataError, match="the data contain token 70"),
    ):
        next(loader)
