"""Encoders on held-out text against the plainest computation: all logits, in float64, a sequence at a time."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import hidden_states
from tiny_encoder_runs import LAYOUTS, build_sentences, encoder_tokenizer, stories
from tiny_encoders import tiny_encoder, tiny_encoder_config
from tiny_tasks import tiny_input, values
from tiny_text import build_tiny, one_line
from torch.nn import functional

from hornbook.config import ClassificationConfig, DataConfig, MaskedLMConfig, PretrainingConfig, Recipe
from hornbook.corpora.building.builder import BuildOptions, build_corpus
from hornbook.corpora.store import open_store
from hornbook.errors import CheckpointError, DataError, UserError
from hornbook.evaluate import run_tasks
from hornbook.evaluate.tasks import TaskInput, check_tasks, default_task, run_task
from hornbook.exchange.restore import LoadedModel
from hornbook.interop.instances.instance_builder import InstanceOptions, build_instances
from hornbook.interop.instances.static_instances import StaticInstances
from hornbook.parallel.ranks import Ranks
from hornbook.samples.encoder_sources import HELD_OUT_SEED, sequence_source, store_batches
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import framed
from hornbook.wording import counted

LENGTH = 24
NAMES = {"loss", "accuracy", "perplexity"}
PAIRS = {"next_sentence_loss", "next_sentence_accuracy"}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    return {kind: build_sentences(folder / kind, sequences=kind) for kind in ("lines", "documents")}


@pytest.fixture(scope="module")
def model():
    """Of more tokens than the tokenizer has; dropout, which an evaluation has to switch off."""
    return tiny_encoder(vocab_size=encoder_tokenizer().vocab_size + 3, residual_dropout=0.5)


def given(model, data, *, objective=None, tokenizer=None, layout="auto", **options) -> TaskInput:
    recipe = Recipe(
        model=tiny_encoder_config(vocab_size=model.vocab_size),
        objective=objective or PretrainingConfig(),
        data=DataConfig(layout=layout),
    )
    loaded = LoadedModel(
        model=model, recipe=recipe, tokenizer=tokenizer or encoder_tokenizer(), step=1, path=Path("somewhere")
    )
    return TaskInput(loaded=loaded, data=str(data), **options)


@torch.no_grad()
def logits_of(model, sequence) -> tuple[torch.Tensor, torch.Tensor]:
    """float64: of all tokens of one sequence, and of its pair."""
    masked = sequence if sequence.positions is not None else sequence.unscored()
    batch = lay_out([masked], width=LENGTH, layout="unpadded", pad_id=0)
    model.eval()
    x_BTD = hidden_states(model, batch)
    pair = model.head.classifier(model.head.pooled(x_BTD, batch["firsts"]))
    return model.head.logits(x_BTD)[0].double(), pair[0].double()


def plain_masked(model, corpus, objective) -> dict[str, float]:
    batches = store_batches(
        objective,
        [open_store(corpus, "validation")],
        encoder_tokenizer(),
        sequence_length=LENGTH,
        seed=HELD_OUT_SEED,
    )
    return plain(model, batches.sequences(np.arange(batches.num_items)))


def plain(model, sequences) -> dict[str, float]:
    """What masked_lm says of masked sequences."""
    nats, hits, pair_nats, pair_hits = [], [], [], []
    for sequence in sequences:
        logits, pair = logits_of(model, sequence)
        labels = torch.from_numpy(sequence.labels)
        chosen = logits[torch.from_numpy(sequence.positions)]
        nats += functional.cross_entropy(chosen, labels, reduction="none").tolist()
        hits += (chosen.argmax(1) == labels).tolist()
        if sequence.pair_label >= 0:
            pair_nats.append(float(functional.cross_entropy(pair, torch.tensor(sequence.pair_label))))
            pair_hits.append(int(pair.argmax()) == sequence.pair_label)
    found = {"loss": np.mean(nats), "accuracy": np.mean(hits), "perplexity": math.exp(np.mean(nats))}
    if pair_nats:
        found |= {"next_sentence_loss": np.mean(pair_nats), "next_sentence_accuracy": np.mean(pair_hits)}
    return found


@pytest.mark.parametrize(
    ("kind", "objective"),
    [
        ("lines", PretrainingConfig(mask_probability=0.3)),
        ("lines", MaskedLMConfig(mask_probability=0.3, sequences="lines", whole_words=True)),
        ("documents", MaskedLMConfig()),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_lm_equals_the_plain_computation(model, corpora, kind, objective, layout):
    asked = given(model, corpora[kind], objective=objective, layout=layout, micro_batch_size=5)
    found = values(run_task("masked_lm", asked))
    assert found == pytest.approx(plain_masked(model, corpora[kind], objective), rel=1e-5)
    assert found.keys() == (NAMES | PAIRS if isinstance(objective, PretrainingConfig) else NAMES)


def test_the_convention_says_how_the_masks_were_drawn(model, corpora):
    rows = {row.metric: row.convention for row in run_task("masked_lm", given(model, corpora["lines"]))}
    for part in ("probability 0.15", "80 % masked, 10 % replaced, 10 % kept", "drawn by seed 0", "pairs of up to 24"):
        assert part in rows["loss"]
    tokens = int(rows["loss"].split("over ")[1].split(" tokens")[0])
    source = store_batches(
        PretrainingConfig(), [open_store(corpora["lines"], "validation")], encoder_tokenizer(), sequence_length=LENGTH,
        seed=HELD_OUT_SEED,
    )  # fmt: skip
    assert tokens == sum(len(one.labels) for one in source.sequences(np.arange(source.num_items)))


def pairs_of(model, corpus, **options) -> str:
    (row,) = (
        row for row in run_task("masked_lm", given(model, corpus, **options)) if row.metric == "next_sentence_loss"
    )
    return row.convention


def test_the_convention_counts_the_pairs_of_two_documents(model, corpora, tmp_path):
    source = store_batches(
        PretrainingConfig(), [open_store(corpora["lines"], "validation")], encoder_tokenizer(), sequence_length=LENGTH,
        seed=HELD_OUT_SEED,
    )  # fmt: skip
    labels = np.array([one.pair_label for one in source.sequences(np.arange(source.num_items))])
    assert 0 < labels.mean() < 1
    shown = f"{len(labels)} pairs, {100 * labels.mean():.0f} % with another document's text"
    assert shown in pairs_of(model, corpora["lines"])
    half = len(labels) // 2
    some = f"{half} pairs, {100 * labels[np.arange(half) * len(labels) // half].mean():.0f} % with"
    assert some in pairs_of(model, corpora["lines"], max_sequences=half)


def test_documents_of_one_sentence_are_always_followed_by_another(model, tmp_path):
    """Nothing follows in a document of one sentence."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"the cat sat {n}."}) + "\n" for n in range(5)))
    options = BuildOptions(sequences="lines")
    store = tmp_path / "store"
    build_corpus([tmp_path / "texts.jsonl"], encoder_tokenizer(), store, options, lambda _: None, lambda _: None)
    assert "5 pairs, 100 % with another document's text" in pairs_of(model, store / "train")


