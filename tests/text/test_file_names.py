"""Suffixes before that of a compression, and patterns of names that are left out."""

from hornbook.text.file_names import content_suffix, has_suffix, is_excluded


def test_content_suffix():
    names = ["c4.JSON.gz", "a.jsonl", "b.txt.xz", "no", "x.zst", "dir.jsonl/plain"]
    assert [content_suffix(name) for name in names] == [".json", ".jsonl", ".txt", "", "", ""]


def test_a_suffix_counts_with_and_without_a_compression():
    assert [has_suffix(name, [".json", ".GZ"]) for name in ("c4.JSON", "c4.json.xz", "a.gz", "json")] == [True] * 3 + [
        False
    ]
    assert has_suffix("anything", [])


def test_a_pattern_matches_any_part_of_a_path():
    assert is_excluded("texts/.git/a.txt", [".*"]) and not is_excluded("texts/git/a.txt", [".*", "*.md"])
