import random
import time

import pytest
from cases import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.text.reading import CleanOptions
from hornbook.wikipedia.clean import LinkNames, clean, clean_page

CASES = {
    # comments and opaque tags
    "a<!-- b\n{{ -->c": "ac",
    "a\n<!-- alone -->\nb": "a\nb",
    "a<!-- without an end": "a",
    'a.<ref name="x">{{cite|[[b]]}}</ref> b<ref name=x /> c': "a. b c",
    "a<ref>no end <ref>b</ref> c": "ano end c",
    "a <nowiki>[[b]] {{c}} '' <ref></nowiki> d": "a [[b]] {{c}} '' <ref> d",
    "<pre>* a [[b]]</pre>": "* a [[b]]",
    "If <math>x_1 = 2</math>, <math>\\frac{a}{b}</math> is": "If x_1 = 2, is",
    "Run <source lang=c inline>a[0]</source>.<syntaxhighlight>\nint a;\n</syntaxhighlight>": "Run a[0].",
    "a<gallery>\nb.jpg|c\n</gallery>d": "ad",
    "<REF>a</Ref>b</ref>": "b",
    # templates
    "{{Infobox\n| a = {{b|c}}\n| d = [[e]]\n}}\n'''F''' is.": "F is.",
    "a {{unknown|b}} c": "a c",
    "a{{cn}}, b {{cn}}. c": "a, b. c",
    "Rome ({{lang-la|''Roma''}}; {{IPA|x}}) is": "Rome (Roma) is",
    "Rome ({{IPA|x}}; born 5)": "Rome (born 5)",
    "Rome ({{IPA|x}}) is": "Rome is",
    "{{lang|fr|[[Seine|la Seine]]}} is {{convert|777|km|mi}}": "la Seine is 777 km",
    "{{convert|5|to|7|km2|sqmi|abbr=on}} {{cvt|6|ft|2|in|cm}}": "5 to 7 km² 6 ft 2 in",
    "{{nowrap|{{circa|1900}}}} {{as of|2010|6|lc=y}} {{val|1.5|e=6|u=m}}": "c. 1900 as of June 2010 1.5×10^6 m",
    "a{{spaced ndash}}b {{frac|3|4}} {{frac|1|1|2}} {{HMS|Beagle}} {{USS|Iowa|BB-61}}": (
        "a – b 3/4 1 1/2 HMS Beagle USS Iowa (BB-61)"
    ),
    "{{nihongo|Tea|茶|cha}} {{formatnum:1234}} {{lc:ABC}}": "Tea (茶, cha) 1234 ABC",
    "{{quote|text=a {{=}} b|author=c}}": "a = b",
    "a {{{1|b}}} c {{{{{x}}}}} d": "a c d",
    "a }} b {{ c": "a b c",
    "{{a|b\n|}}\nc": "c",
    "x{{unclosed\n| a = {{b}}\ny": "xunclosed\ny",
    # tables
    "a\n{| class=x\n|-\n! b\n| c\n{|\n| d\n|}\n| e\n|}\nf": "a\n\nf",
    "a\n{| class=x\n| b\nc": "a\nc",
    "a\n|}\n:{|\n|b\n|}\nc": "a\n\nc",
    "a <table><tr><td>b<table></table></td></tr></table> c": "a c",
    # links
    "[[a]]s [[b|c]] [[d (e)|]] [[:Category:f]] [[g#h]]": "as c d Category:f g#h",
    "[[File:a.jpg|thumb|b [[c|d]] e]]f [[Category:g]][[Kategoreja:h]][[Datei:i.png]]": "f",
    "[[Unknown:a.JPG|thumb|b]]c [[fr:Paris]] [[zh-min-nan:x]]": "c",
    "[https://a.b/c d e] [https://a.b] [//a b] [mailto:x@y z]": "d e b z",
    "[[a [[b]] c": "a b c",
    "[[File:a.jpg|thumb|b\nc": "c",
    "x]] y [z] [[": "x y [z]",
    "[[http://a b]]": "b",
    # HTML
    "a<br/>b <small>c</small> H<sub>2</sub>O 10<sup>-3</sup> x<sup>th</sup>": "a\nb c H2O 10⁻³ xth",
    "<div style='a'>b</div><p>c<blockquote>d</blockquote>": "b\n\nc\nd",
    "a < b > c <T> <unknown> d": "a < b > c <T> <unknown> d",
    "<ul><li>a<li>b</ul>": "- a\n- b",
    # quotes
    "'''a''' ''b'' '''''c''''' ''''d''''": "a b c 'd'",
    "''Titanic'''s": "Titanic's",
    "l''''amour''' d''x''": "l'amour dx",
    "it's 'so'": "it's 'so'",
    # lines
    "==a==\n===b===\nc\n==d==\n== e ==\nf": "a\n\nb\nc\n\ne\nf",
    "== a ==\n{{stub}}": "",
    "a\n\n\n\nb\nc": "a\n\nb\nc",
    "* a\n** b\n# c\n; d\n: e\n*\n:* f": "- a\n- b\n- c\nd\ne\n- f",
    "----\na\n-----b": "a\nb",
    "__NOTOC__a __b__": "a __b__",
    "a = b =": "a = b =",
    "* .\n: ,\n...": "",
    # character references and blanks
    "a&nbsp;b &amp; &lt;ref&gt; &#169;&#xA9; &unknown; &#0; x&shy;y": "a b & <ref> ©© &unknown; \ufffd xy",
    "a\u00a0 \t b \u200e": "a b",
    "&amp;nbsp;": "&nbsp;",
    "a\0b\vc": "abc",
    "": "",
}


