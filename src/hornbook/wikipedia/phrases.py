"""The templates that stand for words, with a function from the arguments of each to its text.

    {{convert|5|to|7|km|mi}}   ["5", "to", "7", "km", "mi"], {}      ->  "5 to 7 km"
    {{lang|fr|Seine}}          ["fr", "Seine"], {}                   ->  "Seine"

Names are in lower case: those of English Wikipedia, many of which other languages share, chosen by how often they occur
inside sentences. Other templates, and those with too few arguments, have no text.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

Phrase: TypeAlias = Callable[[list[str], dict[str, str]], str]
"""Returns the text for positional and named arguments, possibly empty."""

_RANGE_WORDS: Final = {
    "to": " to ", "-": "–", "–": "–", "and": " and ", "or": " or ", "by": " by ",
    "x": " × ", "*": " × ", "×": " × ", "+/-": " ± ", "±": " ± ",
}  # fmt: skip
_UNITS: Final = {
    "km2": "km²", "m2": "m²", "cm2": "cm²", "mm2": "mm²", "sqmi": "sq mi", "sqkm": "km²", "sqft": "sq ft",
    "m3": "m³", "cm3": "cm³", "km3": "km³", "kph": "km/h", "c": "°C", "f": "°F", "C": "°C", "F": "°F",
}  # fmt: skip
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SECOND_UNITS: Final = ("in", "oz", "lb", "ft", "ch", "yd")


def _argument(number: int, arguments: list[str], named: dict[str, str]) -> str:
    """Return the argument at an index, or an empty string; negative indices count from the end."""
    return arguments[number].strip() if -len(arguments) <= number < len(arguments) else ""


def _constant(text: str, arguments: list[str], named: dict[str, str]) -> str:
    return text


def _prefixed(prefix: str, arguments: list[str], named: dict[str, str]) -> str:
    return prefix + arguments[0].strip() if arguments and arguments[0].strip() else ""


def _joined(separator: str, arguments: list[str], named: dict[str, str]) -> str:
    return separator.join(filter(None, map(str.strip, arguments)))


def _listed(arguments: list[str], named: dict[str, str]) -> str:
    return "".join(f"\n* {item.strip()}" for item in arguments if item.strip()) + "\n"


def _quoted(arguments: list[str], named: dict[str, str]) -> str:
    text = (arguments[0] if arguments else "") or named.get("text", "") or named.get("quote", "")
    return f"\n{text.strip()}\n" if text.strip() else ""


def _is_number(text: str) -> bool:
    return text.strip().lstrip("-−+.")[:1].isdigit()


def _convert(arguments: list[str], named: dict[str, str]) -> str:
    """Return a measure: ``5|km|mi`` -> ``5 km``, ``5|to|7|km`` -> ``5 to 7 km``, ``6|ft|2|in`` -> ``6 ft 2 in``."""
    values = [argument.strip() for argument in arguments]
    if len(values) < 2 or not _is_number(values[0]):
        return ""
    text, at = values[0], 1
    while at + 1 < len(values) and values[at] in _RANGE_WORDS and _is_number(values[at + 1]):
        text, at = text + _RANGE_WORDS[values[at]] + values[at + 1], at + 2
    unit = values[at] if at < len(values) else ""
    text = f"{text} {_UNITS.get(unit, unit)}".rstrip()
    if at + 2 < len(values) and _is_number(values[at + 1]) and values[at + 2] in _SECOND_UNITS:
        text += f" {values[at + 1]} {values[at + 2]}"
    return text


def _value(arguments: list[str], named: dict[str, str]) -> str:
    """Return a number with its unit: ``1.5|e=6|u=m`` -> ``1.5×10^6 m``."""
    if not arguments:
        return ""
    power = f"×10^{named['e']}" if named.get("e") else ""
    unit = named.get("u") or named.get("ul") or ""
    return f"{arguments[0].strip()}{power} {unit}".strip()


def _as_of(arguments: list[str], named: dict[str, str]) -> str:
    """Return a date: ``2010|6`` -> ``As of June 2010``."""
    if named.get("alt"):
        return named["alt"]
    parts = [argument.strip() for argument in arguments[:3]]
    if len(parts) > 1 and parts[1].isdecimal() and 0 < int(parts[1]) < 13:
        parts[1] = _MONTHS[int(parts[1]) - 1]
    word = (
        ("since" if named.get("since") else "as of") if named.get("lc") else "Since" if named.get("since") else "As of"
    )
    return f"{word} {' '.join(reversed(parts))}" if parts and parts[0] else ""


def _fraction(arguments: list[str], named: dict[str, str]) -> str:
    parts = [argument.strip() for argument in arguments]
    if len(parts) == 3:
        return f"{parts[0]} {parts[1]}/{parts[2]}"
    return f"{parts[0]}/{parts[1]}" if len(parts) == 2 else f"1/{parts[0]}" if parts else ""


def _ship(prefix: str | None, arguments: list[str], named: dict[str, str]) -> str:
    """Return a ship's name: ``{{USS|Enterprise|CV-6}}`` -> ``USS Enterprise (CV-6)``.

    ``prefix`` is None for ``{{ship}}``, whose first argument is the prefix.
    """
    parts = ([] if prefix is None else [prefix]) + [argument.strip() for argument in arguments[:3]]
    if len(parts) < 2:
        return ""
    hull = f" ({parts[2]})" if len(parts) > 2 and parts[2] else ""
    return f"{parts[0]} {parts[1]}".strip() + hull


def _nihongo(arguments: list[str], named: dict[str, str]) -> str:
    """Return a Japanese name: ``English|kanji|romaji`` -> ``English (kanji, romaji)``."""
    parts = [argument.strip() for argument in arguments[:3]]
    inside = ", ".join(filter(None, parts[1:]))
    return f"{parts[0]} ({inside})" if parts and inside else parts[0] if parts else ""


_BY_RULE: Final[tuple[tuple[Phrase, str], ...]] = (
    (
        partial(_argument, 0),
        "nowrap,nobr,nobreak,small,smaller,big,larger,large,resize,em,strong,abbr,abbrv,tooltip,mvar,math,var,"
        "bigmath,nobold,noitalic,no italic,no bold,visible anchor,vanchor,linktext,not a typo,typo,notatypo,ill,"
        "smallcaps,sc,smallcaps2,flag,flagcountry,flagu,flagg,kbd,code,tt,mono,samp,unicode,iast,polytonic,hebrew,"
        "arabic,title case,usurped,tq,xt,number,nts,uc:,lc:,ucfirst:,lcfirst:,formatnum:,formatnum,"
        "interlanguage link,interlanguage link multi",
    ),
    (partial(_argument, 1), "lang,langx,script,wt,sort,font,color,colour,background color,rtl-lang"),
    (partial(_argument, -1), "transl,transliteration,tlit,font color"),
    (_quoted, "quote,blockquote,cquote,quotation,bquote,rquote,poemquote,poem quote,quote text,verse"),
    (_convert, "convert,cvt,conv"),
    (_value, "val"),
    (_as_of, "as of,asof"),
    (_fraction, "frac,fraction,sfrac,fract"),
    (_nihongo, "nihongo,nihongo2,nihongo3"),
    (_listed, "unbulleted list,ubl,bulleted list,ordered list,unordered list"),
    (partial(_joined, ", "), "hlist,cslist,comma separated entries"),
    (partial(_joined, " "), "gaps,bibleverse,bibleref,bibleref2,sortname"),
    (partial(_joined, ""), "chem,chem2,ce,sub,su"),
    (partial(_prefixed, "^"), "sup"),
    (partial(_prefixed, "c. "), "circa,ca.,c.,ca,c"),
    (partial(_prefixed, "fl. "), "floruit,fl.,fl"),
    (partial(_prefixed, "r. "), "reign,r."),
    (partial(_prefixed, "née "), "nee,née"),
    (partial(_prefixed, "né "), "né"),
    (partial(_prefixed, "√"), "sqrt,radic"),
    (partial(_prefixed, "$"), "us$,usd,us dollar"),
    (partial(_prefixed, "A$"), "a$,aud,au$"),
    (partial(_prefixed, "C$"), "c$,cad,ca$"),
    (partial(_prefixed, "£"), "£,gbp,pound sterling"),
    (partial(_prefixed, "€"), "€,eur,euro"),
    (partial(_prefixed, "₹"), "inr,indian rupee"),
    (partial(_prefixed, "¥"), "¥,jpy"),
    (partial(_constant, "–"), "ndash,en dash,endash,–"),
    (partial(_constant, "—"), "mdash,em dash,emdash,—"),
    (partial(_constant, " – "), "snd,spnd,spaced ndash,spaced en dash,sndash,dash"),
    (partial(_constant, " — "), "spaced mdash,snmd"),
    (partial(_constant, " "), "nbsp,space,thinsp,hair space,thin space,sp,spaces,nnbsp,non-breaking space"),
    (partial(_constant, "'"), "',apostrophe"),
    (partial(_constant, "'s"), "'s"),
    (partial(_constant, '"'), 'quot,"'),
    (partial(_constant, "="), "="),
    (partial(_constant, "&#124;"), "!,pipe"),
    (partial(_constant, "&#91;"), "bracket"),
    (partial(_constant, " · "), "·,dot,middot,•,bull,bullet,interpunct"),
    (partial(_constant, "ʻ"), "okina,ʻokina"),
    (partial(_constant, "π"), "pi"),
    (partial(_constant, "×"), "times,x"),
    (partial(_constant, "−"), "minus"),
    (partial(_constant, "±"), "±,plus-minus"),
    (partial(_constant, "…"), "ellipsis,..."),
    (partial(_constant, "\n"), "break,crlf,br,paragraph,paragraph break,parabr"),
    (partial(_ship, None), "ship"),
    *(
        (partial(_ship, prefix), prefix.lower())
        for prefix in ("USS", "HMS", "SS", "RMS", "MS", "MV", "HMAS", "HMCS", "USNS", "SMS", "INS", "USCGC")
    ),
)
PHRASES: Final[dict[str, Phrase]] = {name: phrase for phrase, names in _BY_RULE for name in names.split(",")}
"""Every template that has a text, by its name in lower case; ``lc:`` and similar ones are parser functions."""
