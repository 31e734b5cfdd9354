"""Content of the result files of an evaluation: systems, scored clips and their metrics, by set of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overtone.recipes.speech.evaluation import intelligibility, metric_aggregation
from overtone.recipes.speech.evaluation.evaluation_items import ALL, SEEN, UNSEEN, list_groups
from overtone.recipes.speech.evaluation.metric_aggregation import Metric, ScoredClip, metric_value
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC, System

SET_TITLES = {UNSEEN: "Texts that are not in the training data", SEEN: "Texts of the training data", ALL: "All texts"}


@dataclass(frozen=True)
class Evaluation:
    """The content of the result files."""

    systems: Sequence[System]
    """The systems that speak, in the order of the table; checkpoints by step."""
    clips: Mapping[str, Sequence[ScoredClip]]
    """Name of the system → its clips. If the data has recordings, these are one more system."""
    encoders: Sequence[str]
    strangers: Mapping[str, float]
    """Encoder → mean similarity of real clips to other speakers; empty if the data has one speaker."""
    notes: Sequence[str]
    """Notes on what was not measured, and why."""
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def trained(self) -> list[System]:
        """The systems without the base."""
        return [system for system in self.systems if not system.is_base]

    @property
    def names(self) -> list[str]:
        """Names of all systems with clips: the recordings first, as the target."""
        return [*(name for name in (RECORDINGS, THROUGH_CODEC) if self.clips.get(name)), *(system.name for system in self.systems)]

    @property
    def titles(self) -> dict[str, str]:
        """Name of a system → what the page calls it."""
        titles = {RECORDINGS: "Real recordings", THROUGH_CODEC: "Real recordings, through the codec"}
        return titles | {system.name: system.title for system in self.systems}

    @property
    def judge(self) -> str:
        """A sentence that names the recognizer of the transcripts; empty without transcripts."""
        asr = self.settings.get("asr")
        return "" if asr is None else intelligibility.name_judge(str(asr))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that have a value for at least one system."""
        every = [clip for clips in self.clips.values() for clip in clips]
        return [metric for metric in metric_aggregation.all_metrics(self.encoders) if metric_value(metric, every) is not None]

    @property
    def groups(self) -> list[str]:
        return list_groups(clip.item for clips in self.clips.values() for clip in clips)

    def of(self, name: str, group: str) -> list[ScoredClip]:
        return [clip for clip in self.clips.get(name, ()) if clip.item.group == group]
