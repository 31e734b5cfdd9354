"""Languages by the codes that tables of recordings have: ISO 639-1, ISO 639-2 and 639-3, and country codes that stand for a language."""

from __future__ import annotations

import re

NAMES = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
    af:afrikaans am:amharic ar:arabic as:assamese az:azerbaijani be:belarusian bg:bulgarian bn:bengali br:breton bs:bosnian ca:catalan
    cs:czech cy:welsh da:danish de:german el:greek en:english eo:esperanto es:spanish et:estonian eu:basque fa:persian fi:finnish fr:french
    ga:irish gl:galician gn:guarani gu:gujarati ha:hausa he:hebrew hi:hindi hr:croatian ht:haitian hu:hungarian hy:armenian ia:interlingua
    id:indonesian ig:igbo is:icelandic it:italian ja:japanese jv:javanese ka:georgian kk:kazakh km:khmer kn:kannada ko:korean ku:kurdish
    ky:kyrgyz la:latin lb:luxembourgish lg:ganda lo:lao lt:lithuanian lv:latvian mg:malagasy mi:maori mk:macedonian ml:malayalam
    mn:mongolian mr:marathi ms:malay mt:maltese my:burmese nb:norwegian ne:nepali nl:dutch nn:nynorsk no:norwegian oc:occitan or:odia
    pa:punjabi pl:polish ps:pashto pt:portuguese rm:romansh ro:romanian ru:russian rw:kinyarwanda sa:sanskrit sd:sindhi si:sinhala
    sk:slovak sl:slovenian sn:shona so:somali sq:albanian sr:serbian su:sundanese sv:swedish sw:swahili ta:tamil te:telugu tg:tajik
    th:thai ti:tigrinya tk:turkmen tl:tagalog tr:turkish tt:tatar ug:uyghur uk:ukrainian ur:urdu uz:uzbek vi:vietnamese xh:xhosa
    yi:yiddish yo:yoruba zh:chinese zu:zulu
    ara:arabic cat:catalan ces:czech cze:czech chi:chinese cmn:chinese dan:danish deu:german dut:dutch ell:greek eng:english fas:persian
    fin:finnish fra:french fre:french ger:german gre:greek heb:hebrew hin:hindi hun:hungarian ind:indonesian ita:italian jpn:japanese
    kor:korean nld:dutch nor:norwegian per:persian pol:polish por:portuguese ron:romanian rum:romanian rus:russian spa:spanish swe:swedish
    tha:thai tur:turkish ukr:ukrainian vie:vietnamese yue:cantonese zho:chinese
    cn:chinese cz:czech dk:danish gr:greek iw:hebrew jp:japanese kr:korean ua:ukrainian
    """,
    )
)
"""Code → English name in lower case. The last line has codes of countries, and one that ISO withdrew."""


def find_language_name(code: str) -> str | None:
    """Return the language of a code or locale (`sv-SE`, `JP`, `pt_BR`), whose region is dropped; None for an unknown one."""
    return NAMES.get(code.strip().lower().replace("_", "-").partition("-")[0])
