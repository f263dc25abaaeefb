import datetime
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import pytest

from hornbook.config import recipe
from hornbook.config.build import convert_leaf
from hornbook.config.options import (
    Bounds,
    Mistake,
    Spec,
    absolute,
    convert,
    describe,
    option,
    parse_text,
    show,
    split_entry,
)
from hornbook.config.recipe import SECTIONS, specs
from hornbook.config.recipe_files import Leaf
from hornbook.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Every:
    count: int = option(1, help="a count", minimum=1)
    rate: float | None = option(None, help="a rate", above=0, maximum=1)
    kind: Literal["a", "b"] = option("a", help="a kind")
    plain: str = "no help"
    names: tuple[str, ...] = option((), help="some names")
    shares: tuple[float, ...] = option((), help="some numbers", above=0)


def test_a_field_becomes_a_spec():
    described = describe(Every)
    assert list(described) == ["count", "rate", "kind", "plain", "names", "shares"]
    assert (described["rate"].type, described["rate"].optional) == (float, True)
    assert described["kind"].choices == ("a", "b")
    assert described["plain"].help == ""
    assert (described["names"].type, described["names"].optional) == (tuple, False)
    assert (described["names"].entry, described["shares"].entry, described["rate"].type) == (str, float, float)
    assert Every() == Every(count=1, rate=None, kind="a")


def test_a_subclass_may_change_a_default_alone():
    @dataclass(frozen=True, kw_only=True)
    class More(Every):
        count: int = 3

    assert describe(More)["count"] == replace(describe(Every)["count"], default=3)
    assert describe(More)["count"].bounds == Bounds(minimum=1)
    assert list(describe(More)) == list(describe(Every))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("count", "an integer"),
        ("rate", 'a number or "none"'),
        ("kind", 'one of "a", "b"'),
        ("plain", "a string"),
        ("names", "an array of strings"),
        ("shares", "an array of numbers"),
    ],
)
def test_expected_in_words(name, expected):
    assert describe(Every)[name].expected == expected


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        (Bounds(above=0), 1e-9, 0, "above 0"),
        (Bounds(minimum=0, below=1), 0, 1, "at least 0 and below 1"),
        (Bounds(maximum=2), 2, 3, "at most 2"),
        (Bounds(minimum=5), 5, 4, "at least 5"),
    ],
)
def test_bounds(bounds, inside, outside, words):
    assert not bounds.broken_by(inside)
    assert bounds.broken_by(outside)
    assert str(bounds) == words


def test_types_that_no_recipe_can_hold_are_refused():
    @dataclass(frozen=True)
    class Lists:
        sizes: list[int] | None = None

    @dataclass(frozen=True)
    class Pairs:
        sizes: tuple[str, str] = ("a", "b")

    for section in (Lists, Pairs):
        with pytest.raises(UserError, match=rf"{section.__name__}.sizes: type .* is not supported"):
            describe(section)


def test_an_option_without_default_is_refused():
    @dataclass(frozen=True)
    class Bare:
        size: int

    with pytest.raises(UserError, match=r"Bare.size: has no default"):
        describe(Bare)


def test_every_option_of_the_package_has_help():
    found = [
        (section, name, spec) for section in SECTIONS for name, owners in specs(section).items() for _, spec in owners
    ]
    assert len(found) > 40
    assert [f"{section}.{name}" for section, name, spec in found if not spec.help] == []


def test_defaults_are_inside_their_bounds():
    classes = [cls for cls in vars(recipe).values() if isinstance(cls, type) and cls.__name__.endswith("Config")]
    assert len(classes) >= 12
    for cls in classes:
        for name, spec in describe(cls).items():
            number = isinstance(spec.default, int | float)
            assert not number or not spec.bounds.broken_by(spec.default), f"{cls.__name__}.{name}"
        assert {field.name for field in fields(cls)} == set(describe(cls))


def spec(kind, *, optional=False, choices=(), path=False, entry=str, **bounds):
    return Spec(type=kind, optional=optional, choices=choices, bounds=Bounds(**bounds), path=path, entry=entry)


NUMBERS = spec(tuple, entry=float, above=0)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("100_000", int, 100_000),
        ("1e5", int, 100_000),
        ("-3", int, -3),
        ("3", float, 3.0),
        ("3e-4", float, 3e-4),
        ("1_000.5", float, 1000.5),
        ("100000000000000000000", float, 1e20),
        ("True", bool, True),
        ("false", bool, False),
        ("a b", str, "a b"),
        ("5", str, "5"),
        ("a,b", tuple, ("a", "b")),
        ("a", tuple, ("a",)),
        ("none", tuple, ()),
    ],
)
def test_text_of_the_command_line(text, kind, value):
    converted = convert(parse_text(text, spec(kind)), spec(kind))
    assert converted == value
    assert type(converted) is kind


@pytest.mark.parametrize("text", ["none", "None", "NONE"])
def test_none_unsets_what_is_optional(text):
    assert convert(parse_text(text, spec(int, optional=True)), spec(int, optional=True)) is None


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("0.5", int, "expected an integer, got a float"),
        ("many", int, "expected an integer, got a string"),
        ("none", int, "expected an integer, got a string"),
        ("1e999", int, "expected a finite number"),
        ("nan", float, "expected a finite number"),
        ("-inf", float, "expected a finite number"),
        ("1e30", int, "expected an integer of at most 64 bits"),
        pytest.param("9" * 5000, int, "expected a finite number", id="5000 digits"),
        ("yes", bool, "expected true or false, got a string"),
        ("", str, "must not be empty"),
        ("a,,b", tuple, "must not be empty"),
        (None, tuple, "expected an array of strings after the option"),
        (None, float, "expected a number after the option"),
    ],
)
def test_text_that_is_wrong(text, kind, message):
    with pytest.raises(Mistake) as caught:
        convert(parse_text(text, spec(kind)), spec(kind))
    assert str(caught.value) == message


