import sys
import time

import pytest
from tiny_documents import document, kept
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.text.quality.filters import SAMPLED_CHARACTERS, Language, Length, Pattern, middle, record_code
from hornbook.text.reading import Document

ENGLISH = "The ship sailed at noon, and nobody on the quay could say where she was bound for."
GERMAN = "Das Schiff lief am Mittag aus, und niemand am Kai konnte sagen, wohin die Reise ging."
FRENCH = "Le navire est parti à midi, et personne sur le quai ne pouvait dire où il allait."


@pytest.fixture
def missing(monkeypatch):
    """Make a library look as if it were not installed."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


def test_short_documents_go():
    texts = ["", "  a b c  ", "abcd", "a b c d", "\n ab\u3000cd ef\tg"]
    assert kept(Length(min_characters=5), texts) == ["  a b c  ", "a b c d", "\n ab\u3000cd ef\tg"]
    assert kept(Length(min_characters=6), texts) == ["a b c d", "\n ab\u3000cd ef\tg"]
    assert kept(Length(min_words=3), texts) == ["  a b c  ", "a b c d", "\n ab\u3000cd ef\tg"]
    assert kept(Length(min_characters=6, min_words=4), texts) == ["a b c d", "\n ab\u3000cd ef\tg"]
    assert kept(Length(min_characters=5, min_words=4), ["abcdef"]) == []


def test_length_cannot_be_negative():
    with pytest.raises(UserError) as caught:
        Length(min_words=-1)
    assert one_line(caught.value, "-1", "expected 0 or more")


def test_patterns_keep_or_drop():
    texts = ["A whale!", "whales\nand ships", "ships", "Größe"]
    assert kept(Pattern(r"(?i)WHALE\b", "keep"), texts) == ["A whale!"]
    assert kept(Pattern("whale", "drop"), texts) == ["ships", "Größe"]
    assert kept(Pattern(r"(?m)^and", "keep"), texts) == ["whales\nand ships"]
    assert kept(Pattern(r"ö\pL", "keep"), texts) == ["Größe"]


def test_a_pattern_that_would_keep_a_backtracking_engine_busy_takes_no_time():
    text = "a" * 1_000_000 + "b"  # for `re`, some dozens would be too many
    started = time.process_time()
    assert Pattern("^(a+)+$", "drop").keeps(document(text))
    assert time.process_time() - started < 2


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "(?=a)", r"(a)\1", "\ud800", "[z-a]"])
def test_bad_patterns_are_one_line(pattern, capfd):
    with pytest.raises(UserError) as caught:
        Pattern(pattern, "keep")
    assert one_line(caught.value, repr(pattern), "RE2")
    assert capfd.readouterr().err == ""  # the library has a log of its own


def test_languages():
    texts = [ENGLISH, GERMAN, FRENCH]
    assert kept(Language(["en"], 0.5), texts) == [ENGLISH]
    assert kept(Language(["de", "fr"], 0.5), texts) == [GERMAN, FRENCH]
    assert kept(Language(["en"], 0.5), ["", "12 34"]) == []
    assert kept(Language(["en"], 0.0), texts) == texts


@pytest.mark.slow
def test_languages_of_records_come_first_if_asked_for():
    pages = [
        Document(text, "a.wet", 0, 0, languages)
        for text in (ENGLISH, GERMAN)
        for languages in ("eng", "deu,eng", None, "pcm")
    ]

    def found(*languages, source):
        chosen = Language(languages, 0.5, source)
        return [page.languages for page in pages if chosen.keeps(page)]

    assert found("de", source="text") == ["eng", "deu,eng", None, "pcm"]
    assert found("de", source="record") == ["deu,eng", "deu,eng", None], "without a record, by the text"
    assert found("en", "pcm", source="record") == ["eng", None, "pcm", "eng", "pcm"]
    assert found("zh", source="record") == []


def test_each_code_of_the_library_has_one_of_records():
    labels = Language(["en"], 0.5)._identifier.labels
    assert all(len(record_code(label)) == 3 for label in labels)
    assert len({record_code(label) for label in labels}) == len(labels)
    assert [record_code(label) for label in ("de", "zh", "el", "pcm")] == ["deu", "zho", "ell", "pcm"]


def test_the_language_is_that_of_the_middle():
    text = GERMAN * 20 + ENGLISH * 100 + FRENCH * 20
    assert kept(Language(["en"], 0.9), [text]) == [text]
    assert len(middle(text)) == SAMPLED_CHARACTERS and middle(text) in ENGLISH * 100
    assert middle(ENGLISH) == ENGLISH


def test_bad_languages_are_one_line():
    with pytest.raises(UserError) as caught:
        Language(["en", "english"], 0.5)
    assert one_line(caught.value, "'english'", "such as de, en or zh")
    with pytest.raises(UserError) as caught:
        Language(["en"], 1.5)
    assert one_line(caught.value, "1.5", "expected 0 to 1")


def test_missing_extras_are_named(missing):
    missing("re2")
    with pytest.raises(UserError) as caught:
        Pattern("a", "keep")
    assert one_line(caught.value, "filtering by patterns needs re2: ", "-m pip install 'hornbook[patterns]'")
    missing("py3langid.langid")
    with pytest.raises(UserError) as caught:
        Language(["en"], 0.5)
    assert one_line(caught.value, "filtering by language needs py3langid: ", "-m pip install 'hornbook[language]'")
