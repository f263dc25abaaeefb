"""From wikitext to prose.

    '''Anarchism''' is a [[political philosophy]].<ref>...</ref>        Anarchism is a political philosophy.
    {{Infobox ...}}                                             ->
    == History ==                                                       History
    * [[Zeno of Citium|Zeno]]                                           - Zeno

Five passes, each over what the one before left: comments and opaque tags, templates, tables, links, tags, lines. The
order is MediaWiki's. Each pass goes forward with a stack at most, so time is linear in the length of the page; nothing
is ever an error. There is no tree, so odd markup is not understood but dropped.
"""

from hornbook.text.wikipedia.lines import CleanOptions, ItemCount, resolve_lines
from hornbook.text.wikipedia.links import LinkNames, resolve_links
from hornbook.text.wikipedia.tags import BREAK, GAP, resolve_html, resolve_opaque
from hornbook.text.wikipedia.templates import drop_tables, resolve_templates


def clean(
    wikitext: str, options: CleanOptions | None = None, names: LinkNames | None = None, items: ItemCount | None = None
) -> str:
    """Return the prose of a page: paragraphs and headings a line each, list items a line each that begins with "- ".

    ``names`` are the wiki's for files and categories; ``items`` counts the list items.
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
    """The document of a page: its title, if asked for, and its prose; empty where there is no prose; see ``clean``."""
    prose = clean(wikitext, options, names, items)
    return f"{title}\n\n{prose}" if prose and options.titles == "keep" else prose
