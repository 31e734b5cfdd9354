"""Duration accounting: how much of each recording was kept, rejected or without speech (summary.json and the final table)."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from overtone.data_prep import manifest
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.manifest import ManifestRow, Reject
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.user_notices import Notice, join_all_texts
from overtone.data_prep.recordings.removed_text import RemovedKind
from overtone.data_prep.segmentation.subtitle_repair import TimingSegment
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.errors import format_count


class RecordingDurations(BaseModel):
    """Durations of one recording in samples at `MASTER_RATE`; kept + rejected + non_speech = total, checked by `compute_durations`."""

    model_config = ConfigDict(frozen=True)

    source: str
    speaker: str
    total: int
    kept: int
    rejected: int
    non_speech: int
    clips: int
    warning: str = ""
    """Every warning and note about this recording."""
    texts: str = ""
    """Source of its texts, and how they were verified."""
    channels: str = ""
    """Channels that were used: `mono`, `mix`, or the name of one of several; empty: the recording was rejected."""
    timing: list[TimingSegment] = []
    """Segments in which the times of the transcript were repaired; empty if they were not."""
    cues_left_out: int = 0
    """Cues of a repaired transcript whose times are not proven."""


class Summary(BaseModel):
    """Contents of summary.json: totals over all recordings, and the account of each."""

    model_config = ConfigDict(frozen=True)

    recordings: int
    input_seconds: float
    kept_seconds: float
    rejected_seconds: float
    non_speech_seconds: float
    clips: int
    rejected: int
    rejected_by_reason: dict[str, int]
    """Number of clips per reason; a clip that fails several rules is counted for each."""
    rejected_seconds_by_reason: dict[str, float]
    train: int
    val: int
    speakers: dict[str, float]
    """Kept seconds per speaker."""
    languages: dict[str, float]
    removed_text: dict[str, RemovedKind] = {}
    """Text that was removed from the transcripts because nobody speaks it, by kind."""
    settings: dict[str, object]
    notices: list[Notice] = []
    """Warnings and notes about the dataset, or about several recordings."""
    channels: dict[str, int] = {}
    """Number of recordings by the channels used; only recordings with several."""
    sources: list[RecordingDurations]


def compute_all_durations(
    recordings: list[PreparedRecording],
    rows: list[ManifestRow],
    rejects: list[Reject],
    notices: Sequence[Notice],
    texts: Mapping[str, str],
) -> list[RecordingDurations]:
    """Return the durations of each recording, checked by `compute_durations`, with what the `notices` say about it. `texts`: recording →
    how its texts were verified."""
    kept, rejected = _group_spans(rows), _group_spans(rejects)
    warnings = join_all_texts(notices)
    return [
        compute_durations(
            one.source.name,
            one.source.speaker,
            one.total,
            list(one.regions),
            kept[one.source.name],
            rejected[one.source.name],
            one.channels,
        ).model_copy(
            update={
                "warning": warnings.get(one.source.name, ""),
                "texts": texts.get(one.source.name, ""),
                "timing": one.repair.segments,
                "cues_left_out": one.repair.left_out,
            }
        )
        for one in recordings
    ]


def compute_durations(
    source: str,
    speaker: str,
    total: int,
    regions: list[Region],
    kept: list[Region],
    rejected: list[Region],
    channels: str = "",
) -> RecordingDurations:
    """Return the durations of one recording. Raises RuntimeError, which means a bug, if clips overlap or speech is in no clip."""
    spans = sorted([*kept, *rejected])
    position = 0
    outside = []
    for span in [*spans, Region(total, total)]:
        if span.start < position or span.stop > total:
            raise RuntimeError(f"{source}: clip {span} overlaps another clip or exceeds the recording of {total} samples")
        if span.start > position:
            outside.append(Region(position, span.start))
        position = span.stop
    lost = [region for region in regions if _overlaps(region, outside)]
    if lost:
        raise RuntimeError(f"{source}: speech at {lost[0].start / MASTER_RATE:.2f} s is in no clip and in no reject")
    return RecordingDurations(
        source=source,
        speaker=speaker,
        total=total,
        kept=sum(span.stop - span.start for span in kept),
        rejected=sum(span.stop - span.start for span in rejected),
        non_speech=sum(gap.stop - gap.start for gap in outside),
        clips=len(kept),
        channels=channels,
    )


def make_summary(
    accounts: list[RecordingDurations],
    rows: list[ManifestRow],
    rejects: list[Reject],
    settings: dict[str, object],
    notices: Sequence[Notice],
) -> Summary:
    """Return the summary of all recordings. Raises RuntimeError if the durations do not add up exactly."""
    total, kept, rejected, rest = (sum(getattr(one, field) for one in accounts) for field in ("total", "kept", "rejected", "non_speech"))
    if kept + rejected + rest != total:
        raise RuntimeError(f"{kept} kept + {rejected} rejected + {rest} without speech are not {total} samples")
    summary = Summary(
        recordings=len(accounts),
        input_seconds=_convert_to_seconds(total),
        kept_seconds=_convert_to_seconds(kept),
        rejected_seconds=_convert_to_seconds(rejected),
        non_speech_seconds=_convert_to_seconds(rest),
        clips=len(rows),
        rejected=len(rejects),
        rejected_by_reason=dict(sorted(Counter(reason for reject in rejects for reason in reject.reasons).items())),
        rejected_seconds_by_reason=_sum_by_name((reason, reject.end - reject.start) for reject in rejects for reason in reject.reasons),
        train=sum(row.split == "train" for row in rows),
        val=sum(row.split == "val" for row in rows),
        speakers=_sum_by_name((row.speaker or "", row.duration or 0.0) for row in rows),
        languages=_sum_by_name((row.language, row.duration or 0.0) for row in rows),
        settings=settings,
        notices=[notice for notice in notices if len(notice.recordings) != 1],
        channels=dict(sorted(Counter(one.channels for one in accounts if one.channels not in ("", "mono")).items())),
        sources=accounts,
    )
    return summary.model_copy(update={"notices": [*summary.notices, *list_result_notices(summary)]})


def list_result_notices(summary: Summary) -> list[Notice]:
    """Return notices about the durations and the split of a dataset."""
    notices = []
    if summary.rejected_seconds > summary.kept_seconds:
        reasons = sorted(summary.rejected_by_reason, key=lambda reason: -summary.rejected_by_reason[reason])
        text = f"more speech was rejected than kept; main reasons: {', '.join(reasons[:3])}; see {manifest.REJECTS}"
        notices.append(Notice(text=text))
    if summary.clips and summary.settings.get("val_share") and not summary.val:
        text = "no validation clips: all clips share a text or a sound, or there is only one; give other recordings for validation"
        notices.append(Notice(text=text))
    return notices


def format_summary(summary: Summary) -> str:
    """Return the summary as a table for the terminal."""
    lines = [
        _format_line("input", summary.input_seconds, format_count(summary.recordings, "recording"), summary),
        _format_line(
            "kept", summary.kept_seconds, f"{format_count(summary.clips, 'clip')}: {summary.train} train, {summary.val} val", summary
        ),
        _format_line("rejected", summary.rejected_seconds, format_count(summary.rejected, "piece"), summary),
    ]
    for reason, count in sorted(summary.rejected_by_reason.items(), key=lambda item: (-item[1], item[0])):
        lines.append(_format_line(f"  {reason}", summary.rejected_seconds_by_reason[reason], format_count(count, "piece"), summary))
    lines.append(_format_line("no speech", summary.non_speech_seconds, "", summary))
    lines += [_format_line(f"speaker {name}", seconds, "", summary) for name, seconds in summary.speakers.items()]
    if summary.channels:
        of_each = ", ".join(f"{count} {name}" for name, count in summary.channels.items())
        lines.append(f"channels of recordings with several: {of_each}")
    return "\n".join(lines)


def _overlaps(region: Region, gaps: list[Region]) -> bool:
    """Return whether `region` shares a sample with one of the sorted `gaps`. Bisection: hours of speech have thousands of both."""
    next_gap = bisect.bisect_right(gaps, region.start, key=lambda gap: gap.stop)
    return next_gap < len(gaps) and gaps[next_gap].start < region.stop


def _group_spans(entries: Iterable[ManifestRow | Reject]) -> dict[str, list[Region]]:
    """Return the sample ranges by source, converted back from seconds; six decimals are exact at this rate."""
    spans: dict[str, list[Region]] = defaultdict(list)
    for entry in entries:
        spans[entry.source or ""].append(Region(round((entry.start or 0.0) * MASTER_RATE), round((entry.end or 0.0) * MASTER_RATE)))
    return spans


def _format_line(what: str, seconds: float, note: str, summary: Summary) -> str:
    share = seconds / summary.input_seconds if summary.input_seconds else 0.0
    return f"{what:<24}{format_clock(seconds):>12}{share:>8.1%}  {note}".rstrip()


def format_clock(seconds: float) -> str:
    """Format seconds as hours:minutes:seconds, with one decimal."""
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{int(minutes // 60)}:{int(minutes % 60):02d}:{rest:04.1f}"


def _sum_by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in pairs:
        sums[name] += seconds
    return {name: round(seconds, 3) for name, seconds in sorted(sums.items())}


def _convert_to_seconds(samples: int) -> float:
    return round(samples / MASTER_RATE, 6)
