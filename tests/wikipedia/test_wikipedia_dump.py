import random

import pytest
from tiny_text import one_line
from tiny_wiki import HEAD, dump, many_pages, page, tiny_dump

from hornbook.errors import DataError
from hornbook.wikipedia.dump import Site, read_pages


def read(data, block=1000, **options):
    blocks = (data[start : start + block] for start in range(0, len(data), block))
    return list(read_pages(blocks, "x.xml", Site(), **options))


def fails(data, *parts, **options):
    with pytest.raises(DataError) as caught:
        read(data, **options)
    assert one_line(caught.value, "x.xml", *parts), str(caught.value)


@pytest.mark.parametrize("block", [1, 7, 1000, 1 << 20])
def test_pages_with_their_fields(block):
    data = tiny_dump()
    pages = read(data, block)
    assert [found.title for found in pages] == ["Seine", "Stream", "Pļāpa:Seine", "Style", "Void", "Paris & co"]
    assert [found.is_article for found in pages] == [True, False, False, False, True, True]
    assert [found.namespace for found in pages] == [0, 0, 1, 0, 0, 0]
    assert pages[-1].text == "A ''city''."
    assert all(data[found.offset :].startswith(b"<page>") for found in pages)


def test_the_dump_names_its_namespaces():
    site = Site()
    list(read_pages([tiny_dump()], "x.xml", site))
    assert (site.namespaces["fails"], site.namespaces["kategoreja"]) == (6, 14)


def test_old_dumps_are_recognized_by_their_names():
    data = dump(
        [
            page("Pļāpa:A", "talk", namespace=None),
            page("Other: a film", "#redirecting is an art", namespace=None),
            page("B", " #Redirect [[A]]", namespace=None),
        ]
    )
    talk, film, redirect = read(data)
    assert talk.namespace == 1 and film.is_article and redirect.redirect
    [new] = read(dump([page("B", "#REDIRECT nowhere")]))
    assert new.is_article, "where there are fields, they count alone"


def test_the_last_revision_counts():
    twice = page("A", "old").replace("</revision>", "</revision><revision><text>new</text></revision>")
    assert [found.text for found in read(dump([twice]))] == ["new"]


def test_a_page_that_is_too_long_is_reported():
    data = dump([page("Long", "é" * 600), page("Next", "a")])
    fault, found = read(data, max_page_bytes=1024)
    assert one_line(fault, "x.xml", "the page 'Long' is longer than 1.0 KiB") and found.title == "Next"
    assert len(read(data, max_page_bytes=1200)) == 2


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (f'<!DOCTYPE m [<!ENTITY l0 "ha">{LAUGHS}]><mediawiki>&l9;</mediawiki>'.encode(), "document type"),
        (b'<!DOCTYPE m SYSTEM "file:///etc/passwd"><mediawiki/>', "document type"),
        (HEAD.encode() + b"<page><title>&xxe;</title></page>", "undefined entity"),
        (HEAD.encode() + b"<a>" * 100_000, "nested more than 16 deep"),
        (HEAD.encode() + b'<page a="' + b"x" * (3 << 20), "a tag longer than"),
        (HEAD.encode() + b"<!--" + b"x" * (3 << 20), "a tag longer than"),
        (HEAD.encode() + b"<page><title>" + b"x" * 5000 + b"</title>", "a title longer than 4096"),
        (HEAD.encode() + b"<page><ns>1e9</ns>", "number of a namespace"),
        (HEAD.encode().replace(b'key="6"', b'key="x"'), "number of a namespace"),
        (b"<html><body></body></html>", "expected <mediawiki>, found <html>"),
        (tiny_dump()[:-3], "not well-formed"),
        (tiny_dump().replace("ļ".encode(), b"\xff"), "not well-formed"),
        (tiny_dump() + b"more", "junk after document element"),
        (b"", "no element found"),
        (b"plain text", "not well-formed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_xml_is_one_line(data, part):
    fails(data, part, block=64 << 10)


def test_too_many_namespaces():
    more = "".join(f'<namespace key="{n}">n{n}</namespace>' for n in range(11_000))
    fails(HEAD.replace("</namespaces>", f"{more}</namespaces>").encode(), "more than 10000 namespaces")


def test_mutated_dumps_raise_data_errors_alone():
    generator = random.Random(20260101)
    whole = dump(many_pages(3))
    outcomes = set()
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(generator.choice((1, 1, 3, 10))):
            start = generator.randrange(len(data))
            kind = generator.randrange(4)
            if kind == 0:
                data[start] = generator.randrange(256)
            elif kind == 1:
                del data[start : start + generator.randrange(200)]
            elif kind == 2:
                data[start:start] = data[generator.randrange(len(data)) :][: generator.randrange(100)]
            else:
                data[start:start] = generator.choice(
                    (b"<", b"&", b"]]>", b"<![CDATA[", b"<!--", b"<page>", b"\0", b"<ns>")
                )
        try:
            read(bytes(data), 256)
            outcomes.add("read")
        except DataError as error:
            assert one_line(error, "x.xml")
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_dump_is_utf_8_whatever_it_says():
    data = b'<?xml version="1.0" encoding="utf-7"?>' + dump([page("Pļāpa", "a")])
    assert [found.title for found in read(data)] == ["Pļāpa"]


def test_cdata_is_text():
    text = page("A", "x").replace("x</text>", "<![CDATA[a </page> b]]></text>")
    assert [found.text for found in read(dump([text]))] == ["a </page> b"]
