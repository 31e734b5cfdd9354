"""Queue of the review page: filters and sort orders of clips, and the decision that each button makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from overtone.data_prep.clips.review_decisions import Action, Decision
from overtone.data_prep.pages import voice_dataset_loader
from overtone.data_prep.pages.quality_rule_effects import Weakness, build_candidate_clips, find_weaknesses, list_rules
from overtone.data_prep.pages.voice_dataset_loader import Dataset, ReportClip
from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError

ALL, KEPT, REJECTED, OPEN, DECIDED = "all clips", "kept", "rejected", "not decided yet", "decided"
WORST, IN_ORDER, SHORTEST, LONGEST = "worst first", "as recorded", "shortest first", "longest first"
ORDERS = (WORST, IN_ORDER, SHORTEST, LONGEST)


@dataclass(frozen=True)
class ReviewQueue:
    """All clips with audio, and the weakest measure of each."""

    clips: dict[str, ReportClip]
    """By id."""
    weaknesses: dict[str, Weakness]


def build_queue(dataset: Dataset) -> ReviewQueue:
    """Return the queue of a dataset. Raises `UserError` if no clip has both an audio file and an id."""
    clips = {
        clip.id: clip
        for clip in (*dataset.kept, *dataset.rejected)
        if clip.id and clip.audio and voice_dataset_loader.resolve_clip(dataset, clip).is_file()
    }
    if not clips:
        raise UserError(
            f"{dataset.folder} has no clips with audio; create it with: {overtone_command('voice', 'RECORDINGS', '--out', dataset.folder)}"
        )
    return ReviewQueue(clips, find_weaknesses(build_candidate_clips(dataset), list_rules(dataset)))


def list_views(queue: ReviewQueue) -> list[str]:
    """Return the filters: groups, then the rejection reasons that occur."""
    reasons = sorted({reason for clip in queue.clips.values() for reason in clip.reasons})
    return [ALL, KEPT, REJECTED, OPEN, DECIDED, *reasons]


def select_clips(queue: ReviewQueue, decisions: Mapping[str, Decision], view: str, order: str, search: str) -> list[str]:
    """Return the ids of the clips in `view` whose text, recording, speaker and id contain all words of `search`, ignoring case."""
    wanted = search.casefold().split()
    found = [clip for clip in queue.clips.values() if _is_in(clip, view, clip.id in decisions) and _matches(clip, wanted)]
    return [clip.id for clip in sorted(found, key=lambda clip: (_rank_clip(queue, clip, order), clip.source, clip.start, clip.id))]


def make_decision(clip: ReportClip, before: Decision | None, action: Action, text: str, note: str) -> Decision:
    """Return the decision to save. It repeats an earlier corrected text, because only the last line of a clip counts.

    Raises `UserError` if `action` is "text" and the text has no visible character.
    """
    corrected = " ".join(remove_invisible(text)[0].split())
    if action == "undo":
        return Decision(id=clip.id, action="undo")
    if action == "text" and not corrected:
        raise UserError(f"{clip.id}: enter the transcript of the clip, or reject it")
    written = action == "text" or corrected != clip.text or (before is not None and before.text is not None)
    return Decision(id=clip.id, action=action, text=corrected if written and corrected else None, note=note.strip() or None)


def _is_in(clip: ReportClip, view: str, decided: bool) -> bool:
    groups = {ALL: True, KEPT: not clip.reasons, REJECTED: bool(clip.reasons), OPEN: not decided, DECIDED: decided}
    return groups.get(view, view in clip.reasons)


def _matches(clip: ReportClip, words: list[str]) -> bool:
    everything = f"{clip.text} {clip.source} {clip.speaker} {clip.id}".casefold()
    return all(word in everything for word in words)


def _rank_clip(queue: ReviewQueue, clip: ReportClip, order: str) -> float:
    if order == WORST:
        return queue.weaknesses[clip.id].margin if clip.id in queue.weaknesses else inf
    return {IN_ORDER: 0.0, SHORTEST: clip.seconds, LONGEST: -clip.seconds}[order]
