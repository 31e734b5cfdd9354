"""Sounds, moods and remarks in brackets or between asterisks: `[music]`, `(laughs)`, `*sighs*`, `（笑）`.

Square brackets are never spoken. Round ones may be: they are removed if they name a known sound, or stand between sentences and hold a few
words that are no sentence. Asterisks may also stress a word, which is then kept without them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from overtone.data_prep.recordings import speaker_labels

SOUND = "sound and mood tags"
NOT_UNDERSTOOD = "marks of words that nobody understood"
TIMESTAMP = "timestamps"
STRESS = "asterisks and underscores around stressed words"
BRACKETS = "brackets around a word of a sentence"
KEPT = "parentheses that may be spoken"

PAIRS = (("[", "]", "square"), ("【", "】", "square"), ("［", "］", "square"), ("〔", "〕", "square"), ("{", "}", "square"))
ROUND = (("(", ")", "round"), ("（", "）", "round"), ("⟨", "⟩", "round"))
LONGEST = 200
TAG = re.compile(
    "|".join(
        f"{re.escape(first)}(?P<{kind}{number}>[^{re.escape(first + last)}]{{0,{LONGEST}}}){re.escape(last)}"
        for number, (first, last, kind) in enumerate((*PAIRS, *ROUND))
    )
    + r"|(?<![\w*])(?P<stars>\*{1,3})(?P<starred>[^\s*\[({](?:[^*\n\[\](){}]{0,98}[^\s*\])}])?)(?P=stars)(?![\w*])"
    + r"|(?<![\w*:/~])(?P<marks>\*|::|/|~)\s?(?P<spaced>[^*:/~\n\[\](){}]{1,60}?)\s?(?P=marks)(?![\w*:/~])"
    + r"|(?<![\w_])(?P<lines>_{1,2})(?P<underlined>[^\s_\[({](?:[^_\n\[\](){}]{0,98}[^\s_\])}])?)(?P=lines)(?![\w_])"
)
UNCERTAIN = re.compile(r"\(\(([^()]{0,200})\)\)")
"""Mark of words that transcribers of telephone calls could not understand, or were not sure of."""
TIME = re.compile(rf"{speaker_labels.TIME}(?:\s*(?:-{{1,2}}>|[-–])\s*{speaker_labels.TIME})?")
LOST_WORDS = re.compile(
    r"inaudib|unintelligib|unclear|indiscernib|undecipherab|illegible|undeutlich|ininteligív|неразб|нерозбір|"
    r"indistinct|incomprehensib|crosstalk|cross talk|talking over|overlapping|foreign language|"
    r"(?:speaks|speaking) (?:in )?(?:an? )?(?:foreign|native|other|english|german|spanish|french|italian|russian|chinese|mandarin|"
    r"cantonese|japanese|korean|arabic|hebrew|hindi|portuguese|polish|dutch|turkish|greek|latin)|unverständlich|unhörbar|inintelligible|ininteligible|incomprensibil|incompréhensib|ininteligível|inaudível|"
    r"неразборчив|неслышн|niezrozumiał|onverstaanbaar|anlaşılm|聞き取れ|聞き取り不能|不明|听不清|聽不清|안 ?들림|알아들을 수 없|غير واضح|"
    r"^[_\s]+$|^unk$|^spn$|^foreign$|^\?+$|^xxx+$|^bleep|^redacted|^censored|^name$"
)
STEMS = tuple(
    re.findall(
        r"\S+",
        """
    music laugh chuckl giggl sigh cough applau clapping cheering gasp groan moan sobb sniffl snort sneez yawn scream whisper
    mutter mumbl humming whistl beep buzzing inhal exhal clears clearing silence blank_audio sarcas chatter instrumental
    footstep gunshot grunt breath noise static throat snicker weep barking thunder musik lach seufz hust klatsch räusper
    flüster schluchz stille geräusch stöhn kicher gelächter beifall musique rire soupir tousse applaudi chuchot sanglot
    bruit música risa risas suspir tose aplaus susurr solloz silencio ruido musica risate sospir toss sussurr singhiozz
    silenzio rumore risos aplauso soluç silêncio ruído музык смех смее смёт вздых вздох вздыха кашл аплодисмент шепот шёпот
    шепч плач плачет тишин шум хохо стон muzyk śmiech śmieje wzdych wzdech kaszl kaszel oklask cisza szept muziek lacht
    gelach zucht hoest applaus gefluister müzik gülüş gülme alkış kahkaha öksür
    """,
    )
)
WORDS = frozenset(
    re.findall(
        r"\S+",
        """
    pause silence laugh laughs cries crying cry sings singing hum hums beat cheers claps gasps sigh shouts shouting noise
    sfx sic ride ríe rit rires toux tos risos ri gulp gulps tsk bell bells rings ringing bip beep bleep pausa пауза смеётся
    смеется
    """,
    )
)
OTHER_SCRIPTS = re.findall(
    r"\S+",
    """
    音楽 音乐 音樂 笑 拍手 歓声 ため息 溜息 咳 せき 泣 沈黙 物音 騒音 雑音 効果音 掌声 掌聲 鼓掌 叹气 嘆氣 哭
    沉默 欢呼 음악 웃 박수 한숨 기침 울음 침묵 환호
    موسيقى ضحك تصفيق تنهد سعال
    صمت מוזיקה צחוק מחיאות אנחה संगीत हँसी हंसी ताली
