import pytest

from hornbook.wording import counted, counted_kind, first_few


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [(1, "file", "1 file"), (0, "file", "0 files"), (1234, "empty file", "1,234 empty files")],
)
def test_one_is_no_plural(count, noun, expected):
    assert counted(count, noun) == expected


def test_of_many_the_first_four_are_named():
    assert first_few(list("abcd")) == list("abcd")
    assert first_few(list("abcdef")) == [*"abcd", "so are 2 more"]


@pytest.mark.parametrize("kind", ["exact duplicates", "near duplicates", "redirects", "documents", "instances"])
def test_kinds_of_reports_are_in_the_plural(kind):
    assert counted_kind(1234, kind) == f"1,234 {kind}"
    assert counted_kind(1, kind) == f"1 {kind.removesuffix('s')}"


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        ("pages of other namespaces", "page of another namespace"),
        ("pages that are not wikitext", "page that is not wikitext"),
        ("in other languages", "in other languages"),
        ("with 's'", "with 's'"),
    ],
)
def test_one_of_a_kind(kind, one):
    assert (counted_kind(0, kind), counted_kind(1, kind)) == (f"0 {kind}", f"1 {one}")
