"""What Whisper hears: packs of speech in batches through `whisper.decode`, word times from its cross-attention.

A pack is a row of neighbouring windows without the long pauses between them, because Whisper takes 30 s of sound whatever is in it. It is
encoded once, whatever follows. No text is carried from one pack to the next, so an invented sentence cannot spread. Only packs whose text
fails the usual signs are decoded again, at most twice, at a higher temperature. Every pack has its own limit of tokens: a model that loops
stops there and is reported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, to_rate
from data_prep.device import threads_kept
from data_prep.segment import Heard, Unit
from data_prep.vad import Region
from finetune import files
from finetune.errors import UserError

FORM = 3
"""Of the units: raise it when the code gives others for the same settings, so that stored ones are not taken for them."""
BATCH = 16
"""Packs at a time through the decoder, which then costs a third of what it costs one by one."""
ENCODED_AT_ONCE = 4
"""Packs at a time through the encoder, which gains nothing from more and only takes memory."""
PACK_SECONDS = 29.0
PAUSE_KEPT_SECONDS = 0.4
"""Of a pause that is left out, on either side: without it, the words around it would run together."""
FALLBACK_TEMPERATURES = (0.2, 0.6)
TOKENS_PER_SECOND, TOKENS_AT_LEAST = 10, 10
"""Twice what fast English needs."""
LOOKS_REPEATED, LOOKS_UNSURE, LOOKS_EMPTY = 2.4, -1.0, 0.6
WORD_TOLERANCE = 0.4
"""Seconds by which word times may miss a pause."""
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"

Pack = tuple[Region, ...]
"""Stretches of a recording that Whisper hears as one sound, one right after the other."""


def weights_digest(name: str) -> str:
    """SHA-256 of the weights called `name` (a published name, or a path to a .pt file), without loading or fetching them."""
    import whisper

    if Path(name).is_file():
        return files.digest(Path(name))
    if name in whisper._MODELS:
        return whisper._MODELS[name].split("/")[-2]
    raise UserError(f"--whisper {name}: neither a file nor one of {', '.join(whisper.available_models())}")


def fetch(name: str) -> Path:
    """The file with the weights; a published name is fetched into ~/.cache/whisper if it is not there. Raises `UserError`.

    To be done before several processes load them: they would fetch into the same file at the same time.
    """
    import whisper

    if Path(name).is_file():
        return Path(name)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whisper"
    try:
        return Path(str(whisper._download(whisper._MODELS[name], str(folder), in_memory=False)))
    except (OSError, RuntimeError) as error:
        raise _not_fetched(name, error) from error


def load_whisper(name: str, device: str) -> Any:
    """The model, from a .pt file or by its published name (fetched once into ~/.cache/whisper). Raises `UserError`."""
    import whisper

    try:
        return whisper.load_model(name, device=device)
    except OSError as error:
        raise _not_fetched(name, error) from error
    except Exception as error:  # a foreign or broken file fails in many ways inside torch
        raise UserError(f"--whisper {name}: not a Whisper checkpoint ({type(error).__name__}: {error})") from error


def _not_fetched(name: str, error: Exception) -> UserError:
    return UserError(
        f"--whisper {name}: the weights cannot be fetched ({error}); fetch the .pt file where there is a network, "
        "and give its path: --whisper /path/to/model.pt"
    )


def settings(name: str, language: str | None) -> dict[str, Any]:
    """All that the text depends on besides the sound: part of the cache key."""
    return {
        "form": FORM,
        "whisper": version("openai-whisper"),
        "weights": weights_digest(name),
        "language": language,
        "batch": BATCH,
        "temperatures": FALLBACK_TEMPERATURES,
        "pack": (PACK_SECONDS, PAUSE_KEPT_SECONDS),
        "tokens": (TOKENS_PER_SECOND, TOKENS_AT_LEAST),
    }


def transcribe(model: Any, audio: Audio, windows: list[Region], language: str | None) -> list[Unit]:
    """Words in order, with the confidence of their pack. `audio` at 16 kHz; `language`: a full name, or None to detect it by pack.

    Where Whisper fails, each stretch of the pack is a unit without a text that says why; the others go on.
    """
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper hears {SPEECH_RATE} Hz, not {audio.rate}")
    code = _language_code(model, language)
    units = [unit for batch in _by_length(pack(windows)) for unit in _hear(model, audio, batch, code)]
    return sorted(units, key=lambda unit: (unit.start, unit.stop))


def pack(windows: list[Region]) -> list[Pack]:
    """Neighbours together, with a part of the pauses between them, as long as they last 29 s at most."""
    packs: list[Pack] = []
    for window in windows:
        longer = _joined(packs[-1], window) if packs else ()
        if longer and _seconds(longer) <= PACK_SECONDS:
            packs[-1] = longer
        else:
            packs.append((window,))
    return packs


def token_limit(model: Any, seconds: float) -> int:
    """How many tokens a pack may have."""
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


def _joined(pack: Pack, window: Region) -> Pack:
    last, kept = pack[-1], int(PAUSE_KEPT_SECONDS * MASTER_RATE)
    middle = Region(last.stop, window.start).middle
    return (*pack[:-1], Region(last.start, min(last.stop + kept, middle)), Region(max(window.start - kept, middle), window.stop))


def _seconds(pack: Pack) -> float:
    return sum(stretch.seconds for stretch in pack)


def _by_length(packs: list[Pack]) -> list[list[Pack]]:
    """Batches of like length: the longest of a batch decides how long it takes. The longest first: what lacks memory fails early."""
    ordered = sorted(packs, key=lambda pack: (-_seconds(pack), pack))
    return [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]


def _hear(model: Any, audio: Audio, batch: list[Pack], code: str | None) -> list[Unit]:
    """A batch that fails is halved: what is left then fits into memory, or one bad pack takes no other with it."""
    try:
        return _heard(model, audio, batch, code)
    except Exception as error:  # torch and Whisper fail in many ways, and hours of other sound are at stake
        if len(batch) == 1:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [Unit(text="", start=stretch.start, stop=stretch.stop, error=reason) for stretch in batch[0]]
    middle = len(batch) // 2  # outside of the handler: there, the error still holds the tensors of the failed try
    return _hear(model, audio, batch[:middle], code) + _hear(model, audio, batch[middle:], code)


def _heard(model: Any, audio: Audio, batch: list[Pack], code: str | None) -> list[Unit]:
    features = _encode(model, [_mel(model, audio, pack) for pack in batch])
    results = _decode(model, features, batch, code)
    sure = _language_probs(model, features, results)
    with threads_kept():
        spoken = [_words(model, *of_pack) for of_pack in zip(features, batch, results, sure, strict=True)]
    return [unit for units in spoken for unit in units]


def _mel(model: Any, audio: Audio, pack: Pack) -> Any:
    """[n_mels, 3000]: 30 s, zeros after the pack."""
    import whisper

    ends = [[to_rate(position, MASTER_RATE, SPEECH_RATE) for position in stretch] for stretch in pack]
    sound = np.concatenate([audio.samples[start:stop] for start, stop in ends])
    return whisper.log_mel_spectrogram(whisper.pad_or_trim(sound), n_mels=model.dims.n_mels)


def _encode(model: Any, mels: list[Any]) -> Any:
    """[packs, 1500, n_audio_state], in the precision that `_decode` asks for."""
    import torch

    kind = torch.float16 if _half(model) else torch.float32
    groups = [torch.stack(mels[start : start + ENCODED_AT_ONCE]) for start in range(0, len(mels), ENCODED_AT_ONCE)]
    with torch.no_grad():
        return torch.cat([model.encoder(group.to(model.device, kind)) for group in groups])


def _half(model: Any) -> bool:
    return model.device.type == "cuda"


def _decode(model: Any, features: Any, batch: list[Pack], code: str | None) -> list[Any]:
    """Greedy for all, then again with some temperature for those that failed; the greedy text stays if none is better."""
    results = _decode_at(model, features, batch, code, 0.0)
    limits = [token_limit(model, _seconds(pack)) for pack in batch]
    for temperature in FALLBACK_TEMPERATURES:
        failing = [index for index, (result, limit) in enumerate(zip(results, limits, strict=True)) if _failed(result, limit)]
        if not failing:
            break
        tried = _decode_at(model, features[failing], [batch[index] for index in failing], code, temperature)
        for index, again in zip(failing, tried, strict=True):
            if not _failed(again, limits[index]):
                results[index] = again
    return results


def _decode_at(model: Any, features: Any, batch: list[Pack], code: str | None, temperature: float) -> list[Any]:
    import torch
    import whisper

    options = whisper.DecodingOptions(
        language=code,
        temperature=temperature,
        without_timestamps=True,
        sample_len=max(token_limit(model, _seconds(pack)) for pack in batch),
        fp16=_half(model),
    )
    with torch.random.fork_rng():
        torch.manual_seed(batch[0][0].start)  # the same text on every run, and the caller's generator untouched
        return whisper.decode(model, features, options)


def _failed(result: Any, limit: int) -> bool:
    if _silent(result):
        return False  # another try would only invent something
    return result.compression_ratio > LOOKS_REPEATED or result.avg_logprob < LOOKS_UNSURE or len(result.tokens) >= limit


def _silent(result: Any) -> bool:
    return result.no_speech_prob > LOOKS_EMPTY and result.avg_logprob < LOOKS_UNSURE


def _language_probs(model: Any, features: Any, results: list[Any]) -> list[float | None]:
    """How likely each pack is in the language that it was decoded as, asked for or detected."""
    if not model.is_multilingual:
        return [None] * len(results)
    _, probabilities = model.detect_language(features)
    return [round(every[result.language], 3) for every, result in zip(probabilities, results, strict=True)]


@dataclass(frozen=True)
class _AlreadyEncoded:
    """What `find_alignment` needs of a Whisper, for a sound that is encoded already: half the time of an alignment is the encoder's."""

    device: Any
    dims: Any
    decoder: Any
    alignment_heads: Any

    def __call__(self, features: Any, tokens: Any) -> Any:
        return self.decoder(tokens, features)


