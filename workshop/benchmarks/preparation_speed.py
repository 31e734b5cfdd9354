"""Processor seconds that each step of data preparation takes for an hour of recording, without Whisper.

One recording of speech from the embedded sample with pauses of 0.2 to 0.4 s, and a transcript of letters as long as its speech, goes
through the pipeline in one process; the time of each stage is taken where its result is stored. Decoding and resampling are timed apart.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, load_track, probe_recording
from overtone.data_prep.cli import voice
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.segmentation import vad
from overtone.finetune.storage import files
from workshop.benchmarks import _table, transcribe_speed

MINUTES = 3.0
LETTERS_PER_SECOND = 13
STEPS = {
    "speech": "detect speech",
    "voice_windows": "speaker vectors (resemblyzer)",
    "clips": "measure the recording; cut, measure and write the clips",
    "sound_quality": "rate the sound (speechmos)",
}
COLUMNS = ("step", "seconds of one core for an hour", "times real time")
NOTE = (
    "Processor seconds of one thread, from one run; the first use of each network was before. Steps of packages that are not installed are "
    "left out. Writing texts with Whisper is in transcribe_speed."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(str(Path(sys.prefix) / "similarity"))  # where `make` installs the speaker encoder of the tests
    sound = transcribe_speed.recording(0.5 if flags.quick else MINUTES, transcribe_speed.PAUSES["0.2 to 0.4 s"])
    with tempfile.TemporaryDirectory() as folder:
        taken = {name: time_decoding(Path(folder), sound, name) for name in ("flac", "mp3")}
        rows = [[f"decode {name.upper()}, resample to 24 and 16 kHz", *describe(seconds, sound)] for name, seconds in taken.items()]
        stages = time_stages(Path(folder), sound)
    rows += [[what, *describe(stages[stage], sound)] for stage, what in STEPS.items() if stage in stages]
    _table.publish("preparation_speed", flags, COLUMNS, rows, NOTE)


def describe(seconds: float, sound: Audio) -> tuple[str, str]:
    return f"{seconds * 3600 / sound.seconds:.1f}", f"{sound.seconds / seconds:.0f}"


def time_decoding(folder: Path, sound: Audio, suffix: str) -> float:
    """Processor seconds for a file at 44.1 kHz."""
    path = folder / f"decoded.{suffix}"
    soundfile.write(path, soxr.resample(sound.samples, MASTER_RATE, 44100), 44100)

    def decode() -> None:
        load_track(path, probe_recording(path), MASTER_RATE, SPEECH_RATE)

    return transcribe_speed.processor_seconds(decode)


def time_stages(folder: Path, sound: Audio) -> dict[str, float]:
    """Stage → processor seconds, of the second of two recordings; the first one loads the networks."""
    write_recording(folder / "first", Audio(sound.samples[: 20 * MASTER_RATE], MASTER_RATE))
    write_recording(folder / "second", sound)
    for name in ("first", "second"):
        spent: dict[str, float] = defaultdict(float)
        with mock.patch.object(Stages, "run", timed(spent)):
            voice.main([str(folder / name), "--out", str(folder / "out"), "--transcripts", "--workers", "0", "--preset", "keep-all"])
    return dict(spent)


def timed(spent: dict[str, float]) -> Callable[..., Any]:
    """`Stages.run` that adds the time of what it computes to the stage. No stage is computed inside another one."""
    run = Stages.run

    def run_timed(stages: Stages, stage: str, inputs: Any, kind: Any, compute: Callable[[], Any], *rest: Any) -> Any:
        def compute_timed() -> Any:
            began = time.process_time()
            found = compute()
            spent[stage] += time.process_time() - began
            return found

        return run(stages, stage, inputs, kind, compute_timed, *rest)

    return run_timed


def write_recording(folder: Path, sound: Audio) -> None:
    """A WAV file, with a cue for each stretch of speech."""
    folder.mkdir()
    soundfile.write(folder / "talk.wav", sound.samples, MASTER_RATE)
    regions = vad.find_speech(vad.load_vad(), transcribe_speed.make_whisper(sound), len(sound.samples))
    words = "alpha bravo charlie delta echo foxtrot golf hotel india " * 40
    cues = [
        {"start": one.start / MASTER_RATE, "end": one.stop / MASTER_RATE, "text": words[: int(LETTERS_PER_SECOND * one.seconds)].strip()}
        for one in regions
    ]
    files.write_json(folder / "talk.json", cues)


if __name__ == "__main__":
    main()
