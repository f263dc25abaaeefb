import io
import re
import sys
import time
from pathlib import Path

import pytest
from fake_run import train_row
from hypothesis import given
from hypothesis import strategies as st
from terminals import on_terminal, resize, seen

from hornbook.track.console import Console
from hornbook.wording import one_line, visible

ODD = "\x1b[2J\x1b]0;title\x07 [bold]x[/bold] [/] \u202eevil\u2066 \r\x08\x9b31m \ud800 \u2028 :smile: é"
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from fake_run import train_row
from hornbook.track.console import Console
with Console() as console:
    console.start("demo", {"parameters": "5,312"})
    for step in range(10, 41, 10):
        row = train_row(step)
        console.live({**row, "mfu": 0.25, "memory": 2**30}, 40, micro_batch=(2, 4))
        console.train(row, 40)
    console.validation({"step": 40, "loss": 2.5, "bits_per_byte": 1.25})
    console.warn("careful")
    console.sample(40, "a\\x1b[31mb [red]c[/red]")
    console.interject("hornbook: SIGTERM: stops")
    console.live({**row, "mfu": 0.25, "memory": 2**30}, 40, micro_batch=(2, 4))
    console.note("after the signal")
    console.finish({"report": "report.html"})
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(say, **options) -> str:
    stream = io.StringIO()
    with Console(stream=stream, **options) as console:
        say(console)
    return stream.getvalue()


def plain(written: str) -> str:
    """The text without colors and moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)


def on_columns(columns: int = 100, **variables: str) -> str:
    """What the script writes to a terminal."""
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1] / "helpers")]
    return on_terminal(command, columns=columns, **variables)


def test_plain_lines_one_for_each_logged_step() -> None:
    def say(console: Console) -> None:
        console.train(train_row(10), 2000)
        console.train(train_row(20, skipped_steps=2), 2000)
        console.train(train_row(30, mfu=0.25), 2000)

    assert said(say).splitlines() == [
        "step 10/2,000  loss 2.6000  lr 1.00e-03  grad 0.900  2k tokens/s  16 min 59 s left",
        "step 20/2,000  loss 2.3000  lr 1.00e-03  grad 0.900  2k tokens/s  2 skipped  16 min 54 s left",
        "step 30/2,000  loss 2.2000  lr 1.00e-03  grad 0.900  2k tokens/s  MFU 25.0%  16 min 49 s left",
    ]


def test_the_lines_of_encoders_are_no_longer_than_those_of_decoders() -> None:
    pretraining = train_row(1500, mlm_accuracy=0.125, nsp_accuracy=0.5, padding=0.25)
    fine_tuning = train_row(10, accuracy=0.75)
    lines = said(lambda console: [console.train(row, 20_000) for row in (pretraining, fine_tuning)]).splitlines()
    assert lines == [
        "step 1,500/20,000  loss 2.0040  MLM acc 12.5%  NSP acc 50.0%  2k tokens/s  2 h 37 min left",
        "step 10/20,000  loss 2.6000  accuracy 75.0%  2k tokens/s  2 h 50 min left",
    ]


def test_every_event_has_its_line() -> None:
    def say(console: Console) -> None:
        console.start("demo", {"parameters": "5,312", "device": "cpu"})
        console.validation({"step": 1500, "loss": 2.5, "bits_per_byte": 1.25})
        console.validation({"step": 1600, "loss": 2.5, "bits_per_byte": None})
        console.checkpoint(Path("runs/demo"))
        console.sample(1600, "one\ntwo")
        console.note("noted")
        console.warn("careful")
        console.finish({"loss": 2.5, "report": Path("report.html")})

    assert said(say).splitlines() == [
        "hornbook  demo",
        "  parameters  5,312",
        "  device      cpu",
        "step 1,500  validation loss 2.5000  bits per byte 1.250",
        "step 1,600  validation loss 2.5000",
        "saved runs/demo",
        "step 1,600  generated text",
        "    one",
        "    two",
        "noted",
        "warning: careful",
        "  loss    2.5",
        "  report  report.html",
    ]


def test_quiet_says_warnings_alone() -> None:
    def say(console: Console) -> None:
        console.start("demo", {"a": "b"})
        console.train(train_row(1), 2)
        console.validation({"step": 1, "loss": 1.0})
        console.checkpoint("x")
        console.sample(1, "text")
        console.note("note")
        console.warn("careful")
        console.finish({"a": "b"})

    assert said(say, quiet=True) == "warning: careful\n"


def test_a_row_without_numbers_is_said_all_the_same() -> None:
    row = {"kind": "train", "step": 3, "loss": None, "tokens_per_second": "fast", "tokens": float("nan")}
    assert said(lambda console: console.train(row, 10)) == "step 3/10  loss -  lr -  grad -  - tokens/s  - left\n"


@pytest.mark.parametrize(
    "say",
    [
        lambda console: console.sample(1, ODD),
        lambda console: console.note(ODD),
        lambda console: console.warn(ODD),
        lambda console: console.checkpoint(ODD),
    ],
)
def test_text_from_outside_is_shown_and_never_obeyed(say) -> None:
    found = said(say)
    assert "\x1b" not in found
    assert r"\x1b[2J\x1b]0;title\x07 [bold]x[/bold] [/] \u202eevil\u2066 \r\x08\x9b31m \ud800 \u2028 :smile: é" in found


def test_names_and_values_of_header_and_summary_are_harmless_too() -> None:
    def say(console: Console) -> None:
        console.start(ODD, {ODD: ODD + "\n"})
        console.finish({ODD: ODD})

    found = said(say)
    assert "\x1b" not in found
    assert len(found.splitlines()) == 3


@given(st.text())
def test_no_text_moves_the_cursor_of_a_terminal(text: str) -> None:
    shown = visible(text)
    assert all(character in "\n\t" or ord(character) >= 0xA0 or character.isprintable() for character in shown)
    assert len(one_line(text).splitlines()) <= 1


@given(st.text())
def test_no_text_raises_on_an_ascii_stream(text: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    console = Console(stream=stream)
    console.sample(1, text)
    console.note(text)
    stream.flush()
    assert raw.getvalue().isascii()


def test_a_reader_that_left_does_not_end_the_run() -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise ValueError("I/O operation on closed file")

    with Console(stream=Broken()) as console:
        console.start("demo", {"a": "b"})
        console.train(train_row(1), 2)
        console.warn("careful")
        console.sample(1, "text")


def test_rows_and_events_stay_on_a_terminal_above_a_live_display_that_goes() -> None:
    found = on_columns()
    assert "20/40 steps  micro-batch 2/4  ━" in plain(found)
    assert "loss 2.3000  lr 1.00e-03  grad 0.900  2k tokens/s  MFU 25.0%  1.0 GiB memory" in found
    assert found.count("\x1b[?25l") == found.count("\x1b[?25h") == 1  # the cursor is back
    assert seen(found) == [
        "hornbook  demo",
        "  parameters  5,312",
        *(
            f"step {step}/40  loss {2 + 6 / step:.4f}  lr 1.00e-03  grad 0.900  2k tokens/s  {left} s left"
            for step, left in ((10, 15), (20, 10), (30, 5), (40, 0))
        ),
        "step 40  validation loss 2.5000  bits per byte 1.250",
        "warning: careful",
        "step 40  generated text",
        r"    a\x1b[31mb [red]c[/red]",
        "hornbook: SIGTERM: stops",
        "after the signal",
        "  report  report.html",
    ]


@pytest.mark.parametrize("columns", [60, 80, 133, 200])
def test_the_live_display_fits_the_terminal(columns: int) -> None:
    found = on_columns(columns)
    drawn = re.findall(r"\d+/40 steps.*?left", plain(found))
    assert len(drawn) >= 4
    assert all(len(line) <= columns for line in drawn)
    said = "".join(seen(found, columns)).replace(" ", "")
    assert "micro-batch" not in said and "memory" not in said, "nothing of it is left behind"
    assert said.count("tokens/s") == 4


def test_a_long_fact_goes_on_below_its_beginning_and_a_path_stays_whole() -> None:
    path = "runs/" + "a" * 60
    script = f"""
