"""End to end: the stock package reproduces memorized clips code by code, for the right speaker and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.recipes.qwen3_tts.inference import stock_qwen_tts


def spoken(tts: Any, row: dict[str, Any], speaker: str, text: str) -> list[list[int]]:
    return stock_qwen_tts.generate_greedy_codes(tts, text, speaker.lower(), row["language"], max_frames=40).tolist()


@pytest.mark.parametrize("fixture", ["one_voice", "two_voices"])
@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_the_stock_package_reproduces_memorized_clips_exactly(fixture: str, kind: str, request: pytest.FixtureRequest) -> None:
    learned = request.getfixturevalue(fixture)
    tts = stock_qwen_tts.load(getattr(learned, kind))
    assert type(tts).__module__ == "qwen_tts.inference.qwen3_tts_model" and tts.model.tts_model_type == kind
    for row in learned.rows:
        assert spoken(tts, row, row["speaker"], row["text"]) == row["audio_codes"]


def test_speaker_and_text_determine_the_codes(two_voices: Any) -> None:
    tts = stock_qwen_tts.load(two_voices.custom_voice)
    expected = {(row["speaker"], row["text"]): row["audio_codes"] for row in two_voices.rows}
    assert len(expected) == 4 and len({str(codes) for codes in expected.values()}) == 4
    for row in two_voices.rows:  # with everything else as in this row, speaker and text alone decide
        for (speaker, text), codes in expected.items():
            assert spoken(tts, row, speaker, text) == codes


def test_exported_embedding_rows_are_the_speaker_vectors(two_voices: Any) -> None:
    tts = stock_qwen_tts.load(two_voices.custom_voice)
    table = tts.model.talker.model.codec_embedding.weight
    for index, name in enumerate(("anna", "bert")):
        row = tts.model.config.talker_config.spk_id[name]
        torch.testing.assert_close(table[row], two_voices.ready.loaded.buffers["speaker_vectors"][index], rtol=0, atol=0)


def test_a_base_export_can_be_trained_with_more_speakers(two_voices: Any, tmp_path: Path, corpus: Any, rows_of: Any, ready: Any) -> None:
    made = corpus(tmp_path / "more", rows_of({"Carla": "low.flac", "Anna": "high.flac"}))
    again = ready(made.config(two_voices.base), made.rows)
    rows = {speaker.name: speaker.row for speaker in again.loaded.state.speakers}
    before = {speaker.name: speaker.row for speaker in two_voices.ready.loaded.state.speakers}
    assert rows == {"anna": before["anna"], "carla": max(before.values()) + 1}
