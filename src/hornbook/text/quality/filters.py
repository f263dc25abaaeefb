r"""The filters that look at one document at a time, so that any process can ask them: length, patterns, language."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError
from hornbook.extras import require
from hornbook.text.reading import Document

SAMPLED_CHARACTERS: Final = 4000
_PAIRS: Final = (
    "af:afr am:amh an:arg ar:ara as:asm az:aze ba:bak be:bel bg:bul bn:ben br:bre bs:bos ca:cat cs:ces cy:cym "
    "da:dan de:deu dz:dzo el:ell en:eng eo:epo es:spa et:est eu:eus fa:fas fi:fin fo:fao fr:fra fy:fry ga:gle "
    "gd:gla gl:glg gu:guj ha:hau he:heb hi:hin hr:hrv ht:hat hu:hun hy:hye id:ind ig:ibo is:isl it:ita ja:jpn "
    "jv:jav ka:kat kk:kaz km:khm kn:kan ko:kor ku:kur ky:kir la:lat lb:ltz lg:lug ln:lin lo:lao lt:lit lv:lav "
    "mg:mlg mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya ne:nep nl:nld nn:nno no:nor oc:oci om:orm or:ori "
    "pa:pan pl:pol ps:pus pt:por qu:que ro:ron ru:rus rw:kin sa:san se:sme si:sin sk:slk sl:slv sn:sna so:som "
    "sq:sqi sr:srp st:sot sv:swe sw:swa ta:tam te:tel tg:tgk th:tha tk:tuk tl:tgl tr:tur tt:tat ug:uig uk:ukr "
    "ur:urd uz:uzb vi:vie vo:vol wa:wln xh:xho yo:yor zh:zho zu:zul"
)
_LONG: Final = dict(pair.split(":") for pair in _PAIRS.split())


class Filter(Protocol):
    """A decision about a document that depends on this document only.

    Attributes:
        name: names the dropped documents in reports: ``"12 too short"``; `hornbook.wording` has singulars.
    """

    name: str

    def keeps(self, document: Document) -> bool:
        """Return whether to keep a document."""
        ...


class Length:
    """A filter that drops documents with too few characters or words.

    Args:
        min_characters: minimum number of characters, without leading and trailing white space.
        min_words: minimum number of words separated by white space.

    Raises:
        UserError: a minimum is negative.
    """

    name = "too short"

    def __init__(self, min_characters: int = 0, min_words: int = 0) -> None:
        if (least := min(min_characters, min_words)) < 0:
            raise UserError(f"the minimum number of characters or words is {least}; expected 0 or more")
        self._min_characters, self._min_words = min_characters, min_words

    def keeps(self, document: Document) -> bool:
        """Return whether a document is long enough."""
        text = document.text.strip()
        least = self._min_words
        return len(text) >= self._min_characters and len(text.split(maxsplit=least)) >= least


class Pattern:
    r"""A filter that keeps or drops the documents that match an RE2 regular expression anywhere.

    RE2 (``google-re2``) takes time linear in the text, whereas backtracking engines (`re`, `regex`) may take years. It
    has no backreferences and no look-around, and ``\w``, ``\d`` and ``\b`` are ASCII only (``\pL`` is any letter).
    Raises UserError if the pattern is invalid, or google-re2 is not installed.
    """

    def __init__(self, pattern: str, action: Literal["keep", "drop"]) -> None:
        self.name = f"{'without' if action == 'keep' else 'with'} {pattern!r}"
        self._keeps_found = action == "keep"
        re2 = require("re2", extra="patterns", purpose="filtering by patterns")
        options = re2.Options()
        options.log_errors = False
        try:
            self._search = re2.compile(pattern, options).search
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
            raise UserError(
                f"{pattern!r} is not a valid RE2 pattern: {' '.join(reason.split())}; see "
                "https://github.com/google/re2/wiki/Syntax (no backreferences, no look-around)"
            ) from None

    def keeps(self, document: Document) -> bool:
        """Return whether to keep a document."""
        return (self._search(document.text.encode()) is not None) == self._keeps_found


class Language:
    """A filter that drops documents in other languages, as detected by py3langid.

    py3langid (Barbaresi's py3langid 0.4, after Lui and Baldwin's langid.py, ACL 2012) is a naive Bayes classifier over
    byte n-grams for 140 languages. It is unreliable below some 50 characters. Only the 4,000 characters in the middle
    are classified, since headers, licenses and menus are at the ends.

    Args:
        languages: ISO 639 codes that py3langid knows.
        min_probability: minimum probability that a document is in one of them, in [0, 1].
        source: ``"text"``, or ``"record"``: where the record of a web archive states languages, its first one decides.

    Raises:
        UserError: a language is unknown, the probability is out of range, or py3langid is not installed.
    """

    name = "in other languages"

    def __init__(
        self, languages: Sequence[str], min_probability: float, source: Literal["text", "record"] = "text"
    ) -> None:
        if not 0 <= min_probability <= 1:
            raise UserError(f"the probability of a language is {min_probability:g}; expected 0 to 1")
        langid = require("py3langid.langid", extra="language", purpose="filtering by language")
        self._identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        known = self._identifier.labels
        for language in languages:
            if language not in known:
                raise UserError(
                    f"py3langid does not know the language {language!r}{did_you_mean(language, known)}; expected one "
                    f"of its {len(known)} codes, such as de, en or zh"
                )
        self._languages, self._min_probability = frozenset(languages), min_probability
        self._in_records = frozenset(map(record_code, languages)) if source == "record" else None

    def keeps(self, document: Document) -> bool:
        """Return whether a document is in one of the languages."""
        if self._in_records is not None and document.languages:
            return document.languages.partition(",")[0].strip().lower() in self._in_records
        probabilities = self._identifier.rank(middle(document.text))
        probability = sum(share for language, share in probabilities if language in self._languages)
        return bool(probability >= self._min_probability)


def middle(text: str) -> str:
    """Return the 4,000 characters in the middle of a text."""
    start = max(0, (len(text) - SAMPLED_CHARACTERS) // 2)
    return text[start : start + SAMPLED_CHARACTERS]


def record_code(code: str) -> str:
    """Return the ISO 639-3 code of a language of py3langid; a code of three letters is one."""
    return _LONG.get(code, code)
