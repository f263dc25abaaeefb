"""Batches of masked sequences: a function of the sample numbers, whatever the layout and the grouping."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_encoder_runs import LAYOUTS, build_sentences, encoder_tokenizer

from hornbook.config import MaskedLMConfig, PretrainingConfig
from hornbook.corpora.store import open_store
from hornbook.errors import DataError
from hornbook.samples.batches import evaluation_batches
from hornbook.samples.encoder_sources import store_batches
from hornbook.samples.layout import EncoderBatches
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.windows import NOT_SCORED

OBJECTIVES = {
    "pairs": PretrainingConfig(mask_probability=0.3),
    "lines": MaskedLMConfig(mask_probability=0.3, sequences="lines"),
    "joined": MaskedLMConfig(mask_probability=0.3),
    "whole words": MaskedLMConfig(mask_probability=0.3, whole_words=True, sequences="lines"),
    "few": PretrainingConfig(mask_probability=0.9, max_predictions=3),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(build_sentences(tmp_path_factory.mktemp("batches") / "corpus"))


@pytest.fixture(params=OBJECTIVES)
def objective(request):
    return OBJECTIVES[request.param]


def make(store, objective=OBJECTIVES["pairs"], layout="padded", seed=3) -> EncoderBatches:
    batches = store_batches(objective, [store], encoder_tokenizer(), sequence_length=16, seed=seed)
    return replace(batches, layout=layout)


def read_back(batch) -> list[tuple]:
    """What each sequence of a batch holds, in the order of their numbers, wherever they lie."""
    flat = {name: batch[name].flatten() for name in ("tokens", "positions", "segments", "keys")}
    scored = batch["targets"] != NOT_SCORED
    targets = dict(zip(batch["predictions"][scored].tolist(), batch["targets"][scored].tolist(), strict=True))
    labels = batch.get("pair_labels", torch.full_like(batch["firsts"], NOT_SCORED)).tolist()
    found = []
    for first, length, label in zip(batch["firsts"].tolist(), batch["lengths"].tolist(), labels, strict=True):
        own = {place - first: targets[place] for place in range(first, first + length) if place in targets}
        found.append((*(tuple(tensor[first : first + length].tolist()) for tensor in flat.values()), own, label))
    assert sum(len(own) for *_, own, _ in found) == len(targets)
    return found


def of_samples(batches, samples, size) -> list[tuple]:
    grouped = np.asarray(samples, dtype=np.int64).reshape(-1, size)
    return [sequence for batch in batches.batches(grouped) for sequence in read_back(batch)]


def test_a_sample_is_a_function_of_its_number(store, objective):
    batches = make(store, objective)
    count = 2 * batches.num_items // 12 * 12 + 12
    whole = of_samples(batches, range(count), 12)
    assert of_samples(make(store, objective), range(count), 4) == whole
    backwards = range(count - 1, -1, -1)
    assert of_samples(make(store, objective), backwards, 1) == whole[::-1]
    assert of_samples(make(store, objective, seed=4), range(count), 12) != whole


@pytest.mark.parametrize("size", [1, 5])
def test_layouts_hold_the_same_sequences(store, objective, size):
    padded, packed, unpadded = (of_samples(make(store, objective, layout), range(20), size) for layout in LAYOUTS)
    assert padded == packed == unpadded


def test_shapes_are_fixed_where_rows_are(store):
    for layout in LAYOUTS:
        batches = make(store, OBJECTIVES["pairs"], layout)
        found = batches.batches(np.arange(30, dtype=np.int64).reshape(-1, 5))
        widths = {batch["tokens"].shape[1] for batch in found}
        places = {len(batch["targets"]) for batch in found}
        assert (widths == {16}) == (layout != "unpadded")
        assert (places == {5 * batches.most_masked}) == (layout != "unpadded")


def test_masks_follow_the_rules(store, objective):
    batches, special = make(store, objective), encoder_tokenizer().require_masking()
    sequences = of_samples(batches, range(400), 8)
    shares = [len(own) / (len(tokens) - 2) for tokens, _, _, _, own, _ in sequences]
    assert max(len(own) for *_, own, _ in sequences) <= batches.most_masked
    if objective.max_predictions is None:
        assert np.mean(shares) == pytest.approx(0.3, abs=0.05)
    placed = [(tokens[place], label) for tokens, _, _, _, own, _ in sequences for place, label in own.items()]
    assert not {label for _, label in placed} & set(special.special_ids) - {encoder_tokenizer().vocab["[UNK]"]}
    hidden = np.mean([token == special.mask for token, _ in placed])
    kept = np.mean([token == label for token, label in placed])
    assert hidden == pytest.approx(0.8, abs=0.05) and kept == pytest.approx(0.1, abs=0.05)


def test_words_are_hidden_whole(store):
    names = {number: name for name, number in encoder_tokenizer().vocab.items()}
    pieces = 0
    for tokens, _, _, _, own, _ in of_samples(make(store, OBJECTIVES["whole words"]), range(200), 8):
        original = [names[own.get(place, token)] for place, token in enumerate(tokens)]
        for place in range(1, len(tokens)):
            if original[place].startswith("##"):
                pieces += 1
                assert (place in own) == (place - 1 in own)
    assert pieces > 20


def test_each_epoch_hides_other_tokens(store):
    """The lines are the same in each epoch, in another order."""
    batches = make(store, OBJECTIVES["lines"])
    epochs = []
    for epoch in range(3):
        first, masks = epoch * batches.num_items, {}
        for tokens, *_, own, _ in of_samples(batches, range(first, first + batches.num_items), 1):
            text = tuple(own.get(place, token) for place, token in enumerate(tokens))
            masks.setdefault(text, set()).add(tuple(own))
        epochs.append(masks)
    assert epochs[0].keys() == epochs[1].keys() == epochs[2].keys()
    same = [text for text in epochs[0] if epochs[0][text] & epochs[1][text] and len(text) > 6]
    assert len(same) < len(epochs[0]) / 4


def test_a_part_of_the_sequences_comes_in_each_epoch_with_other_masks(store, objective):
    whole = make(store, objective)
    part = replace(whole, max_samples=12)
    assert part.num_items == 12 < whole.num_items

    def texts(batches, first):
        found = of_samples(batches, range(first, first + 12), 4)
        return [tuple(own.get(place, token) for place, token in enumerate(tokens)) for tokens, *_, own, _ in found]

    epochs = [texts(part, 12 * epoch) for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(texts(whole, 0))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    masks = [{tuple(sorted(own)) for *_, own, _ in of_samples(part, range(first, first + 12), 4)} for first in (0, 12)]
    assert masks[0] != masks[1]
    beyond = replace(whole, max_samples=whole.num_items)
    assert of_samples(beyond, range(200, 240), 4) == of_samples(whole, range(200, 240), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_held_out_is_the_same_each_time(store, objective, layout):
    batches = make(store, objective, layout)
    numbers = np.arange(batches.num_items, dtype=np.int64)
    first = read_back(batches.batch(numbers))
    assert read_back(make(store, objective, layout).batch(numbers)) == first
    assert all(set(keys) == {0} for _, _, _, keys, *_ in first)
    trained = of_samples(make(store, objective), numbers, 1)
    assert [sequence[:3] + sequence[4:] for sequence in first] == [sequence[:3] + sequence[4:] for sequence in trained]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_past_the_end_nothing_is_scored(store, layout):
    batches = make(store, layout=layout)
    last = batches.num_items - 1
    batch = batches.batch(np.array([last, last + 1, last + 50]))
    there, *missing = read_back(batch)
    assert there[4] and there[5] in (0, 1)
    assert all(own == {} and label == NOT_SCORED for *_, own, label in missing)
    assert int(batch["tokens"].max()) < encoder_tokenizer().vocab_size
    everything = evaluation_batches(batches, micro_batch_size=7, rank=0, world_size=1)
    shared = [evaluation_batches(batches, micro_batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    scored = [sum(int((batch["pair_labels"] >= 0).sum()) for batch in some) for some in (everything, *shared)]
    assert scored[0] == sum(scored[1:]) == batches.num_items


def test_the_mean_length_is_measured(store):
    batches = make(store)
    lengths = [len(tokens) for tokens, *_ in of_samples(batches, range(batches.num_items), 1)]
    assert batches.mean_length() == pytest.approx(np.mean(lengths))
    assert replace(batches, rules=None).mean_length() == batches.mean_length()


@pytest.mark.parametrize("token", [-5, 999])
def test_a_token_that_the_tokenizer_lacks_is_refused_before_it_is_masked(store, monkeypatch, token):
    batches = make(store)
    foreign = TokenSequence(np.array([2, token, 3], dtype=np.int64), np.zeros(3, dtype=np.int64))
    monkeypatch.setattr(batches.source, "sequences", lambda samples: [foreign for _ in samples])
    with pytest.raises(DataError, match=f"the data contain token {token}, but the tokenizer has only 0 to "):
        batches.batches(np.arange(4, dtype=np.int64).reshape(2, 2))
