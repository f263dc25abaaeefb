"""Conversion of wikitext to prose.

    '''Anarchism''' is a [[political philosophy]].<ref>...</ref>        Anarchism is a political philosophy.
    {{Infobox ...}}                                             ->
    == History ==                                                       History
    * [[Zeno of Citium|Zeno]]                                           - Zeno

Six passes, each over the result of the previous one and in MediaWiki's order: comments and opaque tags, templates,
tables, links, tags, lines. Each pass scans forward with at most a stack, so time is linear in the length of the page,
and no input is an error. The trade-off: there is no syntax tree, so unusual markup is dropped.
"""

from hornbook.text.reading import CleanOptions
from hornbook.wikipedia.lines import ItemCount, resolve_lines
from hornbook.wikipedia.links import LinkNames, resolve_links
from hornbook.wikipedia.tags import BREAK, GAP, resolve_html, resolve_opaque
from hornbook.wikipedia.templates import drop_tables, resolve_templates


def clean(
    wikitext: str, options: CleanOptions | None = None, names: LinkNames | None = None, items: ItemCount | None = None
) -> str:
    """Return the prose of a page: one line per paragraph, heading and list item; list items begin with "- ".

    Args:
        wikitext: the page.
        options: the parts to keep.
        names: the wiki's prefixes of links to files and categories.
        items: updated with the number of list items.
    """
    text = wikitext
    for control in (GAP, BREAK):
        if control in text:
            text = text.replace(control, "")
    if "<" in text:
        text = resolve_opaque(text)
    if "{{" in text or "}}" in text:
        text = resolve_templates(text)
    text = drop_tables(text)
    text = resolve_links(text, names or LinkNames())
    if "<" in text:
        text = resolve_html(text)
    return resolve_lines(text, options or CleanOptions(), items)


def clean_page(
    title: str, wikitext: str, options: CleanOptions, names: LinkNames, items: ItemCount | None = None
) -> str:
    """Return the title, if ``options`` keep it, and the prose of a page; empty without prose; see ``clean``."""
    prose = clean(wikitext, options, names, items)
    return f"{title}\n\n{prose}" if prose and options.titles == "keep" else prose
