import base64
import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.track.figures import NUM_COLORS
from hornbook.track.page import STYLE_SHEET, Html, Parts, card, document, escape, facts, section, table, tag

SIGHTS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "deuteranopia": ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "tritanopia": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9309, 0.1476), (0.0047, 0.6914, 0.3039)),
}
"""What is left of linear RGB (Machado et al. 2009, A physiologically-based model for simulation of color vision)."""
TRITAN_SIDES = (
    ((1.01277, 0.13548, -0.14826), (-0.01243, 0.86812, 0.14431), (0.07589, 0.80500, 0.11911)),
    ((0.93678, 0.18979, -0.12657), (0.06154, 0.81526, 0.12320), (-0.37562, 1.12767, 0.24796)),
)
"""Tritanopia of Brettel, Viénot and Mollon (1997), for which the above is inexact: projections of linear RGB onto two
half-planes. The first is that of colors on the positive side of the plane with the normal below."""
TRITAN_NORMAL = (0.03901, -0.02788, -0.01113)
TO_CONES = ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
FROM_CONES = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
"""Oklab (Ottosson 2020)."""
ROLES = ("ink", "soft", "train", "validation", "good")


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def palettes() -> list[dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE_SHEET.read_text(), re.S)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in blocks[:2]]


def seen_as(color: str, sight: str) -> list[float]:
    """A color as seen with a color blindness, in Oklab, where distances are those that people see."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    if sight == "tritanopia, Brettel":
        (side,) = times([TRITAN_NORMAL], linear)
        matrix = TRITAN_SIDES[side < 0]
    else:
        matrix = SIGHTS[sight]
    seen = [min(1.0, max(0.0, value)) for value in times(matrix, linear)]
    return times(FROM_CONES, [value ** (1 / 3) for value in times(TO_CONES, seen)])


def times(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def test_text_is_escaped_and_markup_is_not_escaped_again() -> None:
    assert tag("td", "<b>&", tag("i", "x"), title='"<') == '<td title="&quot;&lt;">&lt;b&gt;&amp;<i>x</i></td>'
    assert tag("a", class_="b", aria_label="c", href=None) == '<a class="b" aria-label="c"></a>'
    assert tag("path", d="M0 0") == '<path d="M0 0"/>'


@given(st.text())
def test_no_text_gets_out_of_its_element(text: str) -> None:
    found = escape(text)
    assert not set(found) & set("<>\"'")
    assert found.encode("utf-8").decode("utf-8") == found
    assert isinstance(found, Html)


def test_what_html_cannot_hold_is_replaced() -> None:
    assert escape("a\x00\x1b\ud800\u202eb\n\t") == "a\ufffd\ufffd\ufffd\ufffdb\n\t"


def test_parts_without_content_are_left_out() -> None:
    assert section("Title", "", Html()) == ""
    assert table(("a",), []) == ""
    assert facts([]) == ""
    assert "<p>" not in card("Loss", "3.0")


def test_a_table_marks_its_numbers() -> None:
    found = table(("name", "value"), [("a", 1), ("b", 2)], frozenset({1}))
    assert found.count('class="num"') == 3
    assert '<td>b</td><td class="num">2</td>' in found


def test_the_page_runs_its_own_script_alone_and_fetches_nothing() -> None:
    hostile = "</script><script>alert(1)</script>"
    run = {"id": hostile, "figures": [{"title": hostile}]}
    page = document(Parts(title="<title>", head=tag("p", "x")), [run])
    assert page.startswith("<!doctype html>")
    assert "<title>&lt;title&gt;</title>" in page
    assert "default-src &#x27;none&#x27;" in page and "connect-src &#x27;none&#x27;" in page
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", page, re.S)
    assert json.loads(data)["curves"] == [run] and "<" not in data
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;;" in page
    assert not re.search(r"</script|<!--", script), "no script ends early"
    assert "connect-src &#x27;self&#x27;" in document(Parts(title="board"), live=Html())


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
@pytest.mark.parametrize("background", ["paper", "card", "wash"])
@pytest.mark.parametrize("role", ROLES)
def test_text_has_enough_contrast(palette: dict[str, str], background: str, role: str) -> None:
    low, high = sorted([luminance(palette[role]), luminance(palette[background])])
    assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
@pytest.mark.parametrize("sight", [*SIGHTS, "tritanopia, Brettel"])
def test_readers_can_distinguish_the_colors_of_eight_runs(palette: dict[str, str], sight: str) -> None:
    colors = [palette[f"run{at}"] for at in range(NUM_COLORS)]
    seen = [seen_as(color, sight) for color in colors]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 0.12
    for color in colors:
        low, high = sorted([luminance(color), luminance(palette["card"])])
        assert (high + 0.05) / (low + 0.05) >= 3
