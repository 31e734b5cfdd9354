"""The demo's results, from clips with known sound and words, and the conditions for a successful run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC, slug
from overtone.recipes.voice_clone.demo import comparison_clips, demo_metrics
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER, BEFORE, ComparisonClip
from overtone.recipes.voice_clone.demo.demo_metrics import Figures, Outcome

TEXTS = ("the house is small", "a river was dark", "who sells books")
REAL, KNOWN, OTHER = 110.0, 220.0, 330.0
"""Hz: in these tests, a voice is a pitch."""


def tone(path: Path, hz: float) -> None:
    time = np.arange(24_000) / 24_000
    wave = sum(np.sin(2 * np.pi * hz * k * time) / k for k in range(1, 6))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_flac(Audio((0.1 * wave).astype(np.float32), 24_000)))


@pytest.fixture
def evaluated(tmp_path: Path) -> tuple[Path, Path]:
    """(evaluation, new voice). Before training, the model sounds like a known voice and speaks one text wrongly; after, it sounds like the
    new voice."""
    evaluation, new_voice = tmp_path / "evaluation", tmp_path / "new_voice"
    for name, hz in (("kal16", KNOWN), ("slt", OTHER)):
        tone(new_voice / "known" / name / "0.flac", hz)
    rows, clips = [], []
    for at, text in enumerate(TEXTS):
        tone(new_voice / "held_out" / f"{at:02d}.flac", REAL + at)
        rows.append({"audio": f"held_out/{at:02d}.flac", "text": text})
        for system, hz, heard in (
            (RECORDINGS, REAL, text),
            (THROUGH_CODEC, REAL, text),
            ("base, zero-shot", KNOWN, text if at else "nothing"),
            ("export", REAL, text),
        ):
            key = f"held_out-{at + 1:04d}"
            clips.append({"system": system, "key": key, "text": text, "heard": heard})
            if system != RECORDINGS:
                tone(evaluation / "clips" / slug(system) / f"{key}.flac", hz + 0.5)
    (new_voice / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (evaluation / "evaluation.json").write_text(json.dumps({"clips": clips}))
    return evaluation, new_voice


def test_each_system_is_compared_with_its_texts_and_with_all_voices(evaluated: tuple[Path, Path]) -> None:
    evaluation, new_voice = evaluated
    found = demo_metrics.measure_systems(comparison_clips.read_clips(evaluation, new_voice), new_voice, "rms", None)
    assert list(found) == [RECORDINGS, THROUGH_CODEC, BEFORE, AFTER] and {one.released_wer for one in found.values()} == {None}
    assert (found[RECORDINGS].wer, found[AFTER].wer) == (0.0, 0.0)
    assert found[BEFORE].wer == pytest.approx(4 / 11, abs=1e-4)
    assert all(system.wer_of_others > 0.8 for system in found.values())
    assert found[BEFORE].nearest_name == "kal16" and found[BEFORE].nearest > found[BEFORE].new_voice
    assert found[AFTER].new_voice > 0.7 > found[AFTER].nearest
    assert found[RECORDINGS].new_voice < 0.99, "a recording is compared with the others, not with itself"


def test_transcripts_by_a_released_recognizer_have_a_column_of_their_own(
    evaluated: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, new_voice = evaluated
    monkeypatch.setattr(intelligibility, "transcribe", lambda recognizer, clip, language: Transcription(f"by {recognizer}"))
    found = demo_metrics.measure_systems(comparison_clips.read_clips(evaluation, new_voice), new_voice, "rms", "ours")  # type: ignore[arg-type]  # a name is enough
    assert found[BEFORE].released_wer == pytest.approx(4 / 11, abs=1e-4) and found[AFTER].released_wer == 0.0
    assert found[BEFORE].wer == found[AFTER].wer == 1.0, "ours wrote other words"


def test_more_recordings_of_the_new_voice_do_not_change_the_scale_of_the_similarity(evaluated: tuple[Path, Path]) -> None:
    evaluation, new_voice = evaluated
    for number in range(len(TEXTS), demo_metrics.NEW_VOICE_CLIPS):
        tone(new_voice / "held_out" / f"{number:02d}.flac", REAL + number / 2)
    clips = comparison_clips.read_clips(evaluation, new_voice)
    before = demo_metrics.measure_systems(clips, new_voice, "rms", None)
    for number in range(10):
        tone(new_voice / "held_out" / f"{90 + number}.flac", REAL + number / 3)
    assert demo_metrics.measure_systems(clips, new_voice, "rms", None) == before


def test_transcripts_are_compared_with_the_script() -> None:
    script = [
        {"recording": "a.ogg", "start": 1.0, "end": 2.0, "text": "The house is small."},
        {"recording": "a.ogg", "start": 3.0, "end": 4.0, "text": "Who sells books?"},
        {"recording": "b.ogg", "start": 1.0, "end": 2.0, "text": "Never heard."},
    ]
    rows = [
        {"source": "rms/a.ogg", "start": 0.8, "end": 4.2, "text": "The house was small. Who sells books?"},
        {"source": "rms/b.ogg", "start": 5.0, "end": 6.0, "text": "A cough."},
    ]
    assert demo_metrics.compute_preparation_wer(rows, script) == pytest.approx(3 / 7, abs=1e-4), (
        "one wrong word, and two where nobody spoke"
    )


GOOD = {
    RECORDINGS: Figures(0.01, 1.0, 0.95, 0.5, "awb"),
    BEFORE: Figures(0.2, 1.0, 0.6, 0.8, "awb"),
    AFTER: Figures(0.1, 1.0, 0.9, 0.55, "awb"),
}


def outcome(**after: float) -> Outcome:
    systems = {**GOOD, AFTER: replace(GOOD[AFTER], **after)}
    return Outcome(systems, 0.02, {"clips": 50, "rejected": 3, "rejected_by_reason": {"low_snr": 3}}, (4.0, 1.0))


def test_a_successful_run_reports_all_results() -> None:
    assert outcome().list_failures() == []
    assert all(word in outcome().format_table() for word in ("before", "after", "real recordings", "0.900", "10.0%", "2.0%"))
    judge = "whisper-demo-en, a small recognizer that we trained on the voices of the demo"
    record = outcome().to_json()
    assert record["judge"] == judge and judge in outcome().format_table()
    assert record["systems"]["after"]["wer"] == 0.1
    assert record["released_judge"] is None and "No released recognizer was at hand" in outcome().format_table()
    assert record["preparation"]["wer"] == 0.02 and record["preparation"]["rejected_by_reason"] == {"low_snr": 3}


def test_the_wer_of_a_released_recognizer_stands_beside_our_own() -> None:
    found = replace(outcome(released_wer=0.436), released="tiny.en.pt")
    *_, head, _, _, after = found.format_table().splitlines()
    assert after[: head.index("tiny.en.pt") + len("tiny.en.pt")].split() == ["after", "10.0%", "43.6%"]
    assert found.to_json()["released_judge"] == "tiny.en.pt" and found.to_json()["systems"]["after"]["released_wer"] == 0.436


def test_a_word_error_rate_is_not_rounded_before_the_table_rounds_it(tmp_path: Path) -> None:
    said = ["boat"] * 346
    clip = ComparisonClip(" ".join(said), " ".join([*said[:-5], *["goat"] * 5]), tmp_path / "a.flac", tmp_path / "real.flac")
    assert f"{demo_metrics.compute_word_error_rate([clip], 0):.1%}" == "1.4%", "5 of 346"


def test_another_recognizer_transcribes_every_clip_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_metrics, "read_clip", lambda path: path)
    monkeypatch.setattr(intelligibility, "transcribe", lambda recognizer, clip, language: Transcription(f"{recognizer} {clip} {language}"))
    clip = ComparisonClip("A text.", "by ours", tmp_path / "a.flac", tmp_path / "real.flac")
    assert demo_metrics.transcribe_again([clip], "tiny.en") == [replace(clip, heard=f"tiny.en {clip.path} english")]


@pytest.mark.parametrize(
    ("after", "failure"),
    [
        ({"wer": 0.6}, "the WER of the trained voice is 60%"),
        ({"wer_of_others": 0.2}, "does not speak its own text"),
        ({"new_voice": 0.62}, "no clear gain"),
        ({"nearest": 0.95}, "more similar to awb"),
    ],
)
def test_each_broken_promise_is_reported(after: dict[str, float], failure: str) -> None:
    assert any(failure in message for message in outcome(**after).list_failures())
