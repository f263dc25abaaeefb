"""The arguments that say which documents of a corpus stay, and what of the outcome is acceptable.

hornbook corpus build web/ --min-words 50 --drop-duplicates --drop-near-duplicates 0.8 --decontaminate lambada.jsonl ...
hornbook corpus build src/ --suffix .py --allow empty-file ...
"""

import argparse
from typing import Final

from hornbook.cli.arguments import fraction, natural_number, positive_fraction, positive_integer
from hornbook.errors import UserError
from hornbook.text.quality.policy import (
    DEFAULT_LANGUAGE_PROBABILITY,
    DEFAULT_OVERLAP_WORDS,
    KINDS,
    MOST_DROPPED,
    QualityOptions,
    Tolerance,
)

_NEEDS: Final = {
    "language_probability": "--language",
    "decontaminate_field": "--decontaminate",
    "decontaminate_words": "--decontaminate",
    "decontaminate_overlap": "--decontaminate",
}
"""Options that refine another one, which is a list."""


def add_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the filters and what is checked at the end."""
    group = parser.add_argument_group("which documents stay", "every one that is dropped is counted under one filter")
    _add_simple(group)
    _add_comparing(group)
    outcome = parser.add_argument_group("what of the outcome is acceptable", "a corpus that looks wrong is an error")
    outcome.add_argument(
        "--max-dropped",
        type=fraction,
        default=MOST_DROPPED,
        metavar="SHARE",
        help=f"of the documents, by these filters (default: {MOST_DROPPED:g})",
    )
    outcome.add_argument(
        "--allow",
        action="append",
        choices=KINDS,
        default=[],
        metavar="KIND",
        help=f"accept this: {', '.join(KINDS)}; repeatable",
    )


def _add_simple(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--min-characters", type=natural_number, default=0, metavar="N", help="drop what is shorter")
    group.add_argument("--min-words", type=natural_number, default=0, metavar="N", help="drop what has fewer")
    group.add_argument(
        "--keep-matching",
        action="append",
        default=[],
        metavar="RE",
        help="drop what this regular expression (RE2's) is not found in; repeatable",
    )
    group.add_argument(
        "--drop-matching", action="append", default=[], metavar="RE", help="drop what this one is found in; repeatable"
    )
    group.add_argument(
        "--language",
        action="append",
        default=[],
        metavar="CODE",
        help="drop what is not in this language, as in en; repeatable: one of them",
    )
    group.add_argument(
        "--language-probability",
        type=fraction,
        metavar="P",
        help=f"that it is in one of them, at least (default: {DEFAULT_LANGUAGE_PROBABILITY:g})",
    )


def _add_comparing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--drop-duplicates", action="store_true", help="drop what equals an earlier document but for white space"
    )
    group.add_argument(
        "--drop-near-duplicates",
        type=positive_fraction,
        metavar="SHARE",
        help="drop what has such a share of 5-word sequences in common with a document that stayed, as in 0.8",
    )
    group.add_argument(
        "--decontaminate",
        action="append",
        default=[],
        metavar="FILE",
        help="drop what overlaps this evaluation set, a file (text, JSONL, Parquet); repeatable",
    )
    group.add_argument("--decontaminate-field", metavar="NAME", help="where its records have the text (default: text)")
    group.add_argument(
        "--decontaminate-words",
        type=positive_integer,
        metavar="N",
        help=f"length of the sequences that are compared (default: {DEFAULT_OVERLAP_WORDS})",
    )
    group.add_argument(
        "--decontaminate-overlap",
        type=positive_integer,
        metavar="N",
        help="so many of them in common are too many (default: 1)",
    )


def quality_options(arguments: argparse.Namespace) -> QualityOptions:
    """Return which documents stay.

    Raises:
        UserError: an option was given that refines nothing.
    """
    refined = {name: getattr(arguments, name) for name in _NEEDS if getattr(arguments, name) is not None}
    for name in refined:
        if not getattr(arguments, _NEEDS[name].removeprefix("--")):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} does nothing without {_NEEDS[name]}; add that, or leave {option} out")
    return QualityOptions(
        min_characters=arguments.min_characters,
        min_words=arguments.min_words,
        keep_matching=tuple(arguments.keep_matching),
        drop_matching=tuple(arguments.drop_matching),
        languages=tuple(arguments.language),
        exact_duplicates=arguments.drop_duplicates,
        near_duplicates=arguments.drop_near_duplicates,
        decontaminate=tuple(arguments.decontaminate),
        **refined,
    )


def tolerance(arguments: argparse.Namespace) -> Tolerance:
    """Return what of the outcome is acceptable."""
    return Tolerance(max_dropped=arguments.max_dropped, allow=tuple(arguments.allow))
