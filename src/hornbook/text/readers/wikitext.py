r"""WikiText's files, article by article, split as systems A and B do.

    " \n = Robert Boulter = \n \n Robert Boulter is ... \n = = Career = = \n ... \n \n = Du Fu = \n \n Du Fu ..."
          ^ document at byte 2 ............................................................ ^ document ...

An article begins with a line `` = Title = `` between blank lines, or between a blank line and the start or end of the
file; the test split has similar lines inside paragraphs, from broken formulas (``= 1 henry and capacitance C =``). The
text is not changed: the concatenated documents are the file, except for blank lines before the first title. The data
set: Merity et al., "Pointer Sentinel Mixture Models", 2016.
"""

import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.text.readers.plain import Passage
from hornbook.text.reading import Document, Line, Outcome, ReadOptions, Source, read_lines

_TITLE: Final = re.compile(rb" ?= (?!= )[^\n]*(?<! =) = ?\r?\n?")
_LONGEST_TITLE: Final = 4096


def read_wikitext(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the articles of a WikiText file; nonblank text before the first title is also a document.

    A file with text but no title is not WikiText and gives an error.
    """
    passage = Passage(source, options)
    after_blank, has_title = True, False
    for line, following in pairwise(chain(read_lines(stream, options.max_line_bytes), (None,))):
        assert line is not None, "None is the last"
        content = line.content or b""
        is_title = len(content) <= _LONGEST_TITLE and _TITLE.fullmatch(content) is not None
        if after_blank and is_title and (following is None or _is_blank(following)):
            yield from passage.take()
            has_title = True
        passage.add(line)
        after_blank = _is_blank(line)
    rest = passage.take()
    if rest and isinstance(rest[0], Document) and not has_title:
        rest = [DataError(f"{source}: no line is a title of WikiText, ` = Title = `; use another `format`")]
    yield from rest


def _is_blank(line: Line) -> bool:
    return line.content is not None and not line.content.strip()