@pytest.mark.parametrize("wikitext", CASES)
def test_prose(wikitext):
    names = LinkNames.of_site({"fails": 6, "kategoreja": 14})
    assert clean(wikitext, names=names) == CASES[wikitext]


def test_options():
    text = "a\n== b ==\n* c\n; d\n: e\n== f ==\n* g"
    assert clean(text, CleanOptions(headings="drop")) == "a\n\n- c\nd\ne\n\n- g"
    assert clean(text, CleanOptions(lists="drop")) == "a\n\nb\ne"
    assert clean_page("T", text, CleanOptions(headings="drop", lists="drop"), LinkNames()) == "T\n\na\n\ne"
    assert clean_page("T", "a", CleanOptions(titles="drop"), LinkNames()) == "a"
    assert clean_page("T", "{{a}}", CleanOptions(), LinkNames()) == ""


MARKUP = [
    "{{",
    "}}",
    "[[",
    "]]",
    "{|",
    "|}",
    "\n",
    "|",
    "=",
    "'''",
    "''",
    "<ref>",
    "</ref>",
    "<ref",
    ">",
    "<!--",
    "-->",
]
MARKUP += ["<nowiki>", "</nowiki>", "<math>", "</math>", "<table>", "</table>", "<br/>", "[http://a ", "]", "*", "\n*"]
MARKUP += [
    "\n==",
    "==\n",
    "&nbsp;",
    "&#x41;",
    "&",
    ";",
    "{{lang|",
    "{{convert|5|",
    "{{quote|",
    "File:",
    "a b",
    " ",
    ",",
    "(",
]
MARKUP += [")", "\0", "\v", "__TOC__", "{", "}", "[", "<sup>2</sup>", "{{{", "}}}", "é", "\ud800"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(MARKUP), max_size=40).map("".join))
def test_any_markup_is_cleaned(text):
    found = clean(text)
    assert "\0" not in found and "\v" not in found
    assert found == found.strip("\n") and "\n\n\n" not in found


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_cleaned(text):
    assert "\0" not in clean(text)


def test_random_soup_of_markup():
    generator = random.Random(1)
    for _ in range(1500):
        clean("".join(generator.choices(MARKUP, k=generator.randrange(60))))


MEGABYTE = 1 << 20
HOSTILE = [
    *MARKUP,
    "{{a|",
    "[[a|",
    "[[File:a|",
    "<ref name=",
    "{{quote|a=",
    "( {{a}}",
    "{{a}} ",
    "[[a]]",
    "\n|}",
    "\n==a==",
]


@pytest.mark.parametrize("unit", mostly_slow(HOSTILE, 10))
def test_a_hostile_megabyte_takes_linear_time(unit):
    started = time.process_time()
    clean(unit * (MEGABYTE // len(unit)))
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "{{quote|" * 50_000 + "a" * 50_000 + "}}" * 50_000,
        "[[a|" * 100_000 + "]]" * 100_000,
        "[http://a" + " " * MEGABYTE,
        "(" + " " * MEGABYTE + "{{a}}" + " " * MEGABYTE,
        "[[" + "(," * (MEGABYTE // 2) + "|]]",
        "=" * MEGABYTE + "a" + "=" * MEGABYTE,
        "{{" + " " * MEGABYTE + "}}",
        "{{ubl" + "|abc" * (MEGABYTE // 4) + "}}",
    ],
    ids=range(8),
)
def test_hostile_shapes_take_linear_time(text):
    started = time.process_time()
    clean(text)
    assert time.process_time() - started < 2
