"""Names of speakers before their words: `[SPEAKER_00]: …`, `ANNA: …`, `(speaker 0) …`, `田中：…`, `Anna「…」`.

`Speaker 0` is always a label. A name before a colon may as well be spoken (`Dr. Who: the film`), so the repetition in the file
decides: capital letters twice, another name in a fifth of the texts, and at least three times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OPENING, CLOSING = r"\[(<{【（［〔＜", r"\])>}】）］〕＞"
TIME = r"(?:\d{1,2}:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
GENERIC = re.compile(
    r"(?:speaker|spk|sprecher(?:in)?|locuteur|locutrice|intervenante?|orador|hablante|locutor|interlocutore?|parlante|voce|falante|mówca|"
    r"spreker|konuşmacı|спикер|говорящий|диктор|голос|话者|話者|说话人|說話者|講者|讲者|발화자|화자|참석자|المتحدث|דובר|वक्ता)"
    r"[\s_#-]*(?:\d{1,3}|[a-z]|\?|unknown)",
    re.IGNORECASE,
)
NAME = r"[^\W\d_][^\n:：;!?…\"“”«»<>=|@\[\](){}（）【】「」『』]{0,38}?"
BRACKETED = re.compile(rf"[{OPENING}]\s*({NAME}|{GENERIC.pattern})\s*[{CLOSING}]\s*([:：]?)\s*(.*)", re.DOTALL | re.IGNORECASE)
BEFORE_COLON = re.compile(
    rf"({NAME})(?:\s*[\[(（][^\[\]()（）]{{1,30}}[\])）])?(?:,?\s{{1,3}}{TIME})?\s{{0,2}}(?::(?=\s|$)|：)\s*(.*)", re.DOTALL
)
GENERIC_LINE = re.compile(rf"\|?({GENERIC.pattern})\|?\s*(?:[\[(]?{TIME}[\])]?)?\s*(?:[:：>|]|(?<=\|)|$)\s*(.*)", re.DOTALL | re.IGNORECASE)
MACHINE_LINE = re.compile(r"((?:SPEAKER|SPK|spk|speaker)_\d{1,3})\s+(?:[-–—]\s+)?(.*)", re.DOTALL)
"""`SPEAKER_00 hello`: nobody speaks an underscore."""
BEFORE_TIME = re.compile(rf"({NAME})\s{{1,4}}[\[(]?{TIME}[\])]?\s*()")
"""A line with a name and a time, as some programs write before the words."""
LOWER = re.compile(r"([^\W\d_]{2,20}):\s+(\S.*)", re.DOTALL)
"""`anna: hello`: one word without a capital letter."""
BEFORE_QUOTE = re.compile(r"([^\W\d_][^\s「」『』、。，,.]{0,11})[「『]([^「」『』]+)[」』]")
PARTICLES = frozenset(
    re.findall(
        r"\S+",
        """
    de von van der den del della di da dos du la le el al bin ibn y e und and et of & / the
    """,
    )
)
HEADINGS = frozenset(
    re.findall(
        r"\S+",
        """
    note notes warning caution attention important example question answer chapter section part step figure table tip hint
    remember subject date time result conclusion problem solution summary title number address phone email url http https
    hinweis achtung warnung wichtig beispiel frage antwort kapitel teil schritt merke tipp ergebnis remarque exemple réponse
    chapitre partie étape conseil nota aviso atención importante ejemplo pregunta respuesta capítulo parte paso consejo
    resultado attenzione esempio domanda risposta capitolo passo consiglio esempi atenção exemplo pergunta resposta
    примечание внимание важно пример вопрос ответ глава часть шаг 注意 注 例 質問 答え 问题 答案 注释 참고 예 질문 대답
    """,
    )
)
"""Words before a colon that are read aloud."""
MOST_WORDS = 4
LEAST_REPEATS = 3
FEW_LABELS, MOST_NAMES = 4, 0.75
"""With at least `FEW_LABELS` labels, names are not speakers if the share of different ones is larger than `MOST_NAMES`: a speaker speaks
several times."""
LEAST_SHARE, DENSE_SHARE = 0.2, 0.5
"""Minimum share of texts beginning with names for these to be labels: if each is repeated, and if some are not."""


class Label(NamedTuple):
    """A possible label of a line."""

    form: str
    """`generic`, `bracket_colon`, `bracket`, `colon`, `lower` or `quote`."""
    name: str
    rest: str
    """Rest of the line after it."""

    @property
    def key(self) -> str:
        return " ".join(self.name.casefold().split())

    @property
    def shown(self) -> str:
        return {"bracket": f"[{self.name}]", "bracket_colon": f"[{self.name}]:", "quote": f"{self.name}「"}.get(self.form, f"{self.name}:")


@dataclass(frozen=True)
class LabelDecision:
    """Decision on which names are labels of speakers in a file."""

    accepted: frozenset[tuple[str, str]]
    """(form, key)."""
    kept: tuple[str, ...]
    """Names before a colon that stay in the text, with their number, for the user."""

    def is_label(self, label: Label) -> bool:
        return label.form == "generic" or (label.form, label.key) in self.accepted


def find_label(line: str) -> Label | None:
    """Return the possible label at the start of a line."""
    if found := GENERIC_LINE.match(line) or MACHINE_LINE.match(line):
        return Label("generic", found[1], found[2])
    if found := BRACKETED.match(line):
        if GENERIC.fullmatch(found[1].strip()):
            return Label("generic", found[1].strip(), found[3])
        return Label("bracket_colon" if found[2] else "bracket", found[1].strip(), found[3]) if _is_name(found[1]) else None
    found = BEFORE_COLON.match(line) or BEFORE_TIME.fullmatch(line)
    if found and _is_name(found[1]):
        return Label("colon", found[1].strip(), found[2])
    if found := LOWER.match(line):
        return Label("lower", found[1], found[2])
    if found := BEFORE_QUOTE.fullmatch(line.strip()):
        return Label("quote", found[1], found[2])
    return None


def decide_labels(
    labels: Iterable[Label], texts: int, sounds: frozenset[str] = frozenset(), certain: frozenset[tuple[str, str]] = frozenset()
) -> LabelDecision:
    """Return which of the possible labels of a file's lines are labels. `texts`: number of its texts; `sounds`: keys that are known as
    sounds; `certain`: (form, key) of labels that another sign confirms."""
    labels = list(labels)
    counts = Counter((one.form, one.key) for one in labels if one.form != "generic" and one.key not in sounds)
    shown = {(one.form, one.key): one for one in labels}
    candidates = {one: count for one, count in counts.items() if one[1].split()[0] not in HEADINGS}
    accepted = {one for one in candidates if one[0] == "bracket_colon"} | certain
    upper = {one for one in candidates if one[0] == "colon" and shown[one].name.isupper() and sum(map(str.isalpha, shown[one].name)) > 1}
    if any(candidates[one] > 1 for one in upper):
        accepted |= upper
    for form in ("colon", "lower", "bracket", "quote"):
        names = {one: count for one, count in candidates.items() if one[0] == form}
        repeated = {one for one, count in names.items() if count >= LEAST_REPEATS}
        total = sum(names.values())
        every = total >= DENSE_SHARE * texts and (any(n > 1 for n in names.values()) or total == texts)
        if total > FEW_LABELS and len(names) > MOST_NAMES * total:
            continue  # a glossary: `Aardvark: an animal`
        if texts > 1 and every and (form == "colon" or repeated):
            accepted |= repeated if form == "lower" else names.keys()
        elif form != "lower" and sum(names[one] for one in repeated) >= LEAST_SHARE * texts:
            accepted |= repeated
    named = {"colon": 1, "lower": LEAST_REPEATS}
    kept = [(shown[one].shown, count) for one, count in counts.items() if one not in accepted and count >= named.get(one[0], count + 1)]
    kept.sort(key=lambda one: -one[1])
    return LabelDecision(frozenset(accepted), tuple(f"{name!r} ({count} of {texts})" for name, count in kept))


def name_speaker(names: Sequence[str]) -> str | None:
    """Return the speaker that the labels of a recording name; None if they do not, as `SPEAKER_00`, which is another person in each
    recording."""
    real = {name.casefold(): name for name in names if not GENERIC.fullmatch(name.strip())}
    return next(iter(real.values())) if len(real) == 1 else None


def list_speakers(names: Iterable[str]) -> list[str]:
    """Return the different names, in order; `Anna` and `ANNA` are one."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(" ".join(name.casefold().split()), name)
    return list(found.values())


def _is_name(text: str) -> bool:
    """Return whether a text may be a name: few words, each with a capital letter, in a script without capital letters, or a particle."""
    words = text.split()
    if not 0 < len(words) <= MOST_WORDS or text.strip().endswith(","):
        return False
    capital = [word for word in words if word.casefold() not in PARTICLES]
    return bool(capital) and not any(word[0].islower() for word in capital)
