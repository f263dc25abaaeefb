"""Codes of languages: those of py3langid, ISO 639-1 where it has one, and those of web archives, ISO 639-3.

record_code("de")  ->  "deu"        record_code("pcm")  ->  "pcm"
"""

from typing import Final

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


def record_code(code: str) -> str:
    """Return the ISO 639-3 code of a language of py3langid; a code of three letters is one."""
    return _LONG.get(code, code)