""",
)
MOST_WORDS, MOST_WORDS_OF_SOUND = 4, 6
SENTENCE_END = frozenset('.?!…。？！:：;"”»)]）】」』-–—>♪~')
NEAR = 20
"""Characters beside a tag that are examined."""
PUNCTUATION = re.compile(r"[.?!,;:。？！、，；：]")


class Tag(NamedTuple):
    """One bracket, or text between asterisks, in a line."""

    start: int
    stop: int
    kind: str
    """`square`, `round`, `stars` or `lines`."""
    content: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, re.sub(r"\d", "0", " ".join(self.content.casefold().split()))


@dataclass(frozen=True)
class TagDecision:
    """Decision on which ambiguous tags of a file are removed."""

    removed: frozenset[tuple[str, str]]


def find_tags(line: str) -> list[Tag]:
    """Return the tags of a line without those inside of others. Between marks with other uses, as in `* cough *` and `/laughs/`, only a
    known sound is one."""
    found = []
    for match in TAG.finditer(line):
        name = match.lastgroup or ""
        kind = {"starred": "stars", "spaced": "stars", "underlined": "lines"}.get(name, name.rstrip("0123456789"))
        if name == "spaced" and not names_sound(match[name]):
            continue
        found.append(Tag(match.start(), match.end(), kind, match[name].strip()))
    return found


def decide_tags(lines: Iterable[str]) -> TagDecision:
    """Return the tags that are removed everywhere in the file, because some of them are at places where only a remark can be."""
    clear: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for tag in find_tags(line):
            if tag.kind == "round" and _is_remark(line, tag):
                clear[tag.key] += 1
            elif tag.kind == "stars" and _stands_alone(line, tag) and not PUNCTUATION.search(tag.content):
                clear[tag.key] += 1 + (tag.start == 0 and tag.stop == len(line.strip()))  # it is a whole text, or occurs twice
    return TagDecision(frozenset(key for key, count in clear.items() if key[0] == "round" or count > 1))


def classify(line: str, tag: Tag, decision: TagDecision) -> str:
    """Return the kind of a tag: one of `SOUND`, `NOT_UNDERSTOOD`, `TIMESTAMP`, `STRESS`, `BRACKETS` and `KEPT`. The words stay in the last
    three."""
    if tag.kind in ("square", "round"):
        if TIME.fullmatch(tag.content):
            return TIMESTAMP
        if LOST_WORDS.search(tag.content.casefold()) and len(tag.content.split()) <= MOST_WORDS_OF_SOUND:
            return NOT_UNDERSTOOD
    if tag.kind == "round" and not re.search(r"\w", tag.content):
        return SOUND
    if tag.kind == "square":
        return BRACKETS if _is_word_of_sentence(line, tag) else SOUND
    if names_sound(tag.content) and (_stands_alone(line, tag) or len(tag.content.split()) <= 2):
        return SOUND
    if tag.key in decision.removed:
        return SOUND
    return KEPT if tag.kind == "round" else STRESS


def names_sound(content: str) -> bool:
    """Return whether a short text names a known sound or mood."""
    words = re.findall(r"[\w']+", content.casefold())
    if any(one in content for one in OTHER_SCRIPTS):
        return len(content) <= 12 or len(words) <= MOST_WORDS
    return 0 < len(words) <= MOST_WORDS_OF_SOUND and any(word in WORDS or word.startswith(STEMS) for word in words)


def _is_remark(line: str, tag: Tag) -> bool:
    """Return whether a round bracket stands between sentences, and holds a few words that are no sentence."""
    words = tag.content.split()
    letters = [letter for letter in tag.content if letter.isalpha()]
    if not words or len(words) > MOST_WORDS or PUNCTUATION.search(tag.content) or (len(letters) < 2 and "".join(letters).isascii()):
        return False
    alone = len(line) <= 2 * LONGEST and not re.search(r"\w", line[: tag.start] + line[tag.stop :])
    return alone or (_stands_alone(line, tag) and (not letters[0].isupper() or tag.content.isupper()))


def _is_word_of_sentence(line: str, tag: Tag) -> bool:
    """Return whether a bracket holds one word without a capital letter in the middle of a sentence, or a part of a word: `your [old]
    house`, `walk[ed]`. An editor added what may be spoken."""
    before, after = line[max(0, tag.start - NEAR) : tag.start], line[tag.stop : tag.stop + NEAR]
    if len(tag.content) == 1 and tag.content.isalpha() and after[:1].islower():  # `[I]t was`
        return True
    if not tag.content.isalpha() or not tag.content.islower() or names_sound(tag.content):
        return False
    is_inside_word = before[-1:].isalpha() or after[:1].isalpha()
    return is_inside_word or (before.strip()[-1:].isalpha() and after.lstrip()[:1].islower()) or before.rstrip().endswith(",")


def _stands_alone(line: str, tag: Tag) -> bool:
    """Return whether a tag is between two sentences, or at an end of the line."""
    before, after = line[max(0, tag.start - NEAR) : tag.start].rstrip(), line[tag.stop : tag.stop + NEAR].lstrip("\"'“”«»¿¡-–— ")
    is_end = not after or not (after[0].islower() or after[0] in ".,。、")
    return is_end and (not before or before[-1] in SENTENCE_END)
