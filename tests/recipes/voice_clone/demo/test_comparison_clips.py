"""The demo's clips: which system spoke which sentence."""

from __future__ import annotations

import json
from pathlib import Path

from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC
from overtone.recipes.voice_clone.demo import comparison_clips
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER, BEFORE, ComparisonClip


def test_clips_of_each_system_are_in_order_and_have_their_recording(tmp_path: Path) -> None:
    names = ("export", "qwen3-tts-demo-base, zero-shot", THROUGH_CODEC, RECORDINGS)
    clips = [
        {"system": name, "key": f"held_out-000{at}", "text": text, "heard": None if name == "export" else f" {text} "}
        for name in names
        for at, text in ((2, "Two."), (1, "One."))
    ]
    (tmp_path / "evaluation.json").write_text(json.dumps({"clips": clips}))
    rows = [{"audio": f"held_out/{at:02d}.ogg", "text": text} for at, text in enumerate(("One.", "Two."))]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = comparison_clips.read_clips(tmp_path, tmp_path)
    assert list(found) == [RECORDINGS, THROUGH_CODEC, BEFORE, AFTER] and all(
        [clip.text for clip in clips] == ["One.", "Two."] for clips in found.values()
    )
    assert found[RECORDINGS][0] == ComparisonClip("One.", "One.", tmp_path / "held_out" / "00.ogg", tmp_path / "held_out" / "00.ogg")
    assert found[AFTER][1] == ComparisonClip(
        "Two.", "", tmp_path / "clips" / "export" / "held_out-0002.flac", tmp_path / "held_out" / "01.ogg"
    )
    assert found[THROUGH_CODEC][0].path == tmp_path / "clips" / "through-the-codec" / "held_out-0001.flac"
    assert found[BEFORE][0].path == tmp_path / "clips" / "qwen3-tts-demo-base-zero-shot" / "held_out-0001.flac"
