"""``hornbook corpus``: build, convert and inspect token stores.

hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.02 --output corpora/mine
hornbook corpus inspect corpora/mine
hornbook corpus verify corpora/mine
"""

import argparse
import importlib
from typing import Final

from hornbook.cli.arguments import CommandParser

SUBCOMMANDS: Final = {
    "build": "tokenize text into a corpus",
    "download": "download a Wikipedia dump",
    "convert": "convert tokenized files between formats",
    "instances": "write masked sentence pairs for BERT",
    "inspect": "show sizes, sources and samples of a corpus",
    "verify": "verify the checksums of all files",
    "which": "show the documents that a step of a run was trained on",
}
"""Help text of each subcommand, which is implemented in ``hornbook.cli.corpus_<subcommand>``, imported on demand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands; each declares its arguments when it is selected."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, line in SUBCOMMANDS.items():
        description = f"{line[0].upper()}{line[1:]}."
        command = commands.add_parser(name, help=line, description=description)
        assert isinstance(command, CommandParser), "subparsers have the class of their parser"
        command.module = f"hornbook.cli.corpus_{name}"


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the selected subcommand and return its result."""
    module = importlib.import_module(f"hornbook.cli.corpus_{arguments.subcommand}")
    result: dict[str, object] = module.run(arguments)
    return result
