"""Duplicate clips: the same sound in two recordings or twice in one. The copy from the best recording is kept.

Sounds are compared by their fingerprints, wherever the recordings were cut; clips with the same words, or nearly so, and nearly the same
length are compared even if too few words of their fingerprints are equal. A second take of a sentence sounds different and is kept. Where
the texts differ, every word must have the same waveform: synthetic voices speak the common words of two sentences equally.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip, Match, compare_clips, find_matches
from overtone.data_prep.clips.measurements import WORD
from overtone.data_prep.clips.waveform_agreement import RATE, agrees_throughout, prepare_waveform

LENGTH_TOLERANCE, LENGTH_SECONDS = 0.02, 0.15
"""Clips of the same words are compared if their lengths differ by less than the larger of 2 % and 150 ms: voice activity detection moves
the ends of a damaged copy by up to 32 ms each, and clips follow the pauses."""
COVERED = 0.5
"""Share of a clip that others have to contain for it to be a duplicate: copies of a recording may be cut at different pauses."""
EDGES_SECONDS = 0.5
"""Maximum part of a duplicate that may be in no other clip if its text has words that they lack: silence before and after the words."""
WAVEFORMS = 64
"""Waveforms in memory, at most 1.3 MB each."""
COMPARED = 48
"""Clips of the same words that each is compared with, those of the most similar length: a wake word has thousands of takes."""
COMPARED_SIMILAR = 8
"""The same for clips that share half of the words."""
SLACK_FRAMES = 8
"""Frames of 32 ms by which clips of the same words may be shifted against each other: their starts are chosen in 250 ms of a pause."""


@dataclass(frozen=True)
class DuplicateCandidate:
    """A clip to compare with others."""

    sound: FingerprintedClip
    text: str
    quality: float
    """Quality of its recording: among copies, the clip with the largest is kept."""


@dataclass(frozen=True)
class FoundDuplicates:
    """Result of `find_duplicates`."""

    kept: dict[str, str] = field(default_factory=dict)
    """Id of each duplicate → id of the kept clip that has most of its sound."""
    takes: dict[str, str] = field(default_factory=dict)
    """Id of each clip that shares sound with another → the smallest id of all that are connected with it."""


def find_duplicates(
    clips: Iterable[DuplicateCandidate], read_sound: Callable[[str], Samples], wanted: frozenset[str] = frozenset()
) -> FoundDuplicates:
    """Return the duplicates among `clips`, and which clips share sound. A clip is kept if kept clips of better recordings have less than
    half of its sound, or lack some of its words and sound, or if it is `wanted`.

    `read_sound`: clip id → samples [n] at `MASTER_RATE`, at any level; called for clips with other texts and similar fingerprints.
    """
    by_id = {clip.sound.id: clip for clip in clips}
    matches = _keep_same_sound(_find_all_matches([by_id[identity] for identity in sorted(by_id)]), by_id, read_sound)
    shared: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for match in matches:
        shared[match.one].append((match.other, match.samples))
        shared[match.other].append((match.one, match.samples))
    doubles: dict[str, str] = {}
    decided: set[str] = set()
    for identity in sorted(shared, key=lambda one: _order_copies(by_id[one], one in wanted)):
        better = [(samples, other) for other, samples in shared[identity] if other in decided]
        if identity not in wanted and _is_covered(by_id[identity], [(samples, by_id[other].text) for samples, other in better]):
            doubles[identity] = max(better, key=lambda one: (one[0], -by_id[one[1]].sound.start))[1]
        else:
            decided.add(identity)
    return FoundDuplicates(doubles, _join_takes(matches))


def normalise_text(text: str) -> str:
    """Return the words of a text, case-folded, in Unicode NFKC."""
    return " ".join(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _order_copies(clip: DuplicateCandidate, wanted: bool) -> tuple[bool, float, str, int]:
    return not wanted, -clip.quality, clip.sound.recording, clip.sound.start


def _is_covered(clip: DuplicateCandidate, others: Sequence[tuple[int, str]]) -> bool:
    """Return whether other clips contain enough of a clip. `others`: (samples that they share, text)."""
    length, found = clip.sound.stop - clip.sound.start, sum(samples for samples, _ in others)
    if found < COVERED * length:
        return False
    words = Counter(word for _, text in others for word in normalise_text(text).split())
    return not Counter(normalise_text(clip.text).split()) - words or length - found <= EDGES_SECONDS * MASTER_RATE


def _keep_same_sound(
    matches: Sequence[Match], by_id: Mapping[str, DuplicateCandidate], read_sound: Callable[[str], Samples]
) -> list[Match]:
    """Return the matches of clips with one text, and those of other texts whose waveforms agree in every word."""
    prepare = functools.lru_cache(maxsize=WAVEFORMS)(lambda identity: prepare_waveform(read_sound(identity)))

    def is_same(match: Match) -> bool:
        one, other = by_id[match.one], by_id[match.other]
        if normalise_text(one.text) == normalise_text(other.text):
            return True
        begin = (other.sound.start + match.offset - one.sound.start) * RATE // MASTER_RATE
        return agrees_throughout(prepare(match.one), prepare(match.other), begin)

    return [match for match in matches if is_same(match)]


def _find_all_matches(clips: Sequence[DuplicateCandidate]) -> list[Match]:
    found = {(match.one, match.other): match for match in find_matches([clip.sound for clip in clips])}
    for one, other in itertools.chain(_pair_same_words(clips), _pair_similar_words(clips)):
        pair = (min(one.id, other.id), max(one.id, other.id))
        if pair not in found and (match := compare_clips(one, other, one.frame - other.frame, SLACK_FRAMES, 0.0)):
            found[pair] = match
    return [found[pair] for pair in sorted(found)]


def _pair_same_words(clips: Sequence[DuplicateCandidate]) -> Iterator[tuple[FingerprintedClip, FingerprintedClip]]:
    """Yield pairs of clips with the same words and nearly the same length."""
    texts: dict[str, list[FingerprintedClip]] = defaultdict(list)
    for clip in clips:
        texts[normalise_text(clip.text)].append(clip.sound)
    texts.pop("", None)
    for same in texts.values():
        yield from _pair_same_length(same, COMPARED)


def _pair_similar_words(clips: Sequence[DuplicateCandidate]) -> Iterator[tuple[FingerprintedClip, FingerprintedClip]]:
    """Yield pairs of clips of nearly the same length with the same first or second half of the words: a wrong word is in one of the
    halves."""
    halves: dict[tuple[str, ...], list[FingerprintedClip]] = defaultdict(list)
    for clip in clips:
        words = normalise_text(clip.text).split()
        if len(words) > 1:
            halves["first", *words[: len(words) // 2]].append(clip.sound)
            halves["second", *words[-(len(words) // 2) :]].append(clip.sound)
    for similar in halves.values():
        yield from _pair_same_length(similar, COMPARED_SIMILAR)


def _pair_same_length(sounds: Sequence[FingerprintedClip], most: int) -> Iterator[tuple[FingerprintedClip, FingerprintedClip]]:
    """Yield each clip with at most `most` others of nearly the same length, shorter ones first."""
    ordered = sorted(sounds, key=lambda sound: (sound.stop - sound.start, sound.id))
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 : index + 1 + most]:
            longest = other.stop - other.start
            if longest - (one.stop - one.start) > max(LENGTH_TOLERANCE * longest, LENGTH_SECONDS * MASTER_RATE):
                break
            yield one, other


def _join_takes(matches: Sequence[Match]) -> dict[str, str]:
    """Return the connected components of the matches: each id → the smallest id of its component."""
    parents: dict[str, str] = {}

    def find(identity: str) -> str:
        path = [identity]
        while parents.setdefault(path[-1], path[-1]) != path[-1]:
            path.append(parents[path[-1]])
        parents.update(dict.fromkeys(path, path[-1]))
        return path[-1]

    for match in matches:
        first, second = sorted((find(match.one), find(match.other)))
        parents[second] = first
    return {identity: find(identity) for identity in sorted(parents)}
