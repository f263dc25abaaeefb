"""HTML that cannot be broken into: every text is escaped unless it was built here.

    tag("td", "<b>", title='"') -> <td title="&quot;">&lt;b&gt;</td>        an Html
    tag("tr", tag("td", "1"))   -> <tr><td>1</td></tr>                      an Html inside stays as it is

``Html`` is a ``str`` that only ``tag`` and ``join`` make, so a text that came from a run (a sample, a recipe, a path)
has no way to become an element. The page forbids scripts and every address besides itself in its own policy as well.
The price is a page without a script: what follows the mouse is done by CSS.
"""

import html
import re
from collections.abc import Iterable
from pathlib import Path

STYLE_SHEET = Path(__file__).parent / "report.css"

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "path", "line", "circle", "rect", "input"}


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


def escape(text: object) -> Html:
    """``text`` as the content of an element or attribute; what it cannot hold, or reorders letters, becomes U+FFFD."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. ``class_`` stands for class, ``_`` in a name for ``-``; an attribute that is ``None`` is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """One after the other, each escaped if it is plain text."""
    return Html("".join(escape(child) for child in children))


def section(title: str, *children: object) -> Html:
    """A headed part of the page, or nothing where there is nothing to show."""
    return tag("section", tag("h2", title), *children) if any(children) else Html()


def card(label: str, value: str, detail: str = "") -> Html:
    """One number of the summary."""
    return tag("div", tag("dt", label), tag("dd", value), tag("p", detail) if detail else "", class_="card")


def table(head: Iterable[str], rows: Iterable[Iterable[object]], numeric: frozenset[int] = frozenset()) -> Html:
    """A table that scrolls inside itself where the page is narrow; ``numeric`` columns are set flush right."""

    def cells(name: str, row: Iterable[object]) -> Html:
        return join(tag(name, cell, class_="num" if at in numeric else None) for at, cell in enumerate(row))

    body = [tag("tr", cells("td", row)) for row in rows]
    if not body:
        return Html()
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", cells("th", head))), tag("tbody", *body)),
        class_="scroll",
        tabindex="0",
    )


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names and values below each other."""
    rows = [join([tag("dt", name), tag("dd", value)]) for name, value in pairs]
    return tag("dl", *rows, class_="facts") if rows else Html()


def document(title: str, *body: object) -> str:
    """The whole page: one file, no script, nothing fetched."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE_SHEET.read_text(encoding="utf-8"))),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"
