"""What an object has in a field: a text, null there or on the way, something else, or nothing."""

import pytest
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.text.readers.jsonl import text_in, text_or_null


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"a": {"b": "deep"}}, "deep"),
        ({"a.b": "flat", "a": {"b": "deep"}}, "flat"),
        ({"a.b": None, "a": {"b": "deep"}}, None),
        ({"a": {"b": None}}, None),
        ({"a": None}, None),
    ],
)
def test_a_text_in_a_field_of_a_field(record, found):
    assert text_or_null(record, "a.b", "x, line 1") == found
    if found is None:
        with pytest.raises(DataError) as caught:
            text_in(record, "a.b", "x, line 1")
        assert one_line(caught.value, "x, line 1: the field 'a.b' holds null; expected a string")
    else:
        assert text_in(record, "a.b", "x, line 1") == found


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "no field 'a.b' (fields: none); look"),
        ({"a": {"c": 1}}, "no field 'a.b' (fields: 'a'); look"),
        ({"a": "text"}, "no field 'a.b' (fields: 'a'); look"),
        ({"a": {"b": [1]}}, "the field 'a.b' holds an array; expected a string"),
        ({"a.b": False}, "the field 'a.b' holds a boolean; expected a string"),
    ],
)
def test_a_field_without_a_text(record, message):
    for read in (text_in, text_or_null):
        with pytest.raises(DataError) as caught:
            read(record, "a.b", "x, line 1", "look")
        assert str(caught.value) == f"x, line 1: {message}"
