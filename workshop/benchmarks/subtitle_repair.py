"""Subtitles with a drifting clock or jumps beside real speech: the share of cues that is trusted at a right and at a wrong time.

The recordings are joined from Debian's telephone prompts, one speaker for each of five languages: apt-get install
asterisk-core-sounds-{en,es,fr,it,ru} asterisk-core-sounds-{en,es,fr,it,ru}-wav. Where they are unpacked in another folder (dpkg -x),
PROMPTS names it. Without them, nothing is measured and the table stays.
"""

from __future__ import annotations

import gzip
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, Track, convert_position
from overtone.data_prep.pipeline import transcript_timing
from overtone.data_prep.pipeline.lazy_audio import LazyAudio
from overtone.data_prep.pipeline.recording_results import DetectedSpeech, Job, TimedText
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.timed_transcript import TimedUtterance
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation import vad
from overtone.data_prep.segmentation.clip_segmentation import Lengths, TextUnit
from overtone.data_prep.segmentation.subtitle_repair import TimingRepair, TimingSegment
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.terminal import print_line
from workshop.benchmarks import _table

ROOT = Path(os.environ.get("PROMPTS", "/"))
VOICES = {"en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo", "ru": "ru_RU_f_IvrvoiceRU"}
RATE, CUES, LEAST_SECONDS = 16_000, 90, 0.7
JITTER = 0.15
"""Seconds by which the times of cues are wrong besides, uniformly."""
UNKNOWN = "?"
"""Text of speech that the subtitles do not have, or not all of."""
RIGHT_SECONDS = 0.5
"""A cue is wrong if its time is wrong by more, or if it is not spoken, or not all of it."""
COLUMNS = ("error of the subtitles", "right", "wrong", "right without repair", "wrong without repair", "measured")
NOTE = (
    f"Five recordings of up to {CUES} prompts, one for each language, with pauses of 0.3 to 1.4 s; times wrong by up to {JITTER} s "
    "besides. Shares of the cues that are spoken completely, all five together, by the times that `overtone voice --transcripts` "
    f"gives them where it trusts them (otherwise their clips are `mistimed_text`); wrong: by more than {RIGHT_SECONDS} s. No model but "
    "silero-vad is used. Jumps are at 37 %, or at 30 and 70 %, of the recording, not at pauses; inserted sound is speech in another "
    "language. Measured: drift or offset of the last segment in summary.json, least and most, and of how many recordings. The rest is "
    "lost: cues beside a jump, and segments of fewer than 24 cues."
)


class Cue(NamedTuple):
    """A text with its times in seconds."""

    start: float
    stop: float
    text: str


class Case(NamedTuple):
    """An error of subtitles: their clock is fast by `ppm`, and (place, seconds) are inserted into the sound, or cut out if negative."""

    name: str
    ppm: float = 0.0
    edits: tuple[tuple[float, float], ...] = ()


CASES = (
    Case("none"),
    *(Case(f"clock {ppm:+,} ppm", ppm) for ppm in (100, -100, 1_000, -1_000, 40_000, -40_000)),
    *(
        Case(f"{abs(seconds)} s {'inserted' if seconds > 0 else 'cut out'} at {len(places)} place{'s' * (len(places) > 1)}", 0.0, edits)
        for places in ((0.37,), (0.3, 0.7))
        for seconds in (15, 60, -15, -60)
        for edits in [tuple((place, float(seconds)) for place in places)]
    ),
)
QUICK = (CASES[0], CASES[3], CASES[7])


def main() -> None:
    flags = _table.read_flags(__doc__)
    if not all((ROOT / "usr/share/asterisk/sounds" / voice).is_dir() for voice in VOICES.values()):
        print_line(f"{_table.SKIPPED}needs the telephone prompts: see the first lines of workshop/benchmarks/subtitle_repair.py")
        return
    spoken = {language: join_prompts(language) for language in (["en", "fr"] if flags.quick else VOICES)}
    lines, speech = [], dict[tuple[str, tuple[tuple[float, float], ...]], list[Region]]()
    with tempfile.TemporaryDirectory() as folder:
        for case in QUICK if flags.quick else CASES:
            with_repair = measure_case(case, spoken, speech, Path(folder))
            with mock.patch.object(transcript_timing, "_repair_times", lambda *_: TimingRepair()):
                without = measure_case(case, spoken, speech, Path(folder))
            lines.append([case.name, *with_repair[:2], *without[:2], with_repair[2]])
    _table.publish("subtitle_repair", flags, COLUMNS, lines, NOTE)