def test_the_seed_of_the_training_has_no_part_in_it(model, corpora):
    asked = given(model, corpora["lines"])
    training = replace(asked.loaded.recipe.training, seed=99)
    other = replace(asked, loaded=replace(asked.loaded, recipe=replace(asked.loaded.recipe, training=training)))
    assert run_task("masked_lm", asked) == run_task("masked_lm", other)


def test_a_store_without_sentences_has_no_pairs(model, corpora):
    rows = run_task("masked_lm", given(model, corpora["documents"], objective=PretrainingConfig(mask_probability=0.3)))
    assert values(rows) == pytest.approx(
        plain_masked(model, corpora["documents"], MaskedLMConfig(mask_probability=0.3)), rel=1e-5
    )
    assert "probability 0.3" in rows[0].convention and "concatenated documents, cut to 24 tokens" in rows[0].convention


def test_instances_keep_the_masks_that_they_have(model, corpora, tmp_path):
    path, options = tmp_path / "held-out.tfrecord", InstanceOptions(sequence_length=LENGTH, duplicates=2)
    build_instances(open_store(corpora["lines"], "validation"), path, options)
    rows = run_task("masked_lm", given(model, path, objective=PretrainingConfig(mask_probability=0.4)))
    instances = StaticInstances(path, seed=HELD_OUT_SEED)
    assert values(rows) == pytest.approx(
        plain(model, instances.sequences(np.arange(instances.num_sequences))), rel=1e-5
    )
    assert "masked when they were made; instances of up to 24 tokens" in rows[0].convention
    with pytest.raises(UserError) as caught:
        run_task("masked_lm", given(model, path, window=20))
    assert one_line(caught.value, "has instances of 24 tokens, but the window is 20: pass `window=24`")


