"""Draw line charts in a terminal with Braille dots, two wide and four high per character cell.

    Training loss (nats, logarithmic)
      7 ┤⢣
      5 ┤⠈⢆⢇                      each curve ends at its label, so that colors are not needed
      3 ┤  ⠑⠢⣀⡀           B
      2 ┤     ⠈⠉⠒⠤⠤⣀⣀     A
        └┬─────────┬─────────
         0        500           step

If the output cannot encode Braille, each cell has the label of its run instead.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from hornbook.track import units
from hornbook.track.charts import Axis, decimate, x_axis, y_axis
from hornbook.track.curves import Chart
from hornbook.wording import one_line

COLORS = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_blue", "bright_red")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of U+2800 by column and row."""
_ACROSS, _DOWN = 2, 4
_HEIGHT = 12
_LEAST_WIDTH = 20


def draw(chart: Chart, width: int, *, unicode: bool = True) -> list[Text]:
    """Return the lines of a chart.

    Args:
        chart: a chart with at least one value.
        width: width of the terminal in characters; at least about 40 are used.
        unicode: whether Braille and box characters may be used.
    """
    lines_of_points = [curve.points for curve in chart.curves]
    x, y = x_axis(lines_of_points), y_axis(lines_of_points)
    ticks = {_row(y, tick): units.tick(tick) for tick in y.ticks(4)}
    left = max(map(len, ticks.values()), default=0) + 2
    right = 1 + sum(len(curve.label) for curve in chart.curves)
    canvas = _Canvas(max(_LEAST_WIDTH, width - left - 1 - right), _HEIGHT)
    ends: dict[int, Text] = {}
    for curve in chart.curves:
        last = _draw_curve(canvas, curve.number, curve.label, decimate(curve.points), x, y)
        ends.setdefault(last, Text()).append(curve.label, style=COLORS[curve.number % len(COLORS)])
    scale = ", logarithmic" if y.logarithmic else ""
    wall, corner, floor, mark = ("┤", "└", "─", "┬") if unicode else ("|", "+", "-", "+")
    lines = [Text(one_line(f"{chart.title} ({chart.unit}{scale})"), style="bold")]
    for row in range(_HEIGHT):
        line = Text(f"{ticks.get(row, ''):>{left - 1}} {wall}")
        line.append_text(canvas.line(row, unicode=unicode))
        line.append(" ").append_text(ends.get(row, Text())).rstrip()
        lines.append(line)
    return [*lines, *_axis_lines(chart, x, canvas.width, left, (corner, floor, mark))]


def _axis_lines(chart: Chart, x: Axis, width: int, left: int, parts: tuple[str, str, str]) -> Iterator[Text]:
    """Yield the horizontal axis with its labels, and its name below."""
    corner, floor, mark = parts
    line, labels = [floor] * width, [" "] * (width + left)
    for tick in x.ticks(5):
        at, text = min(width - 1, int(x.place(tick) * width)), units.tick(tick)
        start = max(0, min(left + at - len(text) // 2, width + left - len(text)))
        if all(label == " " for label in labels[max(0, start - 1) : start + len(text) + 1]):
            line[at] = mark
            labels[start : start + len(text)] = text
    yield Text(f"{' ' * left}{corner}{''.join(line)}")
    yield Text(f" {''.join(labels)}".rstrip())
    yield Text(f"{chart.over:>{width + left + 1}}")


def _row(y: Axis, value: float) -> int:
    """Return the row of cells of a value, from the top."""
    return _HEIGHT - 1 - min(_HEIGHT - 1, int(y.place(value) * _HEIGHT))


def _draw_curve(
    canvas: "_Canvas", number: int, label: str, points: Sequence[tuple[float, float | None]], x: Axis, y: Axis
) -> int:
    """Draw the lines between consecutive values and return the row of the last one."""
    before: tuple[int, int] | None = None
    last = 0
    for place, value in points:
        if value is None:
            before = None
            continue
        here = canvas.dot(x.place(place), y.place(value))
        canvas.line_to(before or here, here, number, label)
        before, last = here, here[1] // _DOWN
    return last


class _Canvas:
    """Cells of Braille dots; a cell has the color and label of the run last drawn in it."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self._height = width, height
        self._cells: dict[tuple[int, int], tuple[int, int, str]] = {}

    def dot(self, across: float, up: float) -> tuple[int, int]:
        """Return column and row of the dot at shares of the width and, from below, of the height."""
        columns, rows = self.width * _ACROSS, self._height * _DOWN
        return min(columns - 1, int(across * columns)), rows - 1 - min(rows - 1, int(up * rows))

    def line_to(self, start: tuple[int, int], end: tuple[int, int], number: int, label: str) -> None:
        """Set the dots on the line between two dots."""
        num_dots = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for at in range(num_dots + 1):
            share = at / num_dots
            column = round(start[0] + share * (end[0] - start[0]))
            row = round(start[1] + share * (end[1] - start[1]))
            cell = (row // _DOWN, column // _ACROSS)
            dots = self._cells.get(cell, (0, 0, ""))[0] | _DOTS[column % _ACROSS][row % _DOWN]
            self._cells[cell] = (dots, number, label)

    def line(self, row: int, *, unicode: bool) -> Text:
        """Return a row of cells."""
        line = Text()
        for column in range(self.width):
            if (row, column) not in self._cells:
                line.append(" ")
                continue
            dots, number, label = self._cells[row, column]
            line.append(chr(0x2800 + dots) if unicode else label[0], style=COLORS[number % len(COLORS)])
        return line
