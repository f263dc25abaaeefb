import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import SHARED

from hornbook.errors import UserError
from hornbook.text.sentences import sentence_splitter, split_lines

PIECES = st.sampled_from(
    [*'aB."”“(! \n\r\t\u2028\u00a0\u0085。é😀', "Mr.", "\r\n\r\n", "1. ", "* ", "[1]", "e.g. ", "B.\u2028", "... "]
)


def test_sentences_are_those_of_a_reader():
    text = "Mr. Hill came at 5 p.m. with Dr. J. R. Wu.  Did he stay? It cost $3.50!\n\nNo. He\r\nleft. "
    assert [sentence.strip() for sentence in sentence_splitter()(text)] == [
        "Mr. Hill came at 5 p.m. with Dr. J. R. Wu.",
        "Did he stay?",
        "It cost $3.50!",
        "No.",
        "He\r\nleft.",
    ]
    assert sentence_splitter("de")("Er kam z. B. am 5. Mai. Dann ging er.") == [
        "Er kam z. B. am 5. Mai.",
        " Dann ging er.",
    ]


def test_white_space_belongs_to_the_sentence_after_it():
    assert sentence_splitter()(" One.  Two.\n\nThree. \n") == [" One.", "  Two.", "\n\nThree. \n"]
    assert split_lines("one\r\n\n two\rthree \n\n") == ["one", "\r\n\n two", "\rthree \n\n"]
    for split in (sentence_splitter(), split_lines):
        assert split("") == split(" \n\n\t") == []


def test_a_quotation_alone_is_split_and_one_within_a_sentence_is_not():
    assert sentence_splitter()("“Come in. Sit down.” She sat.") == ["“Come in.", " Sit down.”", " She sat."]
    assert sentence_splitter()('"Come in."') == ['"Come in."']
    assert sentence_splitter()('He said: "Come in. Sit down." She sat.') == [
        'He said: "Come in. Sit down."',
        " She sat.",
    ]


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60), st.sampled_from(["en", "de", "ja", "xx"]))
def test_sentences_together_are_the_text(text, language):
    for sentences in (sentence_splitter(language)(text), split_lines(text)):
        assert "".join(sentences) == text or (not text.strip() and not sentences)
        assert all(sentence.strip() for sentence in sentences)


def test_a_paragraph_without_an_end_is_cut_at_a_space():
    text = "ab " * 100_000 + "x" * 50_000 + '" b. ' * 50_000
    sentences = sentence_splitter()(text)
    assert "".join(sentences) == text
    assert max(map(len, sentences)) <= 20_001
    assert not any(sentence.startswith("b ") for sentence in sentences)


@pytest.mark.parametrize("file", ["text/bert_sample_text.txt", "text/books/sherlock_holmes.txt"])
def test_real_texts_come_back(file):
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_bytes().decode("utf-8")
    for sentences in (sentence_splitter()(text), split_lines(text)):
        assert "".join(sentences) == text
        assert 20 < sorted(map(len, sentences))[len(sentences) // 2] < 150


def test_what_is_wrong_is_said():
    with pytest.raises(UserError, match="'English' is no language code; expected one such as en"):
        sentence_splitter("English")
    with pytest.raises(UserError, match="lone surrogates"):
        sentence_splitter()("a \ud800 b.")


def test_a_language_without_rules_is_reported():
    notices = []
    own = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
    for language in f"{own} en-gb gl lb pt-br".split(" "):
        sentence_splitter(language, notices.append)
    assert notices == [], "it has rules of its own, or a related one has"
    for language in ("xx", "zh", "enm"):
        sentence_splitter(language, notices.append)
    assert [notice.partition(";")[0] for notice in notices] == [
        f"no rules for {language!r}" for language in ("xx", "zh", "enm")
    ]
    assert all("\n" not in notice and notice.endswith("by the rules for English") for notice in notices)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(UserError, match=r"sentencex: .* -m pip install 'hornbook\[sentences\]'"):
        sentence_splitter()
    assert split_lines("a\nb") == ["a", "\nb"]


def test_the_library_is_imported_when_it_is_needed():
    code = "import sys, hornbook.text.sentences; sys.exit('sentencex' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
