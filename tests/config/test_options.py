from dataclasses import dataclass, fields
from typing import Literal

import pytest

from hornbook.config import recipe
from hornbook.config.build import SECTIONS, specs
from hornbook.config.options import Bounds, describe, option
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
    assert (described["names"].scalar, described["shares"].scalar, described["rate"].scalar) == (str, float, float)
    assert Every() == Every(count=1, rate=None, kind="a")


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
        with pytest.raises(UserError, match=rf"{section.__name__}.sizes: type .* is no recipe type"):
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
