"""The live display fits every width, loses no number, and moves with every micro-batch."""

import pytest
from fake_run import train_row

from hornbook.track.console import live_lines

ROW = train_row(12_728, mfu=0.4132, memory=2.1 * 2**30, skipped_steps=2)
NUMBERS = ["loss 2.0005", "lr 1.00e-03", "grad 0.900", "2k tokens/s", "MFU 41.3%", "2.1 GiB memory", "2 skipped"]


def shown(row=ROW, total=20_000, micro_batch=(13, 64), **options) -> list[str]:
    return [line.plain for line in live_lines(row, total, micro_batch, **options)]


def test_a_wide_display() -> None:
    first, second = shown(width=100)
    bar = first.removeprefix("12,728/20,000 steps  micro-batch 13/64  ").removesuffix("  1 h 02 min left")
    assert second == "  ".join(NUMBERS)
    assert len(first) == 100
    assert bar == "━" * int(len(bar) * 12_728.2 / 20_000) + "─" * (len(bar) - int(len(bar) * 12_728.2 / 20_000))


@pytest.mark.parametrize("width", range(20, 201))
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(width: int) -> None:
    lines = shown(width=width)
    assert all(len(line) <= width for line in lines)
    said = "  ".join(lines)
    for part in ["12,728/20,000 steps", "micro-batch 13/64", "1 h 02 min left", *NUMBERS]:
        assert part in said


def test_the_bar_moves_within_a_step() -> None:
    bars = [shown(train_row(1), 2, (number, 4), width=80)[0].count("━") for number in (1, 2, 3, 4)]
    assert bars == sorted(set(bars))


def test_a_step_of_one_micro_batch_does_not_mention_it() -> None:
    assert "micro" not in shown(micro_batch=(1, 1), width=80)[0]


def test_before_the_first_step_there_are_no_numbers() -> None:
    (line,) = shown({"step": 0, "tokens": 0, "memory": 1e9}, micro_batch=(2, 8), width=80)
    assert line.startswith("0/20,000 steps  micro-batch 2/8  ─")
    assert line.endswith("  - left")


def test_encoders_have_both_accuracies_and_rates() -> None:
    said = "  ".join(shown(train_row(1500, mlm_accuracy=0.125, nsp_accuracy=0.5), width=80)[1:])
    assert "MLM acc 12.5%  NSP acc 50.0%  lr 1.00e-03  grad 0.900" in said


def test_ascii_terminals_get_an_ascii_bar() -> None:
    lines = shown(width=80, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert "#-" in lines[0]
