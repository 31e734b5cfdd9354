"""Doubts about texts by their content, without their sound: decoded wrongly, or in another language than declared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.language_identification import (
    CLEAR_ALONE,
    CLEAR_MARGIN,
    LEAST_ALONE,
    LEAST_COMPARED,
    compare_language,
    count_letters,
    find_other_script,
    name_language,
)
from overtone.data_prep.manifest import AUTO
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.recordings.garbled_text import FEW_TEXTS, find_garbled_texts
from overtone.finetune.errors import UserError, format_count

GARBLED, FOREIGN = "garbled_text", "other_language"
"""Reasons for rejected clips."""
COMPARED_CHARACTERS = 4000
"""Characters of a recording's texts whose language is identified."""
REFUSED_SHARE = 0.5
"""Share of wrong texts in a dataset from which a run is refused before any work."""
WAY_OUT = "if they are right all the same, --preset keep-all keeps them"
NAME_LANGUAGE = "give their language with --language, or the transcripts of these recordings"


class Doubt(NamedTuple):
    """A reason not to trust the text of a clip."""

    reason: str
    detail: str


@dataclass(frozen=True)
class ContentDoubts:
    """Doubts that follow from the contents of texts."""

    by_clip: dict[str, Doubt] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    languages: dict[str, str] = field(default_factory=dict)
    """Recording → finding about the language of its texts."""


class _Texts(NamedTuple):
    """Texts in one declared language that are judged together."""

    recordings: list[PreparedRecording]
    clips: list[MeasuredClip]
    language: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.source.name for one in self.recordings)


def find_content_doubts(recordings: Sequence[PreparedRecording]) -> ContentDoubts:
    """Check all texts for wrong decoding, and those of transcripts for their language. A recording with few texts, or few letters, is
    judged together with the other ones of its speaker."""
    doubts = ContentDoubts()
    for texts in _group_texts(recordings, lambda clips: len(clips) >= FEW_TEXTS):
        _doubt_garbled(texts, doubts)
    transcripts = [one for one in recordings if all(clip.quality.avg_logprob is None for clip in one.clips)]
    for texts in _group_texts(transcripts, lambda clips: count_letters(" ".join(clip.text for clip in clips)) >= LEAST_COMPARED):
        _doubt_language(texts, doubts)
    return doubts


def _group_texts(recordings: Sequence[PreparedRecording], are_enough: Callable[[list[MeasuredClip]], bool]) -> Iterator[_Texts]:
    small: dict[tuple[str, str], _Texts] = {}
    for recording in recordings:
        clips = [clip for clip in recording.clips if clip.text.strip()]
        if clips and are_enough(clips):
            yield _Texts([recording], clips, clips[0].language)
        elif clips:
            group = small.setdefault((recording.source.speaker, clips[0].language), _Texts([], [], clips[0].language))
            group.recordings.append(recording)
            group.clips.extend(clips)
    yield from small.values()


def _doubt_garbled(texts: _Texts, doubts: ContentDoubts) -> None:
    found, advice = find_garbled_texts([clip.text for clip in texts.clips], texts.language)
    if not found:
        return
    doubts.by_clip.update({texts.clips[at].id: Doubt(GARBLED, f"{sign}; {advice}") for at, sign in found.items()})
    ids = {texts.clips[at].id for at in found}
    names = tuple(one.source.name for one in texts.recordings if any(clip.id in ids for clip in one.clips))
    doubts.notices.append(Notice(text=_describe_garbled([clip.text for clip in texts.clips], found, advice), recordings=names))


def _describe_garbled(texts: Sequence[str], found: dict[int, str], advice: str) -> str:
    first = min(found)
    return (
        f"{len(found)} of {format_count(len(texts), 'text')} were decoded wrongly, such as {' '.join(texts[first].split())[:60]!r} "
        f"({found[first]}): {advice}"
    )


def _doubt_language(texts: _Texts, doubts: ContentDoubts) -> None:
    sample = _sample_text([clip.text for clip in texts.clips])
    if script := find_other_script(sample, texts.language):
        _reject_foreign(texts, doubts, texts.clips, f"written in {script} letters", NAME_LANGUAGE)
    elif count_letters(sample) < LEAST_COMPARED:
        _note(texts, doubts, f"language of the texts not checked: fewer than {LEAST_COMPARED} letters", "language not checked")
    elif texts.language == AUTO:
        doubts.languages.update(dict.fromkeys(texts.names, f"looks {name_language(sample)}"))
    elif (compared := compare_language(sample, texts.language)) is None:
        _note(texts, doubts, f"language of the texts not checked: no model of {texts.language}", "language not checked")
    elif compared.margin > CLEAR_MARGIN:
        wrong = [clip for clip in texts.clips if not _is_clearly(clip.text, texts.language)]
        _reject_foreign(texts, doubts, wrong, compared.other, advise_language(compared.other))
    else:
        sure = "language fits" if compared.margin < -CLEAR_MARGIN else f"language {texts.language} or {compared.other}"
        doubts.languages.update(dict.fromkeys(texts.names, sure))
        _count_foreign(texts, doubts)


