"""The guide, README.md and the pages that mkdocs.yml lists under it: its length and its order."""

import re
from pathlib import Path

from pages import ROOT

LONGEST = 11_500
"""Words, with code and tables; what a reader looks up rather than reads belongs on a reference page."""


def between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def guide_pages() -> list[Path]:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = re.findall(r"- (\S+\.md)", between(navigation, "- Guide:", "- Reference:"))
    assert names[0] == "index.md"
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in names[1:])]


def test_the_guide_is_short() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in guide_pages()}
    assert len(words) > 5
    assert sum(words.values()) <= LONGEST, words


def test_the_readme_lists_the_guide_in_its_order() -> None:
    table = between((ROOT / "README.md").read_text(encoding="utf-8"), "Read on in this order", "The rest is reference")
    listed = [ROOT / link for link in re.findall(r"^\| \[[^]]+\]\((\S+)\)", table, re.MULTILINE)]
    assert listed == guide_pages()[1:]