from hornbook.track.console import Console
with Console() as console:
    console.start("demo", {{"kernels": "native: attention_bf16 avx512, norm_bf16 avx512bf16", "output": "{path}"}})
"""
    found = on_terminal([sys.executable, "-c", script], columns=40)
    assert plain(found).splitlines() == [
        "hornbook  demo",
        "  kernels  native: attention_bf16",
        "           avx512, norm_bf16 avx512bf16",
        f"  output   {path}",
    ]


def test_a_resize_is_followed() -> None:
    script = """
import time
from hornbook.track.console import Console
with Console() as console:
    for step in range(1, 200):
        console.live({"step": step, "loss": 1.0, "tokens": step}, 1000, micro_batch=(1, 2))
        time.sleep(0.02)
"""
    steps: list[int] = []

    def narrow(written: str, terminal: int, process: object) -> None:
        if "30/1,000" in written and not steps:
            steps.append(len(written))
            resize(terminal, 60)

    found = plain(on_terminal([sys.executable, "-c", script], columns=90, see=narrow))
    lines = re.findall(r"\d+/1,000 steps  micro.*? left", found)
    widths = [len(line) for line in lines]
    assert set(widths) == {60, 90}
    assert widths == sorted(widths, reverse=True), "wide at first, then narrow"


def test_the_live_display_is_drawn_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    console = Console(stream=Terminal())
    with console:
        assert console.is_due()
        console.live({"step": 1}, 10, micro_batch=(1, 1))
        now += 0.09
        assert not console.is_due()
        now += 0.02
        assert console.is_due()
    assert not Console(stream=Terminal(), quiet=True).is_due()
    assert not Console(stream=io.StringIO()).is_due()


def test_colors_are_left_out_on_request() -> None:
    assert "\x1b[32m" in on_columns()
    assert "\x1b[32m" not in on_columns(NO_COLOR="1")


def test_nothing_moves_on_a_dumb_terminal() -> None:
    found = on_columns(TERM="dumb")
    assert "\x1b[2K" not in found
    assert found.count("lr 1.00e-03") == 4


def test_standard_output_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Console().note("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\n"
