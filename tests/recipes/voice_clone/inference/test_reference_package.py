"""The yardstick is the package itself, untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.voice_clone.inference import reference_package


def test_it_is_the_package_and_most_bounds_it(two_voices: Any) -> None:
    tts = reference_package.load(two_voices.base)
    assert type(tts).__module__ == "qwen_tts.inference.qwen3_tts_model"
    row = two_voices.rows[0]
    codes = reference_package.greedy_codes(tts, row["text"], "anna", "english", most=4)
    assert codes.tolist() == row["audio_codes"][:4]


def test_a_stored_voice_is_the_row_of_the_table(nano: Path) -> None:
    tts = reference_package.load(nano)
    prompt = reference_package.stored_voice(tts, 3)
    assert prompt.x_vector_only_mode and prompt.ref_code is None
    assert prompt.ref_spk_embedding.equal(tts.model.talker.model.codec_embedding.weight[3])
