"""``hornbook generate`` for encoders: fill the masks of texts.

hornbook generate runs/bert-mini --prompt "The cat sat on the [MASK]." --top-k 3

The cat sat on the mat.
  mat 0.312   floor 0.120   table 0.066
"""

import json
import sys
from collections.abc import Iterator, Sequence

from hornbook.cli.conversation import answer_lines
from hornbook.cli.texts import Output, Screen
from hornbook.generate.fill_mask import Filled, GapFiller, Gapped
from hornbook.wording import one_line


def fill_all(filler: GapFiller, requests: Sequence[Gapped], output: Output, *, batch_size: int) -> None:
    """Fill the masks of texts in batches of ``batch_size``, and print each result."""
    screen = Screen()
    for start in range(0, len(requests), batch_size):
        for filled in filler.fill(requests[start : start + batch_size]):
            _show(filled, output, screen)


def fill_typed(filler: GapFiller, output: Output) -> None:
    """Read texts from the terminal and fill their masks until the input ends."""
    screen = Screen()
    print("enter a text with a mask; Ctrl-D exits", file=sys.stderr)
    answer_lines(lambda line: _show(filler.fill([filler.request(line)])[0], output, screen), screen)


def _show(filled: Filled, output: Output, screen: Screen) -> None:
    output.add(filled)
    if not output.as_json:
        screen.write_prompt(filled.text)
        screen.write("".join(f"\n{line}" for line in _lines(filled)))
        screen.end_line()


def _lines(filled: Filled) -> Iterator[str]:
    for gap in filled.gaps:
        named = ((guess.token.strip() or json.dumps(guess.token), guess.probability) for guess in gap)
        yield "  " + "   ".join(f"{one_line(token)} {probability:#.3g}" for token, probability in named)
