from hornbook.text.quality.policy import KINDS, find_suspicions

LISTS = {"list_items": 100, "empty_list_items": 51}
FINE = {"documents": 100, "dropped": {"too short": 10}, "tokens": 2500, "num_bytes": 10_000}


def kinds(totals, **bound):
    return list(find_suspicions(**totals, **bound))


def totals(**changes):
    return {"documents": 100, "dropped": {}, "tokens": 2500, "num_bytes": 10_000} | changes


def test_a_corpus_that_looks_right():
    assert kinds(FINE) == []


def test_everything_at_once_is_named_with_its_remedy():
    files = {"empty_files": ["a.txt", "-"], "unused_files": ["b.txt"]}
    dropped = {"too short": 5, "exact duplicates": 3, "near duplicates": 0}
    found = find_suspicions(**files, documents=10, dropped=dropped, tokens=1500, num_bytes=1000, **LISTS)
    assert list(found) == list(KINDS)
    for (kind, message), *parts in zip(
        found.items(),
        (
            "2 files (a.txt, standard input)",
            "all documents of b.txt",
            "8 of 10",
            "1,500 tokens are 1.500 per byte",
            "51 of 100 list",
        ),
        ("`format`", "filters", "(5 too short, 3 exact duplicates), more than 50%", "0.05 to 1.05", "`lists='drop'`"),
        strict=True,
    ):
        assert "\n" not in message and all(part in message for part in parts)
        assert message.endswith(f"(`allow='{kind}'`)")


def test_many_files_are_one_line():
    found = find_suspicions(empty_files=[f"{number}.txt" for number in range(9000)], **FINE)
    assert found["empty-file"].startswith("9,000 files (0.txt, 1.txt, 2.txt, ...) gave no documents")


def test_the_bound_of_empty_list_items():
    assert kinds(totals(list_items=100, empty_list_items=40)) == []
    assert kinds(totals(list_items=100, empty_list_items=41)) == ["empty-list-items"]
    assert kinds(totals(list_items=19, empty_list_items=19)) == [], "too few to tell"


def test_the_bound_of_dropped_documents():
    assert kinds(totals(dropped={"too short": 50})) == []
    assert kinds(totals(dropped={"too short": 51})) == ["dropped"]
    assert kinds(totals(dropped={"too short": 51}), max_dropped=0.51) == []
    assert kinds(totals(dropped={"too short": 1}), max_dropped=0) == ["dropped"]
    assert kinds(totals(documents=0, tokens=0, num_bytes=0), max_dropped=0) == []


def test_the_bounds_of_tokens_per_byte():
    assert kinds(totals(tokens=10_600)) == []  # a token a byte, and the ends of a hundred documents
    assert kinds(totals(tokens=10_601)) == ["tokens-per-byte"]
    assert kinds(totals(tokens=500)) == []
    assert kinds(totals(tokens=499)) == ["tokens-per-byte"]
