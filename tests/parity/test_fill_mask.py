"""Gaps and pseudo-perplexities by hornbook and by transformers, of the same exported model and tokenizer."""

import numpy as np
import pytest
import torch
from tiny_encoder_runs import encoder_contents, stories
from tiny_tasks import values
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoTokenizer, FillMaskPipeline
from transformers.utils import logging

from hornbook.evaluate.tasks import TaskInput, run_task
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.restore import load_model
from hornbook.generate.fill_mask import GapFiller

logging.disable_progress_bar()

PROMPTS = (
    "The {} sat on the mat.",
    "{}",
    "the river {}{} near  the old {} .",
    "a dog, {}\nand {} walminsha: é!",
)
"""One gap and several, at either end, beside each other; words of several tokens, and characters that are unknown."""


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers") / request.param
    write_folder(folder, encoder_contents(request.param))
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, torch.device("cpu"), compute="fp32")


@pytest.fixture(scope="module")
def peer(folder):
    return AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_gaps_are_filled_as_by_transformers(loaded, peer, prompt):
    model, tokenizer = peer
    text = prompt.replace("{}", tokenizer.mask_token)
    found = FillMaskPipeline(model=model, tokenizer=tokenizer, top_k=20)(text)
    theirs = found if isinstance(found[0], list) else [found]
    filler = GapFiller(loaded.model, loaded.require_tokenizer(), top_k=20)
    (filled,) = filler.fill([filler.request(text)])
    assert len(filled.gaps) == len(theirs) == prompt.count("{}")
    for ours, expected in zip(filled.gaps, theirs, strict=True):
        assert [guess.id for guess in ours] == [guess["token"] for guess in expected]
        assert [guess.token.strip() for guess in ours] == [guess["token_str"].strip() for guess in expected]
        probabilities = [guess["score"] for guess in expected]
        assert [guess.probability for guess in ours] == pytest.approx(probabilities, rel=1e-5, abs=1e-7)


def test_a_pseudo_perplexity_is_that_of_transformers(loaded, peer, tmp_path):
    model, tokenizer = peer
    text = stories()[0].replace("\n", " ")[:120]
    (tmp_path / "text.txt").write_text(text)
    ids, nats = tokenizer(text, return_tensors="pt")["input_ids"], []
    for place in range(1, ids.shape[1] - 1):
        hidden = ids.clone()
        hidden[0, place] = tokenizer.mask_token_id
        with torch.no_grad():
            nats.append(float(functional.cross_entropy(model(hidden).logits[0, place], ids[0, place])))
    rows = run_task("pseudo_perplexity", TaskInput(loaded=loaded, data=str(tmp_path / "text.txt")))
    assert f"{len(nats)} tokens" in rows[1].convention
    assert values(rows)["nats_per_token"] == pytest.approx(np.mean(nats), rel=1e-5)
    assert values(rows)["pseudo_perplexity"] == pytest.approx(np.exp(np.mean(nats)), rel=1e-5)
