import json
import random
from dataclasses import asdict

import pytest
from tiny_documents import parts_of, some_words
from tiny_text import SHARED, one_line

from hornbook.corpora.building.joining import join_parts
from hornbook.errors import UserError
from hornbook.text.quality.policy import QualityOptions, build_filters

WEB = SHARED / "text" / "openwebtext-1000.jsonl"


@pytest.fixture
def evaluation(tmp_path):
    path = tmp_path / "evaluation.txt"
    path.write_text(" ".join(some_words(20, 99)))
    return str(path)


def filter_all(folder, options, texts):
    """What stays, and what went by which filter."""
    filters = build_filters(options)
    parts = parts_of(folder / "slices", texts, filters, cuts=[len(texts) // 2])
    joined = join_parts(parts, ("train",), filters, ["a.txt"], folder)
    kept = [
        row
        for part, chosen in joined.selections("train")
        for row in part.rows("train")[... if chosen is None else chosen]
    ]
    return [texts[row["offset"]] for row in kept], {
        name: count for name, count in joined.report.dropped.items() if count
    }


def test_by_default_everything_stays():
    filters = build_filters(QualityOptions())
    assert filters.names == [] and not filters.compare


def test_options_are_json():
    options = QualityOptions(languages=("en",), near_duplicates=0.8)
    read = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(json.dumps(asdict(options))).items()
    }
    assert QualityOptions(**read) == options


def test_all_of_them_in_their_order(evaluation):
    options = QualityOptions(
        min_words=2,
        keep_matching=("a",),
        drop_matching=("b", "c"),
        exact_duplicates=True,
        languages=("en",),
        near_duplicates=0.8,
        decontaminate=(evaluation,),
    )
    assert build_filters(options).names == [
        "too short",
        "without 'a'",
        "with 'b'",
        "with 'c'",
        "exact duplicates",
        "overlapping an evaluation set",
        "in other languages",
        "near duplicates",
    ]


def test_a_document_counts_under_the_first_filter_that_drops_it(tmp_path, evaluation):
    page = " ".join(some_words(300, 1))
    texts = ["short", page, page + "\n", page + " more", " ".join(some_words(20, 99)), "stamp " * 30, "other " * 30]
    options = QualityOptions(
        min_words=20, drop_matching=("^stamp",), exact_duplicates=True, near_duplicates=0.8, decontaminate=(evaluation,)
    )
    stayed, dropped = filter_all(tmp_path, options, texts)
    assert stayed == [page, "other " * 30]
    assert dropped == {
        "too short": 1,
        "with '^stamp'": 1,
        "exact duplicates": 1,
        "near duplicates": 1,
        "overlapping an evaluation set": 1,
    }


def test_evaluation_sets_are_read_when_nothing_else_is_wrong():
    for wrong in ({"languages": ("xx",)}, {"near_duplicates": 2.0}, {"keep_matching": ("(",)}, {"min_words": -1}):
        with pytest.raises(UserError) as caught:
            build_filters(QualityOptions(decontaminate=("missing.jsonl",), **wrong))
        assert one_line(caught.value) and "missing.jsonl" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not WEB.exists(), reason="needs ../shared/data/text/openwebtext-1000.jsonl")
def test_duplicates_put_into_web_pages_are_counted(tmp_path, evaluation):
    pages = [json.loads(line)["text"] for line in WEB.read_text().splitlines()[:400]]
    draws = random.Random(1)
    copies = [page.replace(" ", "  ") for page in draws.sample(pages, 30)]
    edited = [page + f"\n\nPosted on day {number}" for number, page in enumerate(draws.sample(pages, 20))]
    foreign = ["Der Kapitän stand auf der Brücke und sah nach Westen. " * 3 + f"Tag {number}." for number in range(5)]
    foreign = [" ".join(draws.sample(text.split(), len(text.split()))) for text in foreign]
    options = QualityOptions(
        exact_duplicates=True, near_duplicates=0.8, languages=("en", "pcm"), decontaminate=(evaluation,)
    )
    stayed, dropped = filter_all(tmp_path, options, [*pages, *copies, *edited, *foreign])
    assert dropped["exact duplicates"] == 30
    assert dropped["near duplicates"] == 20
    assert dropped["in other languages"] <= 6
    assert len(stayed) >= 399
