"""``hornbook corpus verify``: verify the hashes of all files of a corpus or a store.

hornbook corpus verify corpora/mine
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from hornbook.cli.corpus_inspect import describe_documents
from hornbook.cli.table import say
from hornbook.wording import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``corpus verify``."""
    parser.add_argument("store", metavar="STORE", help="corpus, store, or prefix of a .bin and .idx")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Verify each store of a corpus, and return what was checked."""
    from hornbook.corpora.store import splits_of
    from hornbook.corpora.store_manifest import BUILD, read_record
    from hornbook.corpora.verify import verify_store

    if (Path(arguments.store) / BUILD).exists():
        read_record(Path(arguments.store))  # raises DataError if it is damaged
    verified = []
    for split in splits_of(arguments.store) or ("train",):
        found = verify_store(arguments.store, split)
        hashed = f"{counted(len(found.files), 'file')} by their hashes"
        checked = hashed if found.files else "its structure (it has no hashes)"
        counts = f"{describe_documents(found.documents, found.sentences)}, {found.tokens:,} tokens"
        say(f"{found.store}: sound; checked {checked}, {counts}")
        verified.append(asdict(found))
    return {"stores": verified}
