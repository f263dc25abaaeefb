"""What an object has in a field: a text, null there or on the way, something else, or nothing."""

import pytest
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.text.readers import records
from hornbook.text.readers.records import begins_with_object, text_in, text_or_null


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{', True),
        (b'\xef\xbb\xbf{"a": 1}', True),
        (b"{}", True),
        (b'{"a": 1\n}', False),
        (b"{ a: 1 }", False),
        (b'[{"a": 1}]', False),
        (b"", False),
        (b"{" * 99_999, False),
    ],
)
def test_a_first_line_that_is_an_object(data, expected):
    assert begins_with_object(data) is expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"type":"FeatureCollection","features":[', True),
        (b'\xef\xbb\xbf{ "say \\"hi\\"\\\\" : [', True),
        (b'{"a", "b"} is a set; ', False),
        (b"{{Infobox}} ", False),
        (b'{"', False),
    ],
)
def test_of_a_long_first_line_the_first_key_decides(data, expected, monkeypatch):
    monkeypatch.setattr(records.json, "loads", lambda line: pytest.fail(f"{len(line)} bytes are parsed"))
    assert begins_with_object(data + b"1, " * 400_000) is expected
