"""The numbers of Whisper's special tokens as `generation_config.json`, which transformers' `generate` needs for a language and a task."""

from __future__ import annotations

from pydantic import JsonValue

from .sequence_layout import RecognizerProcessor, load_tokenizer


def describe_generation(processor: RecognizerProcessor) -> dict[str, JsonValue]:
    """The content of the file, as the released models have it."""
    tokens = load_tokenizer(processor, "en", "transcribe")
    content: dict[str, JsonValue] = {
        **{f"{name}_token_id": tokens.eot for name in ("bos", "eos", "pad")},
        **{"decoder_start_token_id": tokens.sot, "no_timestamps_token_id": tokens.no_timestamps, "max_length": processor.positions},
        **{"is_multilingual": processor.multilingual, "return_timestamps": False, "prev_sot_token_id": tokens.sot_prev},
    }
    if processor.multilingual:
        codes = zip(tokens.all_language_codes, tokens.all_language_tokens, strict=True)
        content |= {"lang_to_id": {f"<|{code}|>": number for code, number in codes}}
        content |= {"task_to_id": {"transcribe": tokens.transcribe, "translate": tokens.translate}}
    return content
