"""The reference is the unmodified stock package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overtone.recipes.qwen3_tts.inference import stock_qwen_tts


def test_greedy_codes_come_from_the_package_and_stop_at_max_frames(two_voices: Any) -> None:
    tts = stock_qwen_tts.load(two_voices.base)
    assert type(tts).__module__ == "qwen_tts.inference.qwen3_tts_model"
    row = two_voices.rows[0]
    codes = stock_qwen_tts.generate_greedy_codes(tts, row["text"], "anna", "english", max_frames=4)
    assert codes.tolist() == row["audio_codes"][:4]


def test_a_stored_voice_is_its_row_of_the_codec_embedding(nano: Path) -> None:
    tts = stock_qwen_tts.load(nano)
    prompt = stock_qwen_tts.make_stored_voice_prompt(tts, 3)
    assert prompt.x_vector_only_mode and prompt.ref_code is None
    assert prompt.ref_spk_embedding.equal(tts.model.talker.model.codec_embedding.weight[3])
