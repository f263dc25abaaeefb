import bz2
import io
import random

import pytest
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.text.documents import ReadOptions, Tally, read_documents
from hornbook.text.reading import CleanOptions
from hornbook.wikipedia import reader
from hornbook.wikipedia.reader import read_extracted

FILE = b"""<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
Anarchism

Anarchism is a &lt;political&gt; philosophy &amp; more.

</doc>
<doc id="13" url="" revid="5" title="Rock &amp; &quot;Roll&quot;">
Rock &amp; "Roll"

</doc>
<doc id="14" url="" title="Other">
No title here.
</doc>
"""


def read(data, titles=True):
    return list(read_extracted(io.BytesIO(data), "wiki_00", titles=titles))


def test_documents():
    texts = read(FILE)
    assert [text for text, _ in texts] == [
        "Anarchism\n\nAnarchism is a <political> philosophy & more.",
        "",
        "No title here.",
    ]
    assert all(FILE[offset:].startswith(b"<doc id=") for _, offset in texts)


@pytest.mark.parametrize("titles", [True, False])
def test_a_title_with_nothing_but_blanks_is_no_text(titles):
    assert read(b'<doc id="1" url="" title="a">\na\n\n \t\n</doc>\n', titles) == [("", 0)]


def test_titles_can_be_dropped():
    assert [text for text, _ in read(FILE, titles=False)] == [
        "Anarchism is a <political> philosophy & more.",
        "",
        "No title here.",
    ]


def test_its_folders_are_read_as_they_are(tmp_path):
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / "wiki_00").write_bytes(FILE)
    (tmp_path / "AA" / "wiki_01.bz2").write_bytes(bz2.compress(FILE))
    tally = Tally()
    options = ReadOptions(format="wikiextractor", cleaning=CleanOptions(titles="drop"))
    documents = list(read_documents([tmp_path], options, tally))
    assert [document.text for document in documents] == [
        "Anarchism is a <political> philosophy & more.",
        "No title here.",
    ] * 2
    assert tally.empty == 2 and documents[0].offset == 0 and documents[3].source.endswith("wiki_01.bz2")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"text\n", "line 1: expected a line like <doc id"),
        (FILE[:-8], "ends in the middle of a document"),
        (FILE.replace(b"</doc>\n", b"", 1), "line 6: a document begins inside another"),
        (b"<doc id=12>\n</doc>\n", "line 1: expected <doc id"),
        (b'<doc id="1" url="" title="a">\n\xff\n</doc>\n', "line 3: the document that ends here is not UTF-8"),
        (b"</doc>\n", "line 1: expected a line like"),
    ],
)
def test_other_files_are_refused_in_one_line(data, part):
    with pytest.raises(DataError) as caught:
        for item in read(data):
            if isinstance(item, DataError):
                raise item
    assert one_line(caught.value, "wiki_00", part), str(caught.value)


def test_long_documents_are_faults(monkeypatch):
    monkeypatch.setattr(reader, "MAX_PAGE_BYTES", 100)
    data = (
        b'<doc id="1" url="" title="a">\n' + b"x" * 250 + b"\n</doc>\n" + b'<doc id="1" url="" title="b">\ny\n</doc>\n'
    )
    fault, (text, _) = read(data)
    assert text == "y" and one_line(fault, "line 5", "longer than 100 B")


def test_mutated_files_raise_data_errors_alone():
    generator = random.Random(7)
    outcomes = set()
    for _ in range(1000):
        data = bytearray(FILE)
        for _ in range(generator.choice((1, 2, 5))):
            start = generator.randrange(len(data))
            if generator.random() < 0.5:
                data[start] = generator.randrange(256)
            else:
                del data[start : start + generator.randrange(80)]
        try:
            outcomes |= {"refused" if isinstance(item, DataError) else "read" for item in read(bytes(data))}
        except DataError as error:
            assert one_line(error, "wiki_00")
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
