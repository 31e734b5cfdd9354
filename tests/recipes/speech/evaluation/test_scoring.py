"""Everything that is measured of a clip, on real files; and what a clip must not be held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from finetune.errors import UserError
from recipes.speech.evaluation import metrics as figures
from recipes.speech.evaluation import scoring as listening
from recipes.speech.evaluation import speaker_similarity as likeness
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.metrics import DURATION, PACE, metric_value
from recipes.speech.evaluation.systems import RECORDINGS, Take
from tests.recipes.voice_clone.conftest import voice

VOICES = {"low": (110.0, 0.9), "high": (233.0, 0.5)}


def written(path: Path, wave: np.ndarray) -> Path:
    soundfile.write(path, wave, 24_000)
    return path


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """Two speakers, two recordings each."""
    folder = tmp_path_factory.mktemp("clips")
    return [
        Item(f"{name}{at}", "x" * 15, name, "english", written(folder / f"{name}{at}.flac", voice(*sound, 1.0 + at / 10)))
        for name, sound in VOICES.items()
        for at in range(2)
    ]


@pytest.fixture(scope="module")
def listeners(items: list[Item]) -> listening.Listeners:
    return listening.load_listeners(items, [likeness.spectral()], None)


def recordings(items: list[Item]) -> list[Take]:
    return [Take(item, item.recording, True) for item in items if item.recording]


def test_a_right_voice_is_nearer_than_a_swapped_one(items: list[Item], listeners: listening.Listeners, tmp_path: Path) -> None:
    right = [Take(item, written(tmp_path / f"{item.key}.flac", voice(*VOICES[item.speaker], 1.1)), True) for item in items]
    swapped = [replace(take, path=other.path) for take, other in zip(right, right[2:] + right[:2], strict=True)]
    scored = listening.score_all({RECORDINGS: recordings(items), "right": right, "swapped": swapped}, listeners)
    metric = figures.similarity_metric(likeness.SPECTRAL)
    found = {name: metric_value(metric, clips) for name, clips in scored.items()}
    assert found["right"] is not None and found["swapped"] is not None and found[RECORDINGS] is not None
    assert found["right"] > 0.5 > 0 > found["swapped"]
    (stranger,) = listening.similarity_of_strangers(listeners).values()
    assert abs(found["swapped"] - stranger) < abs(found["right"] - stranger), "another's voice is a stranger"


def test_stretched_speech_shows_in_duration_and_pace(items: list[Item], listeners: listening.Listeners, tmp_path: Path) -> None:
    slow = [Take(item, written(tmp_path / f"{item.key}.flac", voice(*VOICES[item.speaker], 1.5)), True) for item in items]
    scored = listening.score_all({RECORDINGS: recordings(items), "slow": slow}, listeners)
    assert metric_value(DURATION, scored["slow"]) == pytest.approx(6.0 / 4.2)
    assert metric_value(PACE, scored["slow"]) == pytest.approx(60 / 6.0) and metric_value(PACE, scored[RECORDINGS]) == pytest.approx(
        60 / 4.2
    )


def test_silence_is_a_finding_and_no_error(items: list[Item], listeners: listening.Listeners, tmp_path: Path) -> None:
    mute = [Take(item, written(tmp_path / f"{item.key}.flac", np.zeros(24_000)), False) for item in items[:1]]
    scored = listening.score_all({RECORDINGS: recordings(items), "mute": mute}, listeners)
    (one,) = scored["mute"]
    assert one.sound.silent_seconds == one.sound.seconds == 1.0 and one.similarities == {likeness.SPECTRAL: None}
    assert [note for note in listening.describe_failures(scored, listeners) if note.startswith("mute: 1 of 1 clips have no similarity")]


def test_a_clip_is_compared_with_other_clips_than_its_recording_and_its_reference(
    listeners: listening.Listeners, items: list[Item]
) -> None:
    ((_, voices),) = listeners.encoders
    own, other = items[0].recording, items[1].recording
    assert own is not None and other is not None
    assert listening.excluded_clips(voices, items[0]) == {own}
    assert listening.excluded_clips(voices, replace(items[0], recording=None, reference=other)) == {other}
    assert listening.excluded_clips(voices, replace(items[0], reference=other)) == {own}, "nothing would be left to hold it to"


def test_a_clip_that_cannot_be_decoded_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.flac").write_bytes(b"fLaC" + bytes(100))
    with pytest.raises(UserError, match=r"broken\.flac cannot be used \(unreadable"):
        listening.check_clips([Item("1", "Hello.", "a", "auto", tmp_path / "broken.flac")])