def join_prompts(language: str) -> tuple[np.ndarray, list[Cue]]:
    """Samples [n] at 16 kHz of prompts in a random order with pauses between them, and where each is."""
    texts = ROOT / f"usr/share/doc/asterisk-core-sounds-{language}/core-sounds-{language}.txt.gz"
    lines = [line.partition(":") for line in gzip.decompress(texts.read_bytes()).decode(errors="replace").split("\n") if line[:1] != ";"]
    found = [
        (ROOT / "usr/share/asterisk/sounds" / VOICES[language] / f"{name.strip()}.wav", text.strip(' “”"\r')) for name, _, text in lines
    ]
    usable = sorted((path, text) for path, text in found if text and not set(text) & set("[](){}<>*") and path.is_file())
    chance = random.Random(language)
    chance.shuffle(usable)
    pieces, cues, position = [np.zeros(RATE // 2)], list[Cue](), RATE // 2
    for path, text in usable:
        samples, rate = soundfile.read(path)
        if len(samples) < LEAST_SECONDS * rate or len(cues) == CUES:
            continue
        samples, pause = soxr.resample(samples, rate, RATE), np.zeros(int(chance.uniform(0.3, 1.4) * RATE))
        cues.append(Cue(position / RATE, (position + len(samples)) / RATE, f"{len(cues)} {text}"))
        pieces += [samples, pause]
        position += len(samples) + len(pause)
    noise = np.random.default_rng(0).standard_normal(position)
    return np.concatenate(pieces) + 10 ** (-70 / 20) * noise, cues


def edit_sound(
    sound: tuple[np.ndarray, list[Cue]], other: tuple[np.ndarray, list[Cue]], edits: Sequence[tuple[float, float]]
) -> tuple[np.ndarray, list[Cue]]:
    """The sound with the edits, and what is spoken in it. `other`: what is inserted."""
    samples, cues = sound
    pieces, truth, position, new = [], list[Cue](), 0, 0
    for place, seconds in [*edits, (1.0, 0.0)]:
        stop = int(place * len(samples))
        for cue in cues:
            start, end = max(cue.start, position / RATE), min(cue.stop, stop / RATE)
            if start < end:
                text = cue.text if end - start > cue.stop - cue.start - 0.01 else UNKNOWN
                truth.append(Cue(start + (new - position) / RATE, end + (new - position) / RATE, text))
        pieces.append(samples[position:stop])
        new, position = new + stop - position, stop
        if seconds > 0:
            pieces.append(other[0][: int(seconds * RATE)])
            truth += [Cue(new / RATE + cue.start, new / RATE + min(cue.stop, seconds), UNKNOWN) for cue in other[1] if cue.start < seconds]
            new += int(seconds * RATE)
        else:
            position += int(-seconds * RATE)
    return np.concatenate(pieces), truth


def measure_case(
    case: Case,
    spoken: dict[str, tuple[np.ndarray, list[Cue]]],
    speech: dict[tuple[str, tuple[tuple[float, float], ...]], list[Region]],
    folder: Path,
) -> tuple[str, str, str]:
    """(share right, share wrong, measured) of all cues that are spoken completely. `speech`: regions that are known already."""
    right = wrong = count = 0
    segments = []
    for language, sound in spoken.items():
        samples, truth = edit_sound(sound, spoken["fr" if language != "fr" else "en"], case.edits)
        length, key = convert_position(len(samples), RATE, MASTER_RATE), (language, case.edits)
        if key not in speech:
            speech[key] = vad.find_speech(vad.load_vad(), Audio(samples.astype(np.float32), RATE), length)
        found = time_cues(make_utterances(sound[1], 1 + case.ppm * 1e-6), speech[key], length, folder)
        places = {cue.text: cue.start for cue in truth if cue.text != UNKNOWN}
        count += len(places)
        for unit in found.units:
            if is_trusted(unit, found):
                error = abs(places.get(unit.text.strip(), -1e9) - unit.start / MASTER_RATE)
                right, wrong = right + (error <= RIGHT_SECONDS), wrong + (error > RIGHT_SECONDS)
        segments += found.repair.segments[-1:]
    return f"{right / count:.1%}", f"{wrong / count:.1%}", describe_measured(segments, case)


def make_utterances(cues: Sequence[Cue], rate: float) -> UserTranscript:
    """The transcript by a clock of this rate."""
    chance = random.Random(0)
    times = [(max(0.0, cue.start + chance.uniform(-JITTER, JITTER)) * rate, cue.stop * rate) for cue in cues]
    return UserTranscript(
        utterances=tuple(TimedUtterance(start=start, end=stop, text=cue.text) for (start, stop), cue in zip(times, cues, strict=True))
    )


def time_cues(transcript: UserTranscript, regions: list[Region], length: int, folder: Path) -> TimedText:
    """The times that a run gives the cues."""
    source = RecordingSource(Path("talk.wav"), "talk.wav", f"{length}", "prompts")
    speech = DetectedSpeech(track=Track(rate=MASTER_RATE, frames=length, weights=(1.0,), offset=0.0), regions=regions)
    job = Job(folder, Lengths(), None, None)
    with Models(None, "cpu", folder) as models:
        sound = LazyAudio(source.path, models)
        run = RecordingRun(source, transcript, job, Stages(folder / "stages"), models)
        return transcript_timing.time_transcript(run, transcript, speech, sound)


def is_trusted(unit: TextUnit, found: TimedText) -> bool:
    """Return whether a clip of this cue would not be rejected for its time."""
    middle = (unit.start + unit.stop) // 2
    timing = min(found.timings, key=lambda one: max(one.start - middle, middle - one.stop, 0))
    return timing.is_trusted and not any(unit.start < region.middle < unit.stop for region in found.repair.unproven)


def describe_measured(segments: Sequence[TimingSegment], case: Case) -> str:
    """The numbers of the last segment of each recording."""
    if not segments:
        return "–"
    values = [segment.offset if case.edits else segment.drift_ppm for segment in segments]
    digits, unit = (2, "s") if case.edits else (0, "ppm")
    return f"{min(values):+,.{digits}f} to {max(values):+,.{digits}f} {unit} ({len(values)})"


if __name__ == "__main__":
    main()
