"""The page of a profile: what it shows, that it needs nothing else, and that no text breaks into it."""

import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.track.profile import (
    FILE,
    Held,
    ModuleTime,
    OperatorTime,
    Profile,
    RankProfile,
    read_profile,
    write_profile,
)
from hornbook.track.profile_page import headline, render_profile

RANK = RankProfile(
    data=0.001,
    compute=0.08,
    update=0.01,
    waiting=0.02,
    idle=0.25,
    peak_bytes=3 << 20,
    process_bytes=1 << 30,
    memory=((0.0, 1 << 20), (0.5, 3 << 20), (1.0, 1 << 20)),
    held=(
        Held("weights", "all", 1 << 20),
        Held("activations", "blocks.0.attention", 1 << 20),
        Held("activations", "blocks.1.attention", 1 << 20),
    ),
    trace="trace-rank-0.json.gz",
)
PROFILE = Profile(
    facts={"recipe": "demo <b>", "model": "gpt", "batch": "8 windows", "device": "cpu"},
    step_seconds=0.1,
    tokens_per_second=25_000.0,
    tflops=0.02,
    mfu=0.4,
    profiled_seconds=0.12,
    modules=(
        ModuleTime("embedding", 0.001, 0.002, 0.0, 0.0, 1.0),
        ModuleTime("blocks.0.attention.qkv", 0.01, 0.02, 0.0, 0.0, 1.0),
        ModuleTime("blocks.1.attention.qkv", 0.01, 0.02, 0.005, 0.0, 1.0),
    ),
    operators=(OperatorTime("aten::mm", 0.05, 12.0), OperatorTime("<script>", 0.01, 1.0)),
    ranks=(RANK, replace(RANK, waiting=0.03, idle=0.35, peak_bytes=2 << 20)),
)


class Tags(HTMLParser):
    """Collects the elements of a page, and the addresses in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]


def test_the_page_is_self_contained() -> None:
    page = render_profile(PROFILE)
    tags = Tags(page)
    assert "script" not in tags.names
    assert tags.addresses == []
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    assert "demo &lt;b&gt;" in page
    assert "&lt;script&gt;" in page


def test_blocks_are_shown_together() -> None:
    page = render_profile(PROFILE)
    assert "blocks.*.attention.qkv" in page
    assert "65 ms" in page  # of both blocks, forward, backward, and forward again
    assert "activations: blocks.*.attention × 2" in page
    assert "forward again" in page


def test_a_row_for_each_rank_and_its_trace() -> None:
    page = render_profile(PROFILE)
    assert "20 ms (20.0%)" in page and "30 ms (30.0%)" in page
    assert RANK.trace in page


def test_the_headline() -> None:
    shown = {name: value for name, value, _ in headline(PROFILE)}
    assert shown == {
        "Step": "100 ms",
        "Speed": "25k",
        "MFU": "40.0%",
        "Waiting for ranks": "25.0%",
        "Idle stages": "30.0%",
        "Peak of tensors": "3.0 MiB",
    }
    alone = replace(PROFILE, ranks=(replace(RANK, idle=None),), mfu=None, tflops=None)
    assert [name for name, _, _ in headline(alone)] == ["Step", "Speed", "Waiting for data", "Peak of tensors"]


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_profile(tmp_path, PROFILE)
    assert read_profile(tmp_path) == PROFILE
    assert read_profile(tmp_path / FILE) == PROFILE


@pytest.mark.parametrize("change", [{"format": 1}, {"ranks": 3}, {"modules": [[1]]}, {"unknown": 1}])
def test_a_damaged_profile_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / FILE).write_text(json.dumps({"format": 2, **asdict(PROFILE), **change}))
    with pytest.raises(DataError) as caught:
        read_profile(tmp_path)
    assert one_line(caught.value, "not a profile of this version", "run `hornbook profile` again")


def test_no_profile_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_profile(tmp_path)
    assert one_line(caught.value, "no profile", FILE)
