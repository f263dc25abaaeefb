"""``hornbook tokenizer``: train a tokenizer, or encode and decode lines of standard input.

hornbook tokenizer train my-texts/ --vocab-size 4096 --output tokenizers/mine
hornbook tokenizer train my-texts/ --kind wordpiece --vocab-size 30522 --output tokenizers/bert
echo 'Hi there' | hornbook tokenizer encode --tokenizer tokenizers/gpt2      -> 17250 612
echo '17250 612' | hornbook tokenizer decode --tokenizer tokenizers/gpt2     -> Hi there
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hornbook.cli.arguments import TOKENIZER_HELP, positive_integer
from hornbook.cli.inputs import add_held_out_arguments, add_input_arguments, note, read_options, report_faults
from hornbook.cli.table import say
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.text.tokenizer import Tokenizer

T = TypeVar("T")
_KINDS = ("byte-bpe", "roberta", "wordpiece")
_MAX_LINE_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    train = commands.add_parser("train", help="train a tokenizer", description="Train a tokenizer on text.")
    add_input_arguments(train)
    train.add_argument("--vocab-size", type=positive_integer, default=4096, help="number of tokens")
    train.add_argument(
        "--kind",
        choices=_KINDS,
        default="byte-bpe",
        help="byte-bpe: GPT-2's byte-level BPE; roberta: the same with RoBERTa's special tokens; "
        "wordpiece: BERT's WordPiece",
    )
    train.add_argument(
        "--cased", action="store_true", help="keep case and accents; for wordpiece, the other kinds always do"
    )
    add_held_out_arguments(train, does="skip what `corpus build` holds out with this option:")
    train.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for tokenizer.json")
    train.set_defaults(handler=train_command)
    encode = commands.add_parser(
        "encode", help="encode text", description="Convert each line of text on standard input to a line of ids."
    )
    encode.set_defaults(handler=encode_command)
    decode = commands.add_parser(
        "decode", help="decode ids", description="Convert each line of ids on standard input to a line of text."
    )
    decode.set_defaults(handler=decode_command)
    for command in (encode, decode):
        command.add_argument("--tokenizer", required=True, metavar="PATH", help=TOKENIZER_HELP)


def train_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Train a tokenizer and save it; never replace another one."""
    from hornbook.corpora.building.tokenizer import train_tokenizer

    started = time.monotonic()
    report = train_tokenizer(
        arguments.inputs,
        arguments.output,
        vocab_size=arguments.vocab_size,
        kind=arguments.kind,
        cased=arguments.cased,
        validation=arguments.validation,
        validation_tail=arguments.validation_tail,
        reading=read_options(arguments),
        on_notice=note,
    )
    seconds = time.monotonic() - started
    path, tokenizer, tally = arguments.output / "tokenizer.json", report.tokenizer, report.tally
    report_faults(tally.faults, tally.messages)
    few = (
        "" if tokenizer.vocab_size == arguments.vocab_size else f"; the text gave no more than {tokenizer.vocab_size:,}"
    )
    say(
        f"{path}: {tokenizer.vocab_size:,} tokens, from {counted(report.documents, 'document')} in {seconds:.1f} s{few}"
    )
    return {
        "output": path,
        "vocab_size": tokenizer.vocab_size,
        "digest": tokenizer.digest,
        "documents": report.documents,
        "held_out": report.held_out,
        "bytes": tally.num_bytes,
        "empty": tally.empty,
        "faults": tally.faults,
        "messages": tally.messages,
        "seconds": round(seconds, 3),
    }


def encode_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Write the ids of each line of text, or return them for ``--json``."""

    def encode(tokenizer: "Tokenizer", line: bytes) -> tuple[list[int], int]:
        ids = tokenizer.encode(line.decode())
        return ids, len(ids)

    return _each_line(arguments, "ids", encode, lambda ids: " ".join(map(str, ids)))


def decode_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Write the text of each line of ids, or return it for ``--json``."""

    def decode(tokenizer: "Tokenizer", line: bytes) -> tuple[str, int]:
        words = line.decode().split()
        return tokenizer.decode([_read_id(word, tokenizer) for word in words]), len(words)

    return _each_line(arguments, "texts", decode, str)


def _read_id(word: str, tokenizer: "Tokenizer") -> int:
    from hornbook.errors import DataError

    number = int(word) if word.isascii() and word.isdigit() and len(word) < 10 else -1
    if not 0 <= number < tokenizer.vocab_size:
        raise DataError(f"{word!r:.40} is not a token id; expected 0 to {tokenizer.vocab_size - 1}")
    return number


def _each_line(
    arguments: argparse.Namespace,
    name: str,
    work: Callable[["Tokenizer", bytes], tuple[T, int]],
    shown: Callable[[T], str],
) -> dict[str, object]:
    """Process standard input line by line, flushing each result, so that programs can interact with the command.

    The output ends with a newline if the input does.

    Args:
        arguments: with the tokenizer; with ``--json``, results are returned instead of written.
        name: key of the results in the returned object.
        work: returns the result for a line, and its number of tokens.
        shown: converts a result to a line.

    Raises:
        DataError: a line is too long, not UTF-8, or invalid; the message has its number.
    """
    from hornbook.errors import DataError
    from hornbook.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(arguments.tokenizer)
    answers: list[T] = []
    num_lines = num_tokens = 0
    for line in _lines():
        num_lines += 1
        try:
            answer, tokens = work(tokenizer, line.removesuffix(b"\n"))
        except UnicodeDecodeError as error:
            raise DataError(f"standard input, line {num_lines}: not UTF-8 at byte {error.start}; convert it") from error
        except DataError as error:
            raise DataError(f"standard input, line {num_lines}: {error}") from error
        num_tokens += tokens
        if arguments.json:
            answers.append(answer)
            continue
        sys.stdout.buffer.write(shown(answer).encode() + b"\n" * line.endswith(b"\n"))
        sys.stdout.buffer.flush()
    return {"lines": num_lines, "tokens": num_tokens} | ({name: answers} if arguments.json else {})


def _lines() -> Iterator[bytes]:
    from hornbook.errors import DataError

    number = 0
    while line := sys.stdin.buffer.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise DataError(f"standard input, line {number}: longer than {_MAX_LINE_BYTES >> 20} MiB; split it")
        yield line
