"""The demo's recordings: speech is at the times of the script, and no evaluation sentence is used for training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import AudioError, read_audio
from overtone.finetune.errors import UserError
from workshop.demo_models.corpus import grammar, make_new_voice
from workshop.demo_models.corpus.make_new_voice import FOLDER, SESSIONS, RecordingSession
from workshop.demo_models.corpus.voices import KNOWN_VOICES, RATE

SCRIPT = json.loads((FOLDER / "script.json").read_text())
ROWS = [json.loads(line) for line in (FOLDER / "held_out.jsonl").read_text().splitlines()]


def test_recordings_have_training_sentences_and_the_evaluation_has_held_out_ones() -> None:
    assert len(SCRIPT) == sum(session.sentences for session in SESSIONS)
    assert {grammar.find_split(line["text"]) for line in SCRIPT} == {"train"}
    assert {grammar.find_split(row["text"]) for row in ROWS} == {"held_out"}
    assert all((FOLDER / row[column]).is_file() for row in ROWS for column in ("audio", "ref_audio"))
    assert sorted(folder.name for folder in (FOLDER / "known").iterdir()) == sorted(voice.name for voice in KNOWN_VOICES)


@pytest.mark.parametrize("name", ["morning.mp3", "evening.ogg"])
def test_speech_is_at_the_times_of_the_script(name: str) -> None:
    samples = read_audio(FOLDER / "recordings" / "rms" / name, RATE).samples
    quiet = [line for at, line in enumerate(line for line in SCRIPT if line["recording"] == name) if at not in range(39, 45)]
    for line in quiet:
        loud = samples[round(line["start"] * RATE) : round(line["end"] * RATE)]
        rest = samples[round((line["end"] + 0.1) * RATE) : round((line["end"] + 0.4) * RATE)]
        assert np.square(loud).mean() > 100 * np.square(rest).mean(), line


def test_the_damaged_recording_is_refused_or_shorter_than_declared() -> None:
    path = FOLDER / "recordings" / "rms" / "torn.flac"
    try:
        found = read_audio(path, RATE)
    except AudioError:
        return
    assert len(found.samples) / RATE < 0.9 * soundfile.info(path).duration


@pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")
def test_the_same_seed_gives_the_same_audio(tmp_path: Path) -> None:
    session = RecordingSession("short.flac", 16_000, "PCM_16", 1, coughs=(0,), vacuum=range(1))
    lines = [make_new_voice.write_recording(tmp_path / name, session, ["Where is the house?"]) for name in ("one", "two")]
    assert lines[0] == lines[1] and lines[0][0]["start"] > 1.0, "after the cough"
    one, two = ((tmp_path / name / "recordings" / "rms" / "short.flac").read_bytes() for name in ("one", "two"))
    assert one == two


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already exists"):
        make_new_voice.main([str(tmp_path)])
