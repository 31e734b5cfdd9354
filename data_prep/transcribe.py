"""What Whisper hears: windows of speech in batches through `whisper.decode`, word times from its cross-attention.

No text is carried from one window to the next, so an invented sentence cannot spread. Only windows whose text fails the usual signs are
decoded again, at most twice, at a higher temperature. Every window has its own limit of tokens: a model that loops stops there and is
reported.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, to_rate
from data_prep.device import threads_kept
from data_prep.segment import Heard, Unit
from data_prep.vad import Region
from finetune import files
from finetune.errors import UserError

BATCH = 16
"""Windows at a time: the decoder then costs a third of what it costs one by one."""
FALLBACK_TEMPERATURES = (0.2, 0.6)
TOKENS_PER_SECOND, TOKENS_AT_LEAST = 10, 10
"""Twice what fast English needs."""
LOOKS_REPEATED, LOOKS_UNSURE, LOOKS_EMPTY = 2.4, -1.0, 0.6
WORD_TOLERANCE = 0.4
"""Seconds by which word times may miss a pause."""
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"


def weights_digest(name: str) -> str:
    """SHA-256 of the weights called `name` (a published name, or a path to a .pt file), without loading or fetching them."""
    import whisper

    if Path(name).is_file():
        return files.digest(Path(name))
    if name in whisper._MODELS:
        return whisper._MODELS[name].split("/")[-2]
    raise UserError(f"--whisper {name}: neither a file nor one of {', '.join(whisper.available_models())}")


def load_whisper(name: str, device: str) -> Any:
    """The model, from a .pt file or by its published name (fetched once into ~/.cache/whisper). Raises `UserError`."""
    import whisper

    try:
        return whisper.load_model(name, device=device)
    except OSError as error:
        raise UserError(
            f"--whisper {name}: the weights cannot be fetched ({error}); fetch the .pt file where there is a network, "
            "and give its path: --whisper /path/to/model.pt"
        ) from error
    except Exception as error:  # a foreign or broken file fails in many ways inside torch
        raise UserError(f"--whisper {name}: not a Whisper checkpoint ({type(error).__name__}: {error})") from error


def settings(name: str, language: str | None) -> dict[str, Any]:
    """All that the text depends on besides the sound: part of the cache key."""
    return {
        "whisper": version("openai-whisper"),
        "weights": weights_digest(name),
        "language": language,
        "batch": BATCH,
        "temperatures": FALLBACK_TEMPERATURES,
        "tokens": (TOKENS_PER_SECOND, TOKENS_AT_LEAST),
    }


def transcribe(model: Any, audio: Audio, windows: list[Region], language: str | None) -> list[Unit]:
    """Words in order, with the confidence of their window. `audio` at 16 kHz; `language`: a full name, or None to detect it by window."""
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper hears {SPEECH_RATE} Hz, not {audio.rate}")
    code = _language_code(model, language)
    mels = [_mel(model, audio, window) for window in windows]
    heard: dict[int, Any] = {}
    for batch in _by_length(windows):
        heard |= _decode(model, mels, windows, batch, code)
    with threads_kept():
        units = [unit for index, window in enumerate(windows) for unit in _words(model, mels[index], window, heard[index])]
    return sorted(units, key=lambda unit: (unit.start, unit.stop))


def token_limit(model: Any, seconds: float) -> int:
    """How many tokens a window may have."""
    return min(model.dims.n_text_ctx // 2, TOKENS_AT_LEAST + int(TOKENS_PER_SECOND * seconds))


def _language_code(model: Any, language: str | None) -> str | None:
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if not model.is_multilingual:
        if language not in (None, "english"):
            raise UserError(f"--language {language}: these Whisper weights know English only; choose multilingual ones")
        return "en"
    if language is None or language in LANGUAGES:
        return language
    if language not in TO_LANGUAGE_CODE:
        raise UserError(f"--language {language}: Whisper does not know it; known: {', '.join(sorted(TO_LANGUAGE_CODE))}")
    return TO_LANGUAGE_CODE[language]


def _mel(model: Any, audio: Audio, window: Region) -> Any:
    """[n_mels, 3000]: 30 s, zeros after the window."""
    import whisper

    start, stop = (to_rate(position, MASTER_RATE, SPEECH_RATE) for position in window)
    return whisper.log_mel_spectrogram(whisper.pad_or_trim(audio.samples[start:stop]), n_mels=model.dims.n_mels)


def _by_length(windows: list[Region]) -> list[list[int]]:
    """Indices in batches of like length: the longest of a batch decides how long all of it takes."""
    order = sorted(range(len(windows)), key=lambda index: (windows[index].stop - windows[index].start, index))
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def _decode(model: Any, mels: list[Any], windows: list[Region], batch: list[int], code: str | None) -> dict[int, Any]:
    """Greedy for all, then again with some temperature for those that failed; the greedy text stays if none is better."""
    results = dict(zip(batch, _decode_at(model, mels, windows, batch, code, 0.0), strict=True))
    for temperature in FALLBACK_TEMPERATURES:
        failing = [index for index in batch if _failed(results[index], token_limit(model, windows[index].seconds))]
        if not failing:
            break
        for index, again in zip(failing, _decode_at(model, mels, windows, failing, code, temperature), strict=True):
            if not _failed(again, token_limit(model, windows[index].seconds)):
                results[index] = again
    return results


def _decode_at(model: Any, mels: list[Any], windows: list[Region], batch: list[int], code: str | None, temperature: float) -> list[Any]:
    import torch
    import whisper

    options = whisper.DecodingOptions(
        language=code,
        temperature=temperature,
        without_timestamps=True,
        sample_len=max(token_limit(model, windows[index].seconds) for index in batch),
        fp16=model.device.type == "cuda",
    )
    with torch.random.fork_rng():
        torch.manual_seed(batch[0])  # the same text on every run, and the caller's generator untouched
        return whisper.decode(model, torch.stack([mels[index] for index in batch]).to(model.device), options)


def _failed(result: Any, limit: int) -> bool:
    if result.no_speech_prob > LOOKS_EMPTY and result.avg_logprob < LOOKS_UNSURE:
        return False  # silence: another try would only invent something
    return result.compression_ratio > LOOKS_REPEATED or result.avg_logprob < LOOKS_UNSURE or len(result.tokens) >= limit


def _words(model: Any, mel: Any, window: Region, result: Any) -> list[Unit]:
    from whisper.audio import HOP_LENGTH
    from whisper.timing import find_alignment, merge_punctuations
    from whisper.tokenizer import LANGUAGES, get_tokenizer

    tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages, language=result.language, task="transcribe")
    tokens = [token for token in result.tokens if token < tokenizer.eot]
    frames = int(window.seconds * SPEECH_RATE) // HOP_LENGTH
    words = find_alignment(model, tokenizer, tokens, mel.to(model.device), frames)
    merge_punctuations(words, OPENING, CLOSING)
    heard = Heard(
        language=LANGUAGES[result.language],
        avg_logprob=round(float(result.avg_logprob), 3),
        compression_ratio=round(float(result.compression_ratio), 3),
        no_speech_prob=round(float(result.no_speech_prob), 3),
        temperature=result.temperature,
        complete=len(result.tokens) < token_limit(model, window.seconds),
    )
    return [
        Unit(text=word.word, start=_position(window, word.start), stop=_position(window, word.end), heard=heard)
        for word in words
        if word.word
    ]


def _position(window: Region, seconds: float) -> int:
    return min(window.start + round(float(seconds) * MASTER_RATE), window.stop)
