"""A wiki of a few pages as MediaWiki exports it, and what its articles say."""

from collections.abc import Iterable
from html import escape

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="xx">
  <siteinfo>
    <sitename>Tiny</sitename>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Pļāpa</namespace>
      <namespace key="6" case="first-letter">Fails</namespace>
      <namespace key="14" case="first-letter">Kategoreja</namespace>
    </namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"
SEINE = """'''Seine''' is a [[river|stream]] of 777&nbsp;km.<ref>{{cite|a}}</ref>

== See ==
* [[Paris]]
[[Fails:a.jpg|thumb|map]]"""
SEINE_TEXT = "Seine\n\nSeine is a stream of 777 km.\n\nSee\n- Paris"


def page(title: str, text: str, namespace: int | None = 0, redirect: str = "", model: str = "wikitext") -> str:
    """One page, as XML; without a namespace it is as old dumps have it."""
    fields = "" if namespace is None else f"    <ns>{namespace}</ns>\n"
    fields += f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n{fields}    <id>7</id>\n    <revision>\n      <id>8</id>\n"
        f'      <model>{model}</model>\n      <text xml:space="preserve">{escape(text)}</text>\n'
        "    </revision>\n  </page>\n"
    )


def dump(pages: Iterable[str]) -> bytes:
    """A whole export."""
    return (HEAD + "".join(pages) + TAIL).encode()


def tiny_dump() -> bytes:
    """Six pages: two articles, a redirect, a talk page, a style sheet, and an article without a word."""
    return dump(
        [
            page("Seine", SEINE),
            page("Stream", "#REDIRECT [[Seine]]", redirect="Seine"),
            page("Pļāpa:Seine", "talk", namespace=1),
            page("Style", ".a {}", model="css"),
            page("Void", "{{stub}}"),
            page("Paris & co", "A ''city''."),
        ]
    )


TINY_TEXTS = [SEINE_TEXT, "", "Paris & co\n\nA city."]


def many_pages(number: int) -> list[str]:
    """Pages whose text is not too regular."""
    return [
        page(f"Page {n}", f"'''Page {n}''' of {n * n % 977}. " + f"[[word {n % 7}|w{n % 13}]] " * (n % 29))
        for n in range(number)
    ]