def _words(model: Any, features: Any, pack: Pack, result: Any, language_prob: float | None) -> list[Unit]:
    from whisper.audio import HOP_LENGTH
    from whisper.timing import find_alignment, merge_punctuations
    from whisper.tokenizer import LANGUAGES, get_tokenizer

    if _silent(result):
        return []
    tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages, language=result.language, task="transcribe")
    tokens = [token for token in result.tokens if token < tokenizer.eot]
    frames = int(_seconds(pack) * SPEECH_RATE) // HOP_LENGTH
    listening = _AlreadyEncoded(model.device, model.dims, model.decoder, model.alignment_heads)
    words = find_alignment(listening, tokenizer, tokens, features, frames)
    merge_punctuations(words, OPENING, CLOSING)
    heard = Heard(
        language=LANGUAGES[result.language],
        avg_logprob=round(float(result.avg_logprob), 3),
        compression_ratio=round(float(result.compression_ratio), 3),
        no_speech_prob=round(float(result.no_speech_prob), 3),
        temperature=result.temperature,
        complete=len(result.tokens) < token_limit(model, _seconds(pack)),
        language_prob=language_prob,
    )
    spoken = [(word.word, *_place(pack, word.start, word.end)) for word in words if word.word]
    return [Unit(text=text, start=start, stop=stop, heard=heard) for text, start, stop in spoken]


def _place(pack: Pack, start: float, end: float) -> Region:
    """Where a word lies in the recording: in the stretch that its middle falls into, and not beyond."""
    first, last = round(float(start) * MASTER_RATE), round(float(end) * MASTER_RATE)
    offset = 0
    for stretch in pack:
        length = stretch.stop - stretch.start
        if (first + last) // 2 <= offset + length or stretch is pack[-1]:
            break
        offset += length
    return Region(*(min(max(stretch.start + position - offset, stretch.start), stretch.stop) for position in (first, last)))
