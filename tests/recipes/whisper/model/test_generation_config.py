"""The numbers of special tokens are those of openai-whisper's tokenizers, English-only and multilingual."""

from __future__ import annotations

from overtone.recipes.whisper.model.generation_config import describe_generation
from tests.recipes.whisper.tiny_whisper import ENGLISH, PROCESSOR


def test_tokens_are_numbered_as_in_the_released_models() -> None:
    """From the generation_config.json of openai/whisper-tiny and openai/whisper-tiny.en."""
    found = describe_generation(PROCESSOR)
    assert (found["eos_token_id"], found["decoder_start_token_id"], found["no_timestamps_token_id"]) == (50257, 50258, 50363)
    assert found["task_to_id"] == {"transcribe": 50359, "translate": 50358} and found["prev_sot_token_id"] == 50361
    languages = found["lang_to_id"]
    assert isinstance(languages, dict) and len(languages) == 99 and languages["<|en|>"] == 50259
    english = describe_generation(ENGLISH)
    assert (english["eos_token_id"], english["decoder_start_token_id"], english["no_timestamps_token_id"]) == (50256, 50257, 50362)
    assert "lang_to_id" not in english
