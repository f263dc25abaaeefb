"""``hornbook corpus``: makes token stores and looks at them.

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
"""Every subcommand with its line of help; its module is ``hornbook.cli.corpus_<subcommand>``, imported if chosen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands; each declares its own arguments when it is chosen."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, line in SUBCOMMANDS.items():
        description = f"{line[0].upper()}{line[1:]}."
        command = commands.add_parser(name, help=line, description=description)
        assert isinstance(command, CommandParser), "subparsers are of their parser's class"
        command.module = f"hornbook.cli.corpus_{name}"


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the chosen subcommand; return its result."""
    module = importlib.import_module(f"hornbook.cli.corpus_{arguments.subcommand}")
    result: dict[str, object] = module.run(arguments)
    return result
