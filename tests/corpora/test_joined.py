import shutil
from dataclasses import replace

import numpy as np
import pytest
from tiny_text import TEXTS, build_tiny, one_line, tiny_tokenizer

from hornbook.corpora.joined import JoinedStores, by_name, join
from hornbook.corpora.store import open_held_out, open_store, refuse_other_tokenizers
from hornbook.errors import DataError, UserError
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows
from hornbook.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two corpora of the same texts, with end-of-text tokens that are stored and inserted."""
    folder = tmp_path_factory.mktemp("joined")
    build_tiny(folder / "stored")
    build_tiny(folder / "inserted", end_of_text="inserted", validation=0.5)
    return [str(folder / "stored"), str(folder / "inserted")]


def scored(source, length):
    """Every target of an evaluation, in order."""
    windows = EvaluationWindows(source, length, score_end_of_text=True)
    targets = np.concatenate([windows.window(index).targets for index in range(windows.num_items)])
    return targets[targets != NOT_SCORED].tolist()


def test_the_documents_of_both_with_their_ends(corpora):
    first, second = open_held_out(corpora)
    joined = join([first, second])
    end = tiny_tokenizer().end_of_text_id
    expected = [first.document(number).tolist() for number in range(first.num_documents)]
    expected += [[*second.document(number).tolist(), end] for number in range(second.num_documents)]
    assert [joined.document(number).tolist() for number in range(joined.num_documents)] == expected
    assert joined.document_lengths.tolist() == [len(document) for document in expected]
    assert all(document[-1] == end for document in expected)
    assert (joined.end_of_text, joined.end_of_text_id) == ("stored", end)
    assert joined.num_bytes == first.num_bytes + second.num_bytes
    assert joined.tokenizer().digest == tiny_tokenizer().digest


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_evaluation_goes_through_one_and_then_the_other(corpora, length):
    stores = open_held_out(corpora)
    assert scored(join(stores), length) == scored(stores[0], length) + scored(stores[1], length)


def test_parts_of_documents(corpora):
    joined = join(open_held_out(corpora))
    last = joined.num_documents - 1
    whole = joined.document(last).tolist()
    assert joined.read(last, 2, 3).tolist() == whole[2:5]
    assert joined.read(last, len(whole) - 1, 1).tolist() == whole[-1:]
    assert joined.read(last, len(whole) - 3, 3).tolist() == whole[-3:]


def test_a_single_store_stays_as_it_is(corpora):
    (store,) = stores = open_held_out(corpora[:1])
    assert join(stores) is store
    assert store.fingerprint == open_store(corpora[0], "validation").fingerprint
    assert join([]) is None


def test_joined_texts_are_distinguished_from_their_parts_and_other_orders(corpora):
    first, second = open_held_out(corpora)
    prints = {JoinedStores(stores).fingerprint for stores in ([first, second], [second, first], [first, first])}
    assert len(prints | {first.fingerprint}) == 4


def test_without_end_of_text_documents_stay_as_they_are(corpora):
    stores = [replace(store, end_of_text="absent", end_of_text_id=None) for store in open_held_out(corpora)]
    joined = join(stores)
    assert (joined.end_of_text, joined.end_of_text_id) == ("absent", None)
    last = stores[1].document(stores[1].num_documents - 1).tolist()
    assert joined.document(joined.num_documents - 1).tolist() == last


def test_documents_of_a_store_without_end_of_text_get_it_beside_others(corpora):
    stores = open_held_out(corpora)
    for order in (stores, stores[::-1]):
        without = [replace(order[0], end_of_text="absent", end_of_text_id=None), order[1]]
        inserted = [replace(order[0], end_of_text="inserted"), order[1]]
        assert join(without).end_of_text == "stored"
        assert scored(join(without), 7) == scored(join(inserted), 7)


def test_only_corpora_have_held_out_documents(corpora, tmp_path):
    build_tiny(tmp_path / "whole", validation=0.0)
    assert open_held_out([str(tmp_path / "whole"), f"{corpora[0]}/train"]) == []
    assert len(open_held_out([str(tmp_path / "whole"), *corpora])) == 2


def test_other_tokenizers_are_refused(corpora, tmp_path, monkeypatch):
    other = Tokenizer.train((*TEXTS[::-1], "more of them"), 310)
    monkeypatch.setattr("tiny_text.tiny_tokenizer", lambda: other)
    build_tiny(tmp_path / "other")
    with pytest.raises(UserError) as caught:
        open_held_out([*corpora, str(tmp_path / "other")])
    assert one_line(caught.value, "stored/validation", "other/validation", other.digest[:12], "with one tokenizer")
    refuse_other_tokenizers([open_store(path) for path in corpora])


@pytest.mark.parametrize("part", ["", "manifest.json"])
def test_a_held_out_split_that_has_vanished_is_refused(corpora, tmp_path, part):
    corpus = shutil.copytree(corpora[0], tmp_path / "corpus")
    gone = corpus / "validation" / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    with pytest.raises(DataError) as caught:
        open_held_out([corpora[1], str(corpus)])
    assert one_line(caught.value, str(corpus / "validation"), "was built with a validation split")
    assert open_held_out([str(corpus / "train")]) == []


def test_stores_are_named_by_their_corpora(tmp_path):
    build_tiny(tmp_path / "a" / "wiki")
    build_tiny(tmp_path / "b" / "books")
    build_tiny(tmp_path / "b" / "wiki")
    wiki, books, other = (open_store(tmp_path / name, "validation") for name in ("a/wiki", "b/books", "b/wiki"))
    assert by_name([wiki, books]) == {"wiki": wiki, "books": books}
    assert by_name([wiki, other]) == {str(tmp_path / "a" / "wiki"): wiki, str(tmp_path / "b" / "wiki"): other}
