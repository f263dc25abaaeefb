"""Print tables whose columns are two spaces apart, with the last column wrapped to the terminal's width.

    recipe      layers
    gpt2-small      12  GPT-2 small (Radford et al. 2019,
                        there called 117M)

Files and pipes get one line per row, so that they can be searched by line. Other columns are never wrapped or
truncated: if they leave too little space for the last one, it is on lines of its own.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

_GAP = "  "
_LEAST_ROOM = 24
_INDENT = 4
_WIDEST_CELL = 24
_BEFORE_TEXT = re.compile(r"\s*(?:\S+\s{2,})*")


def say(*lines: str, error: bool = False) -> None:
    """Print lines, also of the library: arguments are spelled as options, and what controls a terminal is escaped.

    A terminal gets lines that break between words.

    Args:
        lines: of text.
        error: print to standard error.
    """
    from hornbook.wording import one_line, spelled

    stream = sys.stderr if error else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    for line in lines:
        text = one_line(spelled(line))
        print(text if width is None else wrap_line(text, width), file=stream, flush=error)


def print_columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "") -> None:
    """Print rows of equal length as a table.

    Args:
        rows: of texts; control characters are escaped.
        right: indices of right-aligned columns.
        indent: before each line.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in column_lines(rows, right=right, indent=indent, width=width):
        print(line)


def column_lines(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "", width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table, wrapped to ``width`` if it is given; other arguments as for `print_columns`."""
    from rich.cells import cell_len

    from hornbook.wording import one_line

    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1
    for row in cells:
        padded = []
        for number, (cell, wide) in enumerate(zip(row, widths, strict=True)):
            space = " " * (wide - cell_len(cell))
            padded.append(space + cell if number in right else cell if number == last else cell + space)
        before = indent + "".join(f"{cell}{_GAP}" for cell in padded[:-1])
        yield from _hanging(before, padded[-1], None if last in right else width, cell_len(before))


def print_side_by_side(rows: Sequence[Sequence[str]], width: int | None, *, right: bool = False) -> None:
    """Print a comparison with a column per item, split into several tables if the terminal is too narrow.

    Args:
        rows: a name and a cell for each item; the first row has the items' names.
        width: of the terminal; None for one line per row.
        right: whether to right-align short cells; long ones are wrapped and left-aligned.
    """
    for block in _side_by_side(rows, width):
        columns = range(1, len(block[0])) if right else ()
        for line in column_lines(block, right=columns):
            print(line)


def _side_by_side(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[Sequence[Sequence[str]]]:
    """Yield tables that fit the width: the names, and the cells of as many items as possible."""
    from hornbook.wording import one_line

    cells = [[one_line(cell) for cell in row] for row in rows]
    if width is None:
        yield cells
        return
    room = width - max(len(row[0]) for row in cells)
    widths = [min(_WIDEST_CELL, max(map(len, column))) for column in list(zip(*cells, strict=True))[1:]]
    start = 0
    while start < len(widths):
        end, block = start + 1, list[Sequence[str]]()
        while end < len(widths) and sum(widths[start : end + 1]) + len(_GAP) * (end + 1 - start) <= room:
            end += 1
        for name, *texts in cells:
            here = zip(texts[start:end], widths[start:end], strict=True)
            wrapped = (textwrap.wrap(cell, max(wide, 1)) for cell, wide in here)
            block += zip_longest([name], *wrapped, fillvalue="")
        yield block
        start = end


def wrap_line(line: str, width: int) -> str:
    """Wrap a line with a hanging indent: that of the line or, for a row of a table, the start of its last cell."""
    before = _BEFORE_TEXT.match(line)
    assert before is not None, "the pattern takes nothing, too"
    return "\n".join(_hanging(before[0], line[before.end() :], width, before.end()))


def _hanging(before: str, text: str, width: int | None, indent: int) -> Iterator[str]:
    room = None if width is None else width - indent
    if width is None or room is None or len(text) <= room or not text:
        yield f"{before}{text}".rstrip()
        return
    if room < _LEAST_ROOM:
        yield before.rstrip()
        before, indent = " " * _INDENT, _INDENT
        room = max(width - indent, _LEAST_ROOM)
    first, *others = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield f"{before}{first}".rstrip()
    yield from (f"{' ' * indent}{other}" for other in others)
