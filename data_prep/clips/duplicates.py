"""Duplicate clips: the same sound in two recordings or twice in one. The copy from the best recording is kept.

Sounds are compared by their fingerprints, wherever the recordings were cut; clips with the same words and nearly the same length are
compared even if too few words of their fingerprints are equal. A second take of a sentence sounds different and is kept.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from data_prep.audio.waveform import MASTER_RATE
from data_prep.clips.fingerprint_matching import FingerprintedClip, Match, compare_clips, find_matches
from data_prep.clips.measurements import WORD

LENGTH_TOLERANCE, LENGTH_SECONDS = 0.02, 0.15
"""Clips of the same words are compared if their lengths differ by less than the larger of 2 % and 150 ms: voice activity detection moves
the ends of a damaged copy by up to 32 ms each, and clips follow the pauses."""
COVERED = 0.5
"""Share of a clip that others have to contain for it to be a duplicate: copies of a recording may be cut at different pauses."""
COMPARED = 48
"""Clips of the same words that each is compared with, those of the most similar length: a wake word has thousands of takes."""
SLACK_FRAMES = 8
"""Frames of 32 ms by which clips of the same words may be shifted against each other: their starts are chosen in 250 ms of a pause."""


@dataclass(frozen=True)
class DuplicateCandidate:
    """A clip as it is compared."""

    sound: FingerprintedClip
    text: str
    quality: float
    """Of its recording: among copies, the largest is kept."""


@dataclass(frozen=True)
class FoundDuplicates:
    """What `find_duplicates` found."""

    kept: dict[str, str] = field(default_factory=dict)
    """Id of each duplicate → id of the kept clip that has most of its sound."""
    takes: dict[str, str] = field(default_factory=dict)
    """Id of each clip that shares sound with another → the smallest id of all that are connected with it."""


def find_duplicates(clips: Iterable[DuplicateCandidate], wanted: frozenset[str] = frozenset()) -> FoundDuplicates:
    """The duplicates among `clips`, and which clips share sound. A clip is kept if kept clips of better recordings have less than half of
    its sound, or if it is `wanted`.
    """
    by_id = {clip.sound.id: clip for clip in clips}
    matches = _find_all_matches([by_id[identity] for identity in sorted(by_id)])
    shared: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for match in matches:
        shared[match.one].append((match.other, match.samples))
        shared[match.other].append((match.one, match.samples))
    doubles: dict[str, str] = {}
    decided: set[str] = set()
    for identity in sorted(shared, key=lambda one: _order_copies(by_id[one], one in wanted)):
        sound = by_id[identity].sound
        better = [(samples, other) for other, samples in shared[identity] if other in decided]
        if identity not in wanted and sum(samples for samples, _ in better) >= COVERED * (sound.stop - sound.start):
            doubles[identity] = max(better, key=lambda one: (one[0], -by_id[one[1]].sound.start))[1]
        else:
            decided.add(identity)
    return FoundDuplicates(doubles, _join_takes(matches))


def normalise_text(text: str) -> str:
    """The words of a text, case-folded, in Unicode NFKC."""
    return " ".join(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _order_copies(clip: DuplicateCandidate, wanted: bool) -> tuple[bool, float, str, int]:
    return not wanted, -clip.quality, clip.sound.recording, clip.sound.start


def _find_all_matches(clips: Sequence[DuplicateCandidate]) -> list[Match]:
    found = {(match.one, match.other): match for match in find_matches([clip.sound for clip in clips])}
    for one, other in _pair_same_words(clips):
        pair = (min(one.id, other.id), max(one.id, other.id))
        if pair not in found and (match := compare_clips(one, other, one.frame - other.frame, SLACK_FRAMES, 0.0)):
            found[pair] = match
    return [found[pair] for pair in sorted(found)]


def _pair_same_words(clips: Sequence[DuplicateCandidate]) -> Iterator[tuple[FingerprintedClip, FingerprintedClip]]:
    """Clips with the same words and nearly the same length, shorter ones first."""
    texts: dict[str, list[FingerprintedClip]] = defaultdict(list)
    for clip in clips:
        texts[normalise_text(clip.text)].append(clip.sound)
    texts.pop("", None)
    for same in texts.values():
        ordered = sorted(same, key=lambda sound: (sound.stop - sound.start, sound.id))
        for index, one in enumerate(ordered):
            for other in ordered[index + 1 : index + 1 + COMPARED]:
                longest = other.stop - other.start
                if longest - (one.stop - one.start) > max(LENGTH_TOLERANCE * longest, LENGTH_SECONDS * MASTER_RATE):
                    break
                yield one, other


def _join_takes(matches: Sequence[Match]) -> dict[str, str]:
    """Connected components of the matches: each id → the smallest id of its component."""
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
