"""Small datasets in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.dataset.duration_accounting import RecordingDurations, Summary
from overtone.data_prep.manifest import Quality
from overtone.data_prep.pages.voice_dataset_loader import Dataset, ReportClip

QUALITY: dict[str, Any] = {
    "chars_per_second": 15.0,
    "speech_share": 0.9,
    "peak_dbfs": -3.0,
    "clipped_share": 0.0,
    "edge_energy_db": (-50.0, -48.0),
    "snr_db": 40.0,
}


def clip(id: str, reasons: tuple[str, ...] = (), **changes: Any) -> ReportClip:
    """A good clip of 4 s, but for `changes` of it or of its quality."""
    quality = QUALITY | {key: changes.pop(key) for key in list(changes) if key in Quality.model_fields}
    stage = "clip" if reasons else "train"
    fields = {
        "audio": f"clips/{id}.flac",
        "text": f"Text of {id}.",
        "speaker": "ann",
        "language": "english",
        "source": "a.wav",
        "start": 0.0,
    }
    return ReportClip(**({"id": id, "seconds": 4.0, "stage": stage, "reasons": reasons, "quality": Quality(**quality)} | fields | changes))


def whole(source: str, reason: str, seconds: float = 0.0, detail: str = "") -> ReportClip:
    """A recording that was refused."""
    return ReportClip("", "", "", "ann", "auto", source, 0.0, seconds, "recording", (reason,), detail)


def dataset(folder: Path, kept: list[ReportClip], rejected: list[ReportClip], silent: float = 3.0, **settings: Any) -> Dataset:
    """With a summary that adds up; `silent`: seconds without speech."""
    good, bad = (sum(one.seconds for one in clips) for clips in (kept, rejected))
    accounts = [_account(source, kept, rejected) for source in sorted({one.source for one in (*kept, *rejected)})]
    settings = {"lengths": {"target": 6.0, "shortest": 1.0, "longest": 20.0}, "preset": "default"} | settings
    summary = Summary(
        recordings=len(accounts),
        input_seconds=good + bad + silent,
        kept_seconds=good,
        rejected_seconds=bad,
        non_speech_seconds=silent,
        clips=len(kept),
        rejected=len(rejected),
        rejected_by_reason={},
        rejected_seconds_by_reason={},
        train=len(kept),
        val=0,
        speakers={"ann": good},
        languages={"english": good},
        settings=settings,
        sources=accounts,
    )
    return Dataset(folder, summary, kept, rejected)


def _account(source: str, kept: list[ReportClip], rejected: list[ReportClip]) -> RecordingDurations:
    good, bad = (round(sum(one.seconds for one in clips if one.source == source) * MASTER_RATE) for clips in (kept, rejected))
    clips = sum(one.source == source for one in kept)
    return RecordingDurations(source=source, speaker="ann", total=good + bad, kept=good, rejected=bad, non_speech=0, clips=clips)