def _reject_foreign(texts: _Texts, doubts: ContentDoubts, wrong: Sequence[MeasuredClip], looks: str, advice: str) -> None:
    doubts.by_clip.update({clip.id: Doubt(FOREIGN, f"looks {looks}, not {texts.language}") for clip in wrong})
    text = f"the texts look {looks}, not {texts.language}: {advice}; {WAY_OUT}"
    doubts.notices.append(Notice(text=text, recordings=texts.names))
    doubts.languages.update(dict.fromkeys(texts.names, f"looks {looks}, not {texts.language}"))


def _note(texts: _Texts, doubts: ContentDoubts, text: str, brief: str) -> None:
    doubts.notices.append(Notice(text=text, recordings=texts.names, is_warning=False))
    doubts.languages.update(dict.fromkeys(texts.names, brief))


def _is_clearly(text: str, language: str) -> bool:
    """Return whether one sentence is certainly in this language."""
    if count_letters(text) < LEAST_ALONE:
        return False
    compared = compare_language(text, language)
    return compared is not None and compared.margin < -CLEAR_MARGIN


def _count_foreign(texts: _Texts, doubts: ContentDoubts) -> None:
    """Count sentences in other languages among texts that are in the declared one as a whole: a speaker may change the language."""
    others: Counter[str] = Counter()
    example = ""
    for clip in texts.clips:
        compared = compare_language(clip.text, texts.language) if count_letters(clip.text) >= LEAST_ALONE else None
        if compared is not None and compared.margin > CLEAR_ALONE:
            others[compared.other] += 1
            example = example or " ".join(clip.text.split())[:60]
    if others:
        shown = ", ".join(f"{name} ({count})" for name, count in others.most_common(3))
        text = (
            f"{others.total()} of {format_count(len(texts.clips), 'text')} look like another language than {texts.language}: {shown}, such "
            f"as {example!r}; they are kept: listen to some"
        )
        doubts.notices.append(Notice(text=text, recordings=texts.names))


def _sample_text(texts: Sequence[str]) -> str:
    """Return texts from all parts of a recording, together about as long as the text that is compared."""
    step = max(1, sum(map(len, texts)) // COMPARED_CHARACTERS)
    return " ".join(texts[::step])[: 2 * COMPARED_CHARACTERS]


def advise_language(found: str) -> str:
    """Return advice on texts in another language than declared."""
    return f"give --language {found}, or the transcripts of these recordings"


def describe_languages(languages: dict[str, str], option: str | None) -> list[Notice]:
    """Return a notice for recordings without a given language: the language that their texts seem to be in. `languages`: see
    `ContentDoubts`."""
    if option:
        return []
    groups: dict[str, list[str]] = defaultdict(list)
    for name, found in languages.items():
        if found.startswith("looks ") and ", not " not in found:
            groups[found.removeprefix("looks ")].append(name)
    several = len(groups) > 1
    advice = "is it right that there are several languages?" if several else ""
    return [
        Notice(
            text=f"no language was given, and the texts look {language}; {advice or f'name it in the rows with --language {language}'}",
            recordings=tuple(names),
            is_warning=several,
        )
        for language, names in groups.items()
    ]


def refuse_wrong_texts(texts: Sequence[str], language: str | None) -> None:
    """Refuse a run, before any work, if most texts were decoded wrongly or are in another language than was given. Raises
    `UserError`."""
    found, advice = find_garbled_texts(texts, language or "")
    if len(found) > REFUSED_SHARE * len(texts):
        raise UserError(f"--transcripts: {_describe_garbled(texts, found, advice)}; {WAY_OUT}")
    sample = _sample_text(texts)
    if script := find_other_script(sample, language or ""):
        raise UserError(f"--language {language}: the texts of the transcripts are written in {script} letters: {NAME_LANGUAGE}; {WAY_OUT}")
    compared = compare_language(sample, language) if language and count_letters(sample) >= LEAST_COMPARED else None
    if compared is not None and compared.margin > CLEAR_MARGIN:
        right = sum(_is_clearly(text, language or "") for text in texts)
        if right <= (1 - REFUSED_SHARE) * len(texts):
            raise UserError(
                f"--language {language}: the texts of the transcripts look {compared.other}: {advise_language(compared.other)}; {WAY_OUT}"
            )
