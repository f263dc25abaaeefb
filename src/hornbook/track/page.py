"""Build HTML without injection: every text is escaped unless it was built here.

    tag("td", "<b>", title='"') -> <td title="&quot;">&lt;b&gt;</td>        an Html
    tag("tr", tag("td", "1"))   -> <tr><td>1</td></tr>                      nested Html is not escaped

``Html`` is a ``str`` that only ``tag`` and ``join`` make, so a text from a run (a sample, a recipe, a path) cannot
become an element. The page's content security policy also forbids every script except its own, by hash, and every
address except, on the board, the server's.

A run's report, a comparison and the live board are one page: ``document`` with its parts or, for the board, without,
since its script fetches them.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STYLE_SHEET = Path(__file__).parent / "page.css"
SCRIPTS = (Path(__file__).parent / "charts.js", Path(__file__).parent / "page.js")

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "path", "line", "circle", "rect", "input", "wbr"}


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Escape text for elements and attributes; control and bidirectional characters become U+FFFD."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. ``class_`` means class, ``_`` in names ``-``; attributes that are ``None`` are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Concatenate children, escaping plain text."""
    return Html("".join(escape(child) for child in children))


def section(title: str, *children: object) -> Html:
    """Return a section with a heading, or nothing if it has no content."""
    return tag("section", tag("h2", title), *children) if any(children) else Html()


def card(label: str, value: str, detail: str = "", *, is_old: bool = False) -> Html:
    """Return the card of one number in the summary, gray if there is a newer measurement."""
    number = tag("dd", value, class_="old" if is_old else None)
    return tag("div", tag("dt", label), number, tag("p", detail) if detail else "", class_="card")


def notes_of(tags: Iterable[str], note: str) -> Html:
    """Return the tags and the note of a run; nothing if it has none."""
    chips = [tag("span", name, class_="tag") for name in tags]
    listed = tag("span", join(join([" ", chip]) for chip in chips), class_="tags") if chips else ""
    return join([listed, tag("span", note, class_="remark") if note else ""])


def table(
    head: Sequence[str],
    rows: Iterable[Iterable[object]],
    numeric: frozenset[int] = frozenset(),
    *,
    is_stacked: bool = False,
) -> Html:
    """Return a table that scrolls by itself on narrow pages or, if it is ``stacked``, has a line for each cell there.

    ``numeric`` columns are right-aligned.
    """

    def cells(name: str, row: Iterable[object]) -> Html:
        titles = head if is_stacked and name == "td" else [None] * len(head)
        return join(
            tag(name, cell, class_="num" if at in numeric else None, data_title=title or None)
            for at, (cell, title) in enumerate(zip(row, titles, strict=True))
        )

    body = [tag("tr", cells("td", row)) for row in rows]
    if not body:
        return Html()
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", cells("th", head))), tag("tbody", *body)),
        class_="scroll stacked" if is_stacked else "scroll",
        tabindex="0",
    )


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return a list of names and values."""
    rows = [join([tag("dt", name), tag("dd", value)]) for name, value in pairs]
    return tag("dl", *rows, class_="facts") if rows else Html()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the page around the curves.

    Attributes:
        title: title of the window.
        head: content below the page's name.
        before: content above the curves.
        after: content below the curves.
        foot: content at the end of the page.
    """

    title: str
    head: Html = field(default_factory=Html)
    before: Html = field(default_factory=Html)
    after: Html = field(default_factory=Html)
    foot: str = ""


def document(
    parts: Parts, curves: Sequence[Mapping[str, Any]] = (), *, over: str = "steps", live: Html | None = None
) -> str:
    """Return the whole page: one file that fetches nothing except, if it is live, ``data`` from its server.

    Args:
        parts: the parts around the curves.
        curves: curves of each run; see ``figures.curves_of``.
        over: the initial horizontal axis.
        live: controls of the list of runs, if it is the live board.
    """
    is_live = live is not None
    has_curves = is_live or any(run["figures"] for run in curves)
    noscript = tag("noscript", tag("p", "The curves need JavaScript, which is in this file.", class_="note"))
    controls = tag("form", id="controls", class_="controls", aria_label="What the curves show")
    charts = tag(
        "section", tag("h2", "Curves"), noscript, controls, tag("div", id="large", class_="main"),
        tag("div", id="small", class_="charts"),
        tag("p", "The logs of these runs do not have this axis.", id="nothing", class_="note", hidden=""), id="curves",
    )  # fmt: skip
    status, runs = (
        (tag("p", id="status", role="status"), join([live, tag("nav", id="runs", aria_label="Runs")]))
        if live is not None
        else ("", "")
    )
    body = tag(
        "body",
        tag("header", status, tag("p", "hornbook", class_="brand"), runs, tag("div", parts.head, id="head")),
        tag(
            "main",
            tag("div", parts.before, id="before"),
            charts if has_curves else "",
            tag("div", parts.after, id="after"),
        ),
        tag("footer", parts.foot),
        tag("script", _as_json({"live": is_live, "over": over, "curves": curves}), id="data", type="application/json"),
        tag("script", Html(_script())),
    )
    digest = base64.b64encode(hashlib.sha256(_script().encode("utf-8")).digest()).decode()
    policy = f"script-src 'sha256-{digest}'; connect-src '{'self' if is_live else 'none'}'; "
    return f"<!doctype html>\n{tag('html', _head(parts.title, policy), body, lang='en')}\n"


def still_document(title: str, *body: object, style_sheet: Path) -> str:
    """Return a whole page without a script: one file that fetches nothing.

    Args:
        title: title of the window.
        body: content of the page.
        style_sheet: additional style sheet of this page.
    """
    style = tag("style", Html(style_sheet.read_text(encoding="utf-8")))
    return f"<!doctype html>\n{tag('html', _head(title), tag('body', style, *body), lang='en')}\n"


def _head(title: str, policy: str = "") -> Html:
    policy = f"default-src 'none'; style-src 'unsafe-inline'; {policy}base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE_SHEET.read_text(encoding="utf-8"))),
    )


def _script() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)


def _as_json(data: Mapping[str, object]) -> Html:
    """Return ``data`` as the content of a script element, which no text in it can end."""
    source = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return Html(source.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
