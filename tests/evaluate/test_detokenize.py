import pytest
from tiny_tasks import GPT2, WIKITEXT_2_RAW, WIKITEXT_103

from hornbook.evaluate.wikitext_perplexity import count_words, detokenize_wikitext, join_rows
from hornbook.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("tokenized", "plain"),
    [
        ("the dogs ' tails", "the dogs' tails"),
        ("M @-@ 82", "M-82"),
        ("1 @,@ 000 @.@ 5", "1,000.5"),
        ("a : b ; c . d ! e ? f , g", "a: b; c. d! e? f, g"),
        ("( x ) [ x ] { x }", "(x) [x] {x}"),
        ('said " yes " and', 'said "yes" and'),
        ("said ' yes ' and", "said 'yes' and"),
        ("= = = = A = = = =", "==== A ===="),
        ("= = = A = = =", "=== A ==="),
        (" = = A = = ", " == A == "),
        (" = A = \n \n text \n", " = A =\n\ntext\n"),
        ("5 \N{DEGREE SIGN} C", "5\N{DEGREE SIGN}C"),
        ("N N from N to", "N 1 from 1 to"),
        ("Bob 's", "Bob's"),
        ("( not closed", "( not closed"),
        ("(  ( two ) )", "(( two) )"),
        ("", ""),
    ],
)
def test_rules(tokenized: str, plain: str) -> None:
    assert detokenize_wikitext(tokenized) == plain


def test_order_matters() -> None:
    """Apostrophes of plurals are joined first and then pair up like quotation marks, a slip that figures rest on."""
    assert detokenize_wikitext("boys ' and ' girls '") == "boys'and' girls'"
    assert detokenize_wikitext("end . \n next . \n") == "end.\nnext.\n"


def test_brackets_that_never_close_take_no_time() -> None:
    text = "( " * 200_000
    assert detokenize_wikitext(f"( a ) {text}") == f"(a) {text}"
    assert detokenize_wikitext(f"( b{' ' * 200_000}c )") == f"(b{' ' * 200_000}c)"


@pytest.mark.slow
@pytest.mark.skipif(not (WIKITEXT_103.exists() and GPT2.exists()), reason="the shared data folder is not there")
def test_published_counts() -> None:
    tokenizer, text = Tokenizer.load(GPT2), WIKITEXT_103.read_bytes().decode()
    plain = detokenize_wikitext(text)
    assert count_words(text) == 245_566
    assert len(tokenizer.encode(plain)) == 270_330
    assert len(plain.encode()) == 1_231_043
    assert len(tokenizer.encode(text)) == 285_234
    assert len(tokenizer.encode(join_rows(WIKITEXT_2_RAW.read_bytes().decode()))) == 287_644
