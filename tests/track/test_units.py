import math

import pytest

from hornbook.track import units


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3.0), (2.5, 2.5), (0, 0.0), (None, None), ("3", None), (True, None), (math.nan, None), (math.inf, None)],
)
def test_number_lets_only_finite_numbers_through(value: object, expected: float | None) -> None:
    assert units.number({"x": value}, "x") == expected


def test_number_of_a_missing_key_and_of_an_absurd_integer_is_none() -> None:
    assert units.number({}, "x") is None
    assert units.number({"x": 10**400}, "x") is None
    assert units.number({"x": -1e101}, "x") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (24_123, "24.1k"),
        (5_312_768, "5.31M"),
        (1.6e9, "1.60B"),
        (2e12, "2T"),
        (999_885_952, "1.00B"),
        (999_900, "1.00M"),
        (999.4, "999"),
        (-99_990, "-100k"),
    ],
)
def test_short(value: float, expected: str) -> None:
    assert units.short(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3.14159, "3.14"),
        (0.012345, "0.0123"),
        (250.0, "250"),
        (0.0, "0"),
        (1e-7, "1.00e-07"),
        (-2.345, "-2.35"),
        (9.999, "10.0"),
    ],
)
def test_significant(value: float, expected: str) -> None:
    assert units.significant(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (48.4, "48 s"),
        (59.6, "1 min 00 s"),
        (312, "5 min 12 s"),
        (3725, "1 h 02 min"),
        (270_000, "3 d 03 h"),
        (-5, "0 s"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    assert units.duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0003, "0.0003"), (1.5, "1.5"), (1500, "1.5k"), (2e7, "20M"), (0, "0"), (6e-5, "6e-05")]
)
def test_tick(value: float, expected: str) -> None:
    assert units.tick(value) == expected


def test_short_times_have_three_digits() -> None:
    assert [units.short_time(value) for value in (1.25, 0.0123, 0.0)] == ["1.25 s", "12.3 ms", "0 s"]


def test_size_counts_in_binary_units() -> None:
    assert [units.size(value) for value in (500, 2048, 5 << 20, 3 << 30, 2 << 40)] == [
        "500 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]


@pytest.mark.parametrize(
    "write", [units.count, units.short, units.loss, units.bits, units.rate, units.duration, units.size]
)
def test_what_is_not_known_is_a_hyphen(write) -> None:
    assert write(None) == "-"


def test_what_a_validation_loss_is_a_mean_of():
    assert units.scored({"tokens": 27054, "share": 1.0, "standard_error": None}) == "27,054 tokens"
    part = {"tokens": 16383, "share": 0.14, "standard_error": 0.0489}
    assert units.scored(part) == "16,383 tokens, 14% of the text, ± 0.049"
    assert units.scored({"tokens": 10, "share": 0.001}) == "10 tokens, 0.1% of the text"
    assert units.scored({"tokens": 44, "share": 1.0, "classification": 1.9}) == "44 texts"
    assert units.scored({"tokens": 44, "share": 1.0, "span": 1.9}) == "44 windows"
    assert units.scored({"loss": 2.5}) == "", "a log of an earlier version"
