from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemoryTokens, numbered
from tiny_runs import tiny_recipe

from hornbook.errors import UserError
from hornbook.samples.batches import Loader, WindowBatches, token_keys
from hornbook.samples.hashing import Purpose, mix64
from hornbook.samples.mixture import Blend, Mixture, joint_fingerprint, whole_shares
from hornbook.samples.sources import Sources, open_mixture, open_windows
from hornbook.samples.windows import Windows

SHARES = st.lists(st.integers(1, 40) | st.integers(1, 10**12), min_size=1, max_size=7)
SEEDS = st.integers(0, 2**64)


def located(blend, samples):
    sources, numbers = blend.locate(np.asarray(samples))
    assert sources.dtype == numbers.dtype == np.int64
    return list(zip(sources.tolist(), numbers.tolist(), strict=True))


def merged(shares, seed, count):
    """The definition, read off: all samples of all sources with their times, in order."""
    total, events = sum(shares), []
    for source, share in enumerate(shares):
        for number in range(min(count, count * share // total + len(shares) + 2)):
            draw = int(mix64(seed, Purpose.BLEND, source, number)) >> 32
            events.append((((number << 32) + draw) * total // share, source, number))
    return [(source, number) for _, source, number in sorted(events)[:count]]


def test_the_samples_in_the_order_of_their_times():
    blend = Blend([2, 1], seed=0)
    assert located(blend, range(300)) == merged([2, 1], 0, 300)
    assert {source for source, _ in located(blend, range(3))} == {0, 1}


@settings(max_examples=60, deadline=None)
@given(shares=SHARES, seed=SEEDS, page_size=st.integers(1, 50))
def test_pages_change_nothing(shares, seed, page_size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hornbook.samples.mixture._PAGE_SIZE", page_size)
        assert located(Blend(shares, seed), range(120)) == merged(shares, seed, 120)


@settings(max_examples=60, deadline=None)
@given(shares=SHARES, seed=SEEDS, first=st.integers(0, 2**50), data=st.data())
def test_every_sample_of_a_source_comes_once_and_in_order(shares, seed, first, data):
    """Anywhere in a run, read in any order: what is taken goes on where the samples before it stopped."""
    blend, samples = Blend(shares, seed), np.arange(first, first + 400)
    found = located(blend, samples)
    for source in range(len(shares)):
        numbers = [number for where, number in found if where == source]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    order = data.draw(st.permutations(range(0, 400, 29)))
    assert located(Blend(shares, seed), samples[order]) == [found[place] for place in order]


@settings(max_examples=80, deadline=None)
@given(shares=SHARES, seed=SEEDS, far=st.integers(0, 2**50))
def test_each_prefix_has_the_shares(shares, seed, far):
    total, slack = sum(shares), len(shares) - 2
    near = [(sample, *where) for sample, where in enumerate(located(Blend(shares, seed), range(500)))]
    later = located(Blend(shares, seed), range(far, far + 100))
    for sample, source, number in near + [(far + place, *where) for place, where in enumerate(later)]:
        off = (number + 1) * total - (sample + 1) * shares[source]  # samples of the source up to this one, times total
        assert abs(off) <= total + slack * shares[source] + 1


@settings(max_examples=40, deadline=None)
@given(shares=st.lists(st.integers(1, 40), min_size=1, max_size=7), seed=SEEDS, rounds=st.integers(1, 3))
def test_whole_rounds_have_exact_shares(shares, seed, rounds):
    found = located(Blend(shares, seed), range(rounds * sum(shares)))
    assert np.bincount([source for source, _ in found]).tolist() == [rounds * share for share in shares]


def test_there_is_no_period():
    sources, _ = Blend([3, 2, 1], seed=5).locate(np.arange(6 * 200))
    assert len({tuple(part) for part in sources.reshape(-1, 6).tolist()}) > 30
    assert max((sources[lag:] == sources[:-lag]).mean() for lag in range(1, 600)) < 0.7
    other, _ = Blend([3, 2, 1], seed=6).locate(np.arange(6 * 200))
    assert (sources != other).mean() > 0.2


@pytest.mark.parametrize(
    ("weights", "shares"),
    [([0.7, 0.3], [7, 3]), ([2, 4], [1, 2]), ([1e-5, 3], [1, 300_000]), ([5.0], [1]), ([1e300, 1e-300], [10**600, 1])],
)
def test_weights_are_the_decimals_that_they_are_written_as(weights, shares):
    assert whole_shares(weights) == shares


SEED = 77
FIRST = numbered(num_documents=9, mean=33)
SECOND = InMemoryTokens([[1000, 1001, 0], [1002, 0], [1003, 1004, 1005, 1006, 0]], "stored")
THIRD = InMemoryTokens([range(2000, 2090)], "absent", end_of_text_id=None)


@pytest.mark.parametrize("weights", [(), (3.0,)])
def test_one_source_has_the_samples_that_it_has_alone(weights):
    mixture, windows = Mixture([FIRST], 5, SEED, weights), Windows(FIRST, 5, SEED)
    samples = np.array([0, 7, 3, *range(100, 300), 10**9])
    ours, alone = mixture.batch(samples), windows.batch(samples)
    assert np.array_equal(ours.tokens, alone.tokens) and np.array_equal(ours.documents, alone.documents)
    assert ours.tokens.dtype == ours.documents.dtype == np.int64
    assert mixture.num_items == windows.num_items
    for sample in (0, 7, 299):
        assert mixture.provenance(sample) == (0, sample // windows.num_items, windows.provenance(sample))


@settings(max_examples=settings().max_examples // 3)
@given(weights=st.just(()) | st.tuples(*[st.floats(0.01, 100)] * 3), seed=SEEDS, epochs=st.integers(1, 3))
def test_every_window_of_a_source_once_in_each_of_its_epochs(weights, seed, epochs):
    sources, length = [FIRST, SECOND, THIRD], 5
    mixture = Mixture(sources, length, seed, weights)
    seen = {}
    for sample in range(epochs * mixture.num_items):
        source, epoch, pieces = mixture.provenance(sample)
        seen.setdefault((source, epoch), []).append(tuple(pieces))
    for number, source in enumerate(sources):
        alone = Windows(source, length, seed if number == 0 else int(mix64(seed, Purpose.SOURCE_SEED, number)))
        for epoch in range(max((epoch for of, epoch in seen if of == number), default=-1) + 1):
            samples = range(epoch * alone.num_items, (epoch + 1) * alone.num_items)
            whole = [tuple(alone.provenance(sample)) for sample in samples]
            assert seen[number, epoch] == whole[: len(seen[number, epoch])]
            assert len(seen[number, epoch]) == alone.num_items or (number, epoch + 1) not in seen
        if not weights:
            assert len(seen[number, epochs - 1]) == alone.num_items and (number, epochs) not in seen


@pytest.mark.parametrize("weights", [(), (1, 2, 3)])
def test_a_part_is_what_a_run_over_all_begins_with(weights):
    sources = [FIRST, SECOND, THIRD]
    whole = Mixture(sources, 5, SEED, weights)
    part, smaller = (Mixture(sources, 5, SEED, weights, max_samples=size) for size in (9, 4))
    assert (part.num_items, smaller.num_items) == (9, 4)
    first = sorted(map(tuple, whole.batch(np.arange(9)).tokens.tolist()))
    for epoch in range(3):
        samples = np.arange(9 * epoch, 9 * epoch + 9)
        read = part.batch(samples).tokens.tolist()
        assert sorted(map(tuple, read)) == first
        assert {tuple(tokens) for tokens in smaller.batch(np.arange(4)).tokens.tolist()} <= set(first)
        assert [part.provenance(sample).epoch for sample in samples.tolist()] == [epoch] * 9
    assert not np.array_equal(part.batch(np.arange(9)).tokens, part.batch(np.arange(9, 18)).tokens)
    samples = np.arange(200)
    beyond = Mixture(sources, 5, SEED, weights, max_samples=whole.num_items + 1)
    assert np.array_equal(beyond.batch(samples).tokens, whole.batch(samples).tokens)


@pytest.mark.parametrize("max_samples", [None, 7])
def test_provenance_names_what_was_read(max_samples):
    sources = [FIRST, SECOND, THIRD]
    mixture = Mixture(sources, 4, SEED, [1, 2, 3], max_samples=max_samples)
    for sample in range(60):
        source, _, pieces = mixture.provenance(sample)
        read = [
            token
            for document, start, count in pieces
            for token in sources[source].documents[document][start : start + count].tolist()
        ]
        tokens = mixture.batch(np.array([sample])).tokens[0].tolist()
        assert read == (tokens if source else [token for token in tokens if token != 0])


def test_sources_have_orders_of_their_own():
    mixture = Mixture([THIRD, THIRD], 5, SEED)
    starts = {0: [], 1: []}
    for sample in range(mixture.num_items):
        source, _, pieces = mixture.provenance(sample)
        starts[source].append(pieces[0].start)
    assert starts[0] != starts[1]


def test_a_source_too_short_for_a_window_is_refused():
    with pytest.raises(UserError, match=r"^the store has 10 tokens .*one sample needs 21"):
        Mixture([FIRST, SECOND], 20, SEED)


def test_fingerprints_distinguish_stores_their_order_and_weights():
    first, second = InMemoryTokens([[1]]), InMemoryTokens([[2]])
    first.fingerprint, second.fingerprint = "a", "b"
    prints = [
        joint_fingerprint(*arguments)
        for arguments in [
            ([first, second], ()),
            ([second, first], ()),
            ([first, second], (0.5, 0.5)),
            ([first, second], (1, 2)),
            ([first, second, second], ()),
            ([first], ()),
        ]
    ]
    assert len(set(prints)) == 6
    assert joint_fingerprint([first, second], (1.0, 2.0)) == prints[3]


GLOBAL_BATCH_SIZE = 24
MIXTURE = Mixture([FIRST, SECOND, THIRD], 5, SEED, (0.5, 0.3, 0.2))


def read_by(world_size, start_sample, steps, micro_batch_size):
    """(tokens, targets, keys) of all samples that the ranks read together, in the order of the samples."""
    rows = {}
    for rank in range(world_size):
        with Loader(
            WindowBatches(MIXTURE, seed=SEED, document_mask=False),
            global_batch_size=GLOBAL_BATCH_SIZE,
            micro_batch_size=micro_batch_size,
            rank=rank,
            world_size=world_size,
            start_sample=start_sample,
        ) as loader:
            for step, batches in enumerate(islice(loader, steps)):
                for number, batch in enumerate(batches):
                    first = start_sample + step * GLOBAL_BATCH_SIZE + (number * world_size + rank) * micro_batch_size
                    columns = [batch[name].tolist() for name in ("tokens", "targets", "keys")]
                    rows |= dict(enumerate(zip(*columns, strict=True), first))
    return [rows[sample] for sample in sorted(rows)]


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 24), (1, 3), (2, 4), (3, 8), (4, 1), (8, 3)])
@pytest.mark.parametrize("start_sample", [0, 24 * 7, 24 * 42])
def test_the_same_samples_on_any_number_of_ranks_from_any_step_on(world_size, micro_batch_size, start_sample):
    """Ranks, accumulation and resuming leave a mixture as it is, across pages of the blend and epochs of the stores."""
    samples = np.arange(start_sample, start_sample + 3 * GLOBAL_BATCH_SIZE)
    tokens = Mixture([FIRST, SECOND, THIRD], 5, SEED, (0.5, 0.3, 0.2)).batch(samples).tokens
    columns = tokens[:, :-1].tolist(), tokens[:, 1:].tolist(), token_keys(SEED, samples, 5).tolist()
    assert read_by(world_size, start_sample, 3, micro_batch_size) == list(zip(*columns, strict=True))


@pytest.mark.parametrize(("most", "kind"), [("none", Windows), ("1000000", Windows), ("2", Mixture)])
def test_a_single_store_is_blended_only_for_a_part_of_it(most, kind, tmp_path):
    recipe = tiny_recipe(tmp_path, f"--data.max-samples={most}").recipe
    sources = Sources(train=(FIRST,))
    windows = open_windows(recipe, sources)
    assert type(windows) is kind
    assert windows.num_items == (2 if kind is Mixture else Windows(FIRST, recipe.sequence_length, SEED).num_items)
    assert open_mixture(recipe, sources).num_items == windows.num_items