def test_a_boolean_option_alone_means_true():
    assert parse_text(None, spec(bool)) is True


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [(5, float, 5.0), (5.0, int, 5), ("none", float, None), (None, str, None), (True, bool, True)],
)
def test_values_of_a_file(value, kind, expected):
    converted = convert(value, spec(kind, optional=True))
    assert converted == expected
    assert type(converted) is (type(None) if expected is None else kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("5", int),
        ("5.0", float),
        (True, int),
        (False, float),
        (1, bool),
        ("true", bool),
        (3, str),
        ([], str),
        ({}, int),
        (3, tuple),
        (["a", 1], tuple),
    ],
)
def test_a_file_is_not_guessed_at(value, kind):
    with pytest.raises(Mistake, match=r"expected .*, got "):
        convert(value, spec(kind))


@pytest.mark.parametrize(
    ("value", "entries"), [(["a", "b"], ("a", "b")), ("a,b", ("a,b",)), ([], ()), ("none", ()), (None, ())]
)
def test_a_list_of_one_needs_no_brackets(value, entries):
    assert convert(value, spec(tuple)) == entries


@pytest.mark.parametrize(
    ("value", "entries"), [([0.7, 3], (0.7, 3.0)), (1, (1.0,)), ("0.7,3e-1", (0.7, 0.3)), ("2", (2.0,)), ("none", ())]
)
def test_a_list_of_numbers(value, entries):
    converted = convert(parse_text(value, NUMBERS) if isinstance(value, str) else value, NUMBERS)
    assert converted == entries
    assert all(type(entry) is float for entry in converted)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.7, "a"], "expected an array of numbers, got one with a string in it"),
        ([0.7, True], "expected an array of numbers, got one with a boolean in it"),
        ([[0.7]], "expected an array of numbers, got one with an array in it"),
        ("a", "expected an array of numbers, got a string"),
        ([0.7, 0], "must be above 0"),
        ([math.inf], "expected a finite number"),
    ],
)
def test_a_list_of_numbers_that_is_wrong(value, message):
    with pytest.raises(Mistake) as caught:
        convert(value, NUMBERS)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [pytest.param(10**5000, id="10**5000"), -(2**63) - 1])
@pytest.mark.parametrize("kind", [int, float])
def test_integers_are_bounded(value, kind):
    with pytest.raises(Mistake, match="at most 64 bits"):
        convert(value, spec(kind))


@pytest.mark.parametrize("text", ["a\0b", "a\ud800"])
def test_strings_can_be_written_to_a_file(text):
    with pytest.raises(Mistake, match="UTF-8"):
        convert(text, spec(str))


def test_choices():
    assert convert("a", spec(str, choices=("a", "b"))) == "a"
    with pytest.raises(Mistake, match=r'^expected one of "a", "b"$'):
        convert("c", spec(str, choices=("a", "b")))


def test_bounds_are_said():
    with pytest.raises(Mistake, match=r"^must be above 0 and at most 1$"):
        convert(2, spec(float, above=0, maximum=1))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**5000, id="10**5000"),
        "x" * 1000,
        "a\nb",
        [2**70],
        {"a": 1},
        math.nan,
        datetime.date(2020, 1, 1),
        None,
        True,
        "\ud800",
        ("a\n", "b"),
        ("name",) * 50,
    ],
)
def test_show_is_one_short_line(value):
    shown = show(value)
    assert 0 < len(shown) <= 60
    assert shown.isprintable()


def test_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert absolute("a/../b", tmp_path) == str(tmp_path / "b")
    assert absolute("/etc/x", tmp_path) == "/etc/x"
    assert absolute("~/x", Path("/elsewhere")) == str(tmp_path / "home" / "x")
    assert absolute("~", Path("/elsewhere")) == str(tmp_path / "home")
    assert convert_leaf(Leaf(value="kept", source="a stored recipe"), Spec(type=str, path=True)) == "kept"


def test_lists_are_shown_as_in_toml():
    assert (show(()), show(("a", "b"))) == ("[]", '["a", "b"]')


@pytest.mark.parametrize(
    ("entry", "parts", "resolved"),
    [
        ("x.txt", (None, "x.txt"), "/here/x.txt"),
        ("lambada=x.txt", ("lambada", "x.txt"), "lambada=/here/x.txt"),
        ("lambada=/x=y", ("lambada", "/x=y"), "lambada=/x=y"),
        ("./a=b", (None, "./a=b"), "/here/a=b"),
        ("a=", (None, "a="), "/here/a="),
    ],
)
def test_entries_with_a_name_before_the_path(entry, parts, resolved):
    assert split_entry(entry) == parts
    assert absolute(entry, Path("/here"), named=True) == resolved


def test_an_unknown_home_is_a_mistake(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(Mistake, match="home folder"):
        absolute("~/x", Path("/"))
