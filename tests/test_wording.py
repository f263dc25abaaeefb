import pytest

from hornbook.wording import counted


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [(1, "file", "1 file"), (0, "file", "0 files"), (1234, "empty file", "1,234 empty files")],
)
def test_one_is_no_plural(count, noun, expected):
    assert counted(count, noun) == expected
