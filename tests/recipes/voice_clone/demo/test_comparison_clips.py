"""What the demo compares: who said which sentence, and what the codec alone makes of it."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.speech.evaluation import intelligibility
from recipes.speech.evaluation.scoring import read_clip
from recipes.speech.evaluation.systems import RECORDINGS
from recipes.voice_clone.demo import comparison_clips, pipeline
from recipes.voice_clone.demo.comparison_clips import AFTER, BEFORE, Said


def test_the_clips_of_each_in_order_beside_the_recordings(tmp_path: Path) -> None:
    names = ("export", "qwen3-tts-demo-base, zero-shot", RECORDINGS)
    clips = [
        {"system": name, "key": f"held_out-000{at}", "text": text, "heard": None if name == "export" else f" {text} "}
        for name in names
        for at, text in ((2, "Two."), (1, "One."))
    ]
    (tmp_path / "evaluation.json").write_text(json.dumps({"clips": clips}))
    rows = [{"audio": f"held_out/{at:02d}.ogg", "text": text} for at, text in enumerate(("One.", "Two."))]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = comparison_clips.read(tmp_path, tmp_path)
    assert list(said) == [RECORDINGS, BEFORE, AFTER] and all([clip.text for clip in clips] == ["One.", "Two."] for clips in said.values())
    assert said[RECORDINGS][0] == Said("One.", "One.", tmp_path / "held_out" / "00.ogg", tmp_path / "held_out" / "00.ogg")
    assert said[AFTER][1] == Said("Two.", "", tmp_path / "clips" / "export" / "held_out-0002.flac", tmp_path / "held_out" / "01.ogg")
    assert said[BEFORE][0].path == tmp_path / "clips" / "qwen3-tts-demo-base-zero-shot" / "held_out-0001.flac"


def test_through_the_codec_a_recording_is_another_sound_that_says_the_same(tmp_path: Path) -> None:
    row = comparison_clips.rows_of(pipeline.NEW_VOICE / "held_out.jsonl")[0]
    real = pipeline.NEW_VOICE / row["audio"]
    (coded,) = comparison_clips.through_codec([Said(row["text"], row["text"], real, real)], pipeline.CODEC, pipeline.WHISPER, tmp_path)
    errors = intelligibility.count_errors(row["text"], coded.heard, "english")
    assert errors and errors.wrong_words <= errors.words / 3
    before, after = read_clip(real), read_clip(coded.path)
    assert abs(len(before) - len(after)) < 2 * 1920 and coded.path.parent == tmp_path and coded.real == real
