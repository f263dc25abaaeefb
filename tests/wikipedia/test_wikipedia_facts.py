"""Real dumps: their counts, and how much markup the cleaner leaves in their articles."""

import re
from collections import Counter

import pytest
from tiny_text import SHARED

from hornbook.text.documents import ReadOptions, Tally, read_documents
from hornbook.wikipedia.blocks import read_blocks
from hornbook.wikipedia.dump import Site, read_pages

DUMPS = SHARED / "wiki-dump"
ENGLISH, SMALL, TINY = (
    "enwiki-p10p30302-shortened.xml.bz2",
    "smallwiki-pages-articles.xml",
    "tinywiki-pages-articles.xml",
)
MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|''|<!--|-->|__[A-Z]+__|^[=*#|]|\[(?:https?:)?//|thumb\||[\0\v]"
    r"|</?(?:ref|br|div|span|p|i|b|s|u|sup|sub|small|big|math|nowiki|gallery|table|tr|td|th|center|code|pre|font)\b[^<>]*>"
    r"|&(?:nbsp|ndash|mdash|lt|gt|amp|quot|#\d+);|^(?:style|align|class|width)\s*="
)

pytestmark = pytest.mark.skipif(not DUMPS.exists(), reason=f"no {DUMPS}")


def pages_of(name):
    return list(read_pages(read_blocks(str(DUMPS / name), 1), name, Site()))


@pytest.mark.parametrize(
    ("name", "pages", "articles_namespace", "redirects"),
    [(ENGLISH, 206, 205, 100), (SMALL, 2004, 1050, 195), (TINY, 8, 8, 0)],
)
def test_counts(name, pages, articles_namespace, redirects):
    found = pages_of(name)
    assert len(found) == pages
    assert sum(page.namespace == 0 for page in found) == articles_namespace
    assert sum(page.redirect for page in found) == redirects


@pytest.mark.parametrize(("name", "documents", "empty"), [(ENGLISH, 106, 0), (SMALL, 895, 8), (TINY, 8, 0)])
def test_hardly_any_markup_is_left(name, documents, empty):
    tally = Tally()
    texts = [document.text for document in read_documents([DUMPS / name], ReadOptions(format="wikipedia"), tally)]
    assert (tally.documents, tally.empty, tally.faults) == (documents, empty, 0)
    lines = [line for text in texts for line in text.split("\n") if line]
    left = Counter(match[0] for line in lines if (match := MARKUP.search(line)))
    assert left.total() <= len(lines) / 1000, left


def test_a_known_article_reads_as_it_should():
    options = ReadOptions(format="wikipedia")
    [text] = [
        found.text for found in read_documents([DUMPS / ENGLISH], options) if found.text.startswith("Anarchism\n")
    ]
    assert text.startswith(
        "Anarchism\n\nAnarchism is a political philosophy that advocates self-governed societies based on voluntary "
        "institutions. These are often described as stateless societies, although"
    )
    assert "\n\nEtymology and terminology\nThe term anarchism is a compound word" in text
