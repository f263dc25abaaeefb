import pytest

from hornbook.config import MuonConfig
from hornbook.config.optimizers import read_steps, value_at
from hornbook.config.options import Mistake


def test_the_value_of_the_largest_key_that_is_not_above():
    values = read_steps(["2000=64", " 0 = 1.28e2", "1_000_000=1"])
    assert values == {0: 128.0, 2000: 64.0, 1_000_000: 1.0}
    assert [value_at(values, step) for step in (0, 1, 1999, 2000, 2001, 10**9)] == [128, 128, 128, 64, 64, 1]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "step 0 has no value; add 0=VALUE"),
        (["5=1"], "step 0 has no value; add 0=VALUE"),
        (["0=1", "0=2"], "step 0 has two values; remove one"),
        *(
            (["0=1", entry], f'"{entry}": expected STEP=VALUE with a positive value, as in 2000=0.5')
            for entry in ("7", "7=", "=7", "x=1", "-1=1", "1.5=1", "7=x", "7=0", "7=-1", "7=nan", "7=inf", "7=1=2")
        ),
    ],
)
def test_mistakes_are_named(entries, message):
    with pytest.raises(Mistake) as caught:
        read_steps(entries)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, []),
        ({"row_beta": 0.9, "row_moments": True, "cautious_decay": True}, []),
        ({"row_beta": 0.9}, ["row_beta has no effect without row_moments; remove it or set row_moments = true"]),
        (
            {"cautious_decay": True, "weight_decay": 0.0},
            ["cautious_decay has no effect without weight decay; remove it or set weight_decay"],
        ),
    ],
)
def test_options_of_muon_without_effect_are_named(options, problems):
    assert [problem.message for problem in MuonConfig(**options).problems()] == problems
