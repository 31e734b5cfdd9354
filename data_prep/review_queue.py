"""What there is to review: which clips, in which order, and what a press on a button decides about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from data_prep import report_clips
from data_prep.decisions import Action, Decision
from data_prep.report_clips import Clip, Dataset
from data_prep.report_rules import Weakness, judged, rules_of, weaknesses
from finetune.errors import UserError

ALL, KEPT, REJECTED, OPEN, DECIDED = "all clips", "kept", "rejected", "not decided yet", "decided"
WORST, IN_ORDER, SHORTEST, LONGEST = "worst first", "as recorded", "shortest first", "longest first"
ORDERS = (WORST, IN_ORDER, SHORTEST, LONGEST)


@dataclass(frozen=True)
class Queue:
    """Everything that can be listened to."""

    clips: dict[str, Clip]
    """By id."""
    weaknesses: dict[str, Weakness]


def queue_of(dataset: Dataset) -> Queue:
    """Raises `UserError` if nothing in the dataset has both a sound and an id."""
    clips = {
        clip.id: clip
        for clip in (*dataset.kept, *dataset.rejected)
        if clip.id and clip.audio and report_clips.path_of(dataset, clip).is_file()
    }
    if not clips:
        raise UserError(
            f"{dataset.folder} has no clip to listen to; make it with: python -m data_prep voice RECORDINGS --out {dataset.folder}"
        )
    return Queue(clips, weaknesses(judged(dataset), rules_of(dataset)))


def views(queue: Queue) -> list[str]:
    """What can be asked for: groups, then the reasons that occur."""
    reasons = sorted({reason for clip in queue.clips.values() for reason in clip.reasons})
    return [ALL, KEPT, REJECTED, OPEN, DECIDED, *reasons]


def select(queue: Queue, decisions: Mapping[str, Decision], view: str, order: str, search: str) -> list[str]:
    """Ids of the clips in `view` that hold `search` in their text, recording, speaker or id, in any case."""
    wanted = search.casefold().split()
    found = [clip for clip in queue.clips.values() if _is_in(clip, view, clip.id in decisions) and _holds(clip, wanted)]
    return [clip.id for clip in sorted(found, key=lambda clip: (_rank(queue, clip, order), clip.source, clip.start, clip.id))]


def after(ids: list[str], id: str, steps: int) -> str:
    """The clip `steps` further, staying inside of the list. What is not in the list stays."""
    return ids[min(max(ids.index(id) + steps, 0), len(ids) - 1)] if id in ids else id


def decide(clip: Clip, before: Decision | None, action: Action, text: str, note: str) -> Decision:
    """The decision to write down. A text that a person once wrote stays with its clip: the last line alone holds.

    Raises `UserError` if a text is to be saved and there is none.
    """
    said = " ".join(text.split())
    if action == "undo":
        return Decision(id=clip.id, action="undo")
    if action == "text" and not said:
        raise UserError(f"{clip.id}: write what is said in the clip, or reject it")
    written = action == "text" or said != clip.text or (before is not None and before.text is not None)
    return Decision(id=clip.id, action=action, text=said if written and said else None, note=note.strip() or None)


def _is_in(clip: Clip, view: str, decided: bool) -> bool:
    groups = {ALL: True, KEPT: not clip.reasons, REJECTED: bool(clip.reasons), OPEN: not decided, DECIDED: decided}
    return groups.get(view, view in clip.reasons)


def _holds(clip: Clip, words: list[str]) -> bool:
    everything = f"{clip.text} {clip.source} {clip.speaker} {clip.id}".casefold()
    return all(word in everything for word in words)


def _rank(queue: Queue, clip: Clip, order: str) -> float:
    if order == WORST:
        return queue.weaknesses[clip.id].margin if clip.id in queue.weaknesses else inf
    return {IN_ORDER: 0.0, SHORTEST: clip.seconds, LONGEST: -clip.seconds}[order]