def test_a_part_of_the_sequences_and_shorter_ones(model, corpora):
    asked = given(model, corpora["lines"], max_sequences=3, window=12)
    convention = run_task("masked_lm", asked)[0].convention
    assert "of 3 sequences" in convention and "pairs of up to 12 tokens" in convention
    assert run_task("masked_lm", replace(asked, max_sequences=10**6)) == run_task(
        "masked_lm", replace(asked, max_sequences=None)
    )


def plain_pseudo(model, sequences) -> tuple[float, int]:
    """Mean nats and number of tokens, each hidden in a pass of its own (Salazar et al. 2020)."""
    special, nats = encoder_tokenizer().require_masking(), []
    for sequence in sequences:
        for place in range(1, len(sequence.tokens) - 1):
            tokens = sequence.tokens.copy()
            tokens[place] = special.mask
            logits, _ = logits_of(model, sequence._replace(tokens=tokens))
            nats.append(float(functional.cross_entropy(logits[place], torch.tensor(sequence.tokens[place]))))
    return float(np.mean(nats)), len(nats)


def held_out_documents(corpus, length=LENGTH):
    store, special = open_store(corpus, "validation"), encoder_tokenizer().require_masking()
    kind = MaskedLMConfig(sequences="documents")
    source = sequence_source(kind, [store], special, sequence_length=length, seed=HELD_OUT_SEED)
    return source.sequences(np.arange(source.num_sequences))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["lines", "documents"])
def test_pseudo_perplexity_equals_the_plain_computation(model, corpora, kind, layout):
    rows = run_task("pseudo_perplexity", given(model, corpora[kind], layout=layout, micro_batch_size=7))
    nats, count = plain_pseudo(model, held_out_documents(corpora[kind]))
    assert values(rows) == pytest.approx({"nats_per_token": nats, "pseudo_perplexity": math.exp(nats)}, rel=1e-5)
    assert f"{count:,} tokens, each masked by itself" in rows[1].convention


