"""Which stores a task scores: what is held out, or what the user names, and never the training text by itself."""

from dataclasses import replace

import pytest
from tiny_tasks import tiny_input
from tiny_text import build_tiny, one_line

from hornbook.errors import UserError
from hornbook.evaluate.task_files import held_out_stores


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held-out") / "corpus"
    build_tiny(folder)
    return folder


def paths(*train, validation=None, data=None):
    """What is scored of a run that was trained on these."""
    given = tiny_input(data=data and str(data))
    of_run = replace(given.loaded.recipe.data, train=tuple(map(str, train)), validation=validation and str(validation))
    loaded = replace(given.loaded, recipe=replace(given.loaded.recipe, data=of_run))
    return [store.path for store in held_out_stores(replace(given, loaded=loaded))]


def test_what_is_held_out_or_named_is_scored(corpus):
    held_out = corpus / "validation"
    assert paths(corpus) == paths(corpus / "train", corpus) == [held_out]
    assert paths(corpus / "train", validation=held_out) == paths(corpus / "train", data=held_out) == [held_out]
    assert paths(corpus / "train", data=corpus) == [held_out]


def test_the_training_text_is_scored_only_if_it_is_named(corpus):
    bare = corpus / "train"
    for train in ((bare,), (bare, bare)):
        with pytest.raises(UserError) as caught:
            paths(*train)
        named = ", ".join(map(str, train))
        assert one_line(
            caught.value, f"nothing is held out of {named}, the run's training data: name a store by", "`data=FOLDER`"
        )
    assert paths(bare, data=bare) == [bare]


def test_a_run_without_stores_has_nothing_to_score():
    with pytest.raises(UserError) as caught:
        paths()
    assert one_line(caught.value, "the run names no validation data: say which store to score with `data=FOLDER`")
