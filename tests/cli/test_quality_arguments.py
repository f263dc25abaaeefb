import pytest
from tiny_text import one_line

from hornbook.cli.arguments import CommandParser, declared_values
from hornbook.cli.corpus_build import add_quality_arguments, quality_options
from hornbook.errors import UserError
from hornbook.text.quality.policy import QualityOptions, Tolerance


def parse(*words):
    parser = CommandParser(prog="hornbook corpus build")
    add_quality_arguments(parser)
    return parser.parse_args(words)


def test_nothing_is_asked_for_by_default():
    assert quality_options(parse()) == QualityOptions()
    assert declared_values(parse(), Tolerance) == {}


def test_every_option_arrives():
    words = "--min-characters 10 --min-words 3 --keep-matching a --keep-matching b --drop-matching c --language en"
    more = "--language de --language-probability 0.9 --drop-duplicates --drop-near-duplicates 0.7 --decontaminate a.txt"
    rest = "--decontaminate b.txt --decontaminate-field f --decontaminate-words 9 --decontaminate-overlap 2"
    rest += " --language-from record"
    assert quality_options(parse(*f"{words} {more} {rest}".split())) == QualityOptions(
        min_characters=10,
        min_words=3,
        keep_matching=("a", "b"),
        drop_matching=("c",),
        languages=("en", "de"),
        language_probability=0.9,
        language_from="record",
        exact_duplicates=True,
        near_duplicates=0.7,
        decontaminate=("a.txt", "b.txt"),
        decontaminate_field="f",
        decontaminate_words=9,
        decontaminate_overlap=2,
    )
    given = parse(*["--max-dropped", "0.9", "--allow", "dropped", "--allow", "empty-file"])
    assert declared_values(given, Tolerance) == {"max_dropped": 0.9, "allow": ("dropped", "empty-file")}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--min-words -1", ["--min-words", "-1"]),
        ("--drop-near-duplicates 1.5", ["--drop-near-duplicates", "1.5"]),
        ("--drop-near-duplicates 0", ["--drop-near-duplicates"]),
        ("--max-dropped 2", ["--max-dropped", "2"]),
        ("--allow empty-fil", ["empty-fil", 'did you mean "empty-file"?']),
        ("--language-probability 0.9", ["--language-probability has no effect without --language"]),
        ("--language-from record", ["--language-from has no effect without --language"]),
        ("--decontaminate-words 9", ["--decontaminate-words has no effect without --decontaminate;"]),
    ],
)
def test_mistakes_are_one_line(words, parts):
    with pytest.raises(UserError) as caught:
        quality_options(parse(*words.split()))
    assert one_line(caught.value, *parts)