def test_pseudo_perplexity_of_some_sequences(model, corpora):
    whole = held_out_documents(corpora["lines"])
    rows = run_task("pseudo_perplexity", given(model, corpora["lines"], max_sequences=2))
    nats, count = plain_pseudo(model, [whole[0], whole[len(whole) // 2]])
    assert values(rows)["nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert f"{count} tokens" in rows[1].convention and f"2 of {len(whole)} sequences" in rows[1].convention


def test_pseudo_perplexity_of_a_file_of_text(model, tmp_path):
    """A file is a document, or a document a line; long ones are cut, empty ones left out."""
    texts = [stories()[0].replace("\n", " "), "The cat sat.", ""]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "plain.txt").write_text(texts[1])
    room, special, ids = LENGTH - 2, encoder_tokenizer().require_masking(), list(map(encoder_tokenizer().encode, texts))
    pieces = [framed(one[start : start + room], special) for one in ids for start in range(0, len(one), room)]
    for name, sequences in (("texts.jsonl", pieces), ("plain.txt", pieces[-1:])):
        rows = run_task("pseudo_perplexity", given(model, tmp_path / name))
        nats, count = plain_pseudo(model, sequences)
        assert values(rows)["nats_per_token"] == pytest.approx(nats, rel=1e-5)
        assert f"{count:,} tokens" in rows[1].convention
        assert f"{len(sequences)} of {counted(len(sequences), 'sequence')}; documents" in rows[1].convention


class Share(Ranks):
    """One of several ranks that keeps its own sums."""

    def sum_floats(self, values):
        return list(values)

    def sum_integers(self, values):
        return list(values)


def test_ranks_share_the_copies(model, corpora):
    def measure(ranks):
        rows = run_task("pseudo_perplexity", given(model, corpora["lines"], ranks=ranks, micro_batch_size=2))
        return values(rows)["nats_per_token"], int(re.search(r"over ([\d,]+) tokens", rows[1].convention)[1])

    (whole, count), parts = measure(Ranks()), [measure(Share(rank, 3)) for rank in range(3)]
    assert sum(own for _, own in parts) == count
    assert sum(nats * own for nats, own in parts) == pytest.approx(whole * count, rel=1e-5)


@pytest.mark.parametrize("task", ["bits_per_byte", "lambada", "wikitext103", "wikitext2"])
def test_tasks_of_decoders_are_refused_before_anything_is_read(model, task):
    with pytest.raises(UserError) as caught:
        run_tasks(["masked_lm", task], given(model, "no/such/folder"), {})
    assert one_line(
        caught.value, f"the task '{task}' is for decoders, but somewhere is an encoder: use one of ", "masked_lm"
    )


@pytest.mark.parametrize("task", ["masked_lm", "pseudo_perplexity"])
def test_tasks_of_encoders_are_refused_by_a_decoder(task):
    with pytest.raises(UserError) as caught:
        check_tasks(["bits_per_byte", task], tiny_input(), {})
    assert one_line(caught.value, f"the task '{task}' is for encoders", " is a decoder: use one of bits_per_byte")


def test_the_kind_of_model_decides_what_is_measured(model):
    assert default_task(given(model, "").loaded) == "masked_lm"
    assert default_task(tiny_input().loaded) == "bits_per_byte"
    assert default_task(given(model, "", objective=ClassificationConfig()).loaded) == "classification"


@pytest.mark.parametrize("task", ["masked_lm", "pseudo_perplexity"])
def test_mistakes_are_one_line(model, corpora, tmp_path, task):
    def refusal(kind, *parts, data=None, **options):
        with pytest.raises(kind) as caught:
            run_tasks([task], given(model, "", **options), {task: str(data)} if data else {})
        assert one_line(caught.value, *parts), caught.value

    build_tiny(tmp_path / "other")
    (tmp_path / "empty.txt").write_text("\n")
    refusal(UserError, "the run names no validation data", "`data=FOLDER`")
    refusal(UserError, "the store was made with tokenizer", data=tmp_path / "other")
    refusal(DataError, "no/such", "no such token store", data="no/such")
    refusal(UserError, "a window of 25 tokens is longer than the model's 24", data=corpora["lines"], window=25)
    if task == "pseudo_perplexity":
        refusal(DataError, "empty.txt: the file has no text", data=tmp_path / "empty.txt")
    else:
        classifier = ClassificationConfig()
        refusal(UserError, 'was last trained with "classification"', data=corpora["lines"], objective=classifier)
    small = tiny_encoder(vocab_size=50)
    with pytest.raises(CheckpointError) as caught:
        run_task(task, given(small, corpora["lines"]))
    assert one_line(caught.value, "a tokenizer of 100 tokens, its model 50")
