"""What Whisper hears: packs of speech in batches through `whisper.decode`, word times from its cross-attention.

A pack is encoded once, whatever follows. Only packs whose text fails the usual signs are decoded again, at most twice, at a higher
temperature. Every pack has its own limit of tokens: a model that loops stops there and is reported.

A name that begins with `faster-whisper:` is for the other engine, which `faster` runs; `whisper-demo-en` comes with the package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import faster, languages, packs, whisper_demo
from data_prep.audio import SPEECH_RATE, Audio
from data_prep.device import threads_kept
from data_prep.packs import Pack, seconds_of
from data_prep.segment import Heard, Unit
from data_prep.vad import Region
from finetune import files, sdpa
from finetune.errors import UserError
from finetune.model_gate import load_pickled_weights

FORM = 3
"""Of the units: raise it when the code gives others for the same settings, so that stored ones are not taken for them."""
ENCODED_AT_ONCE = 4
"""Packs at a time through the encoder, which gains nothing from more and only takes memory."""
FALLBACK_TEMPERATURES = (0.2, 0.6)
LOOKS_REPEATED = 2.4
WORD_TOLERANCE = 0.4
"""Seconds by which word times may miss a pause."""


def weights_digest(name: str) -> str:
    """SHA-256 of the weights called `name` (a published name, or a path to a .pt file), without loading or fetching them."""
    import whisper

    if whisper_demo.is_meant(name):
        return whisper_demo.digest()
    if Path(name).is_file():
        return files.digest(Path(name))
    if name in whisper._MODELS:
        return whisper._MODELS[name].split("/")[-2]
    raise UserError(f"--whisper {name}: neither a file nor one of {whisper_demo.NAME}, {', '.join(whisper.available_models())}")


def fetch(name: str) -> Path:
    """The file with the weights; a published name is fetched into ~/.cache/whisper if it is not there. Raises `UserError`.

    To be done before several processes load them: they would fetch into the same file at the same time.
    """
    import whisper

    if faster.runs(name):
        return faster.fetch(name)
    if whisper_demo.is_meant(name):
        return whisper_demo.unpacked()
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

    if faster.runs(name):
        return faster.load(name, device)
    path = fetch(name)
    sdpa.disable_cudnn()
    try:
        checkpoint = load_pickled_weights(path)
        model = whisper.Whisper(whisper.ModelDimensions(**checkpoint["dims"]))
        model.load_state_dict(checkpoint["model_state_dict"])
    except Exception as error:  # a foreign or broken file fails in many ways
        raise UserError(f"--whisper {name}: not a Whisper checkpoint ({type(error).__name__}: {error})") from error
    if path != Path(name) and name in whisper._ALIGNMENT_HEADS:  # a file's own heads are not known: all of the upper half are used
        model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    return model.to(device)


def _not_fetched(name: str, error: Exception) -> UserError:
    return UserError(
        f"--whisper {name}: the weights cannot be fetched ({error}); fetch the .pt file where there is a network, "
        "and give its path: --whisper /path/to/model.pt"
    )


def settings(name: str, language: str | None) -> dict[str, Any]:
    """All that the text depends on besides the sound: part of the cache key."""
    if faster.runs(name):
        return faster.settings(name, language)
    return {
        **(whisper_demo.particulars() if whisper_demo.is_meant(name) else {}),
        "form": FORM,
        "whisper": version("openai-whisper"),
        "weights": weights_digest(name),
        "language": language,
        **packs.settings(),
        "temperatures": FALLBACK_TEMPERATURES,
    }


def transcribe(model: Any, audio: Audio, windows: list[Region], language: str | None, longest: float | None = None) -> list[Unit]:
    """Words in order, with the confidence of their pack. `audio` at 16 kHz; `language`: a full name, or None to detect it; `longest`:
    seconds that are heard at once (`packs.hear`).

    What Whisper fails on is a unit without a text that says why (`packs.hear`).
    """
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper hears {SPEECH_RATE} Hz, not {audio.rate}")
    code = languages.code_of(language, knows_languages(model))
    listen = faster.listen if faster.is_model(model) else _listen
    return packs.hear(windows, lambda batch: listen(model, audio, batch, code), longest)


def knows_languages(model: Any) -> bool:
    """Whether a Whisper, of either engine, knows more than English."""
    return bool(getattr(model, "model", model).is_multilingual)  # faster-whisper keeps it one level deeper


def token_limit(model: Any, seconds: float) -> int:
    """How many tokens a pack may have."""
    return packs.token_limit(seconds, model.dims.n_text_ctx // 2)


def _listen(model: Any, audio: Audio, batch: list[Pack], code: str | None) -> list[Unit]:
    features = _encode(model, [_mel(model, audio, pack) for pack in batch])
    results = _decode(model, features, batch, code)
    sure = _language_probs(model, features, results)
    with threads_kept():
        spoken = [_words(model, *of_pack) for of_pack in zip(features, batch, results, sure, strict=True)]
    return [unit for units in spoken for unit in units]


def _mel(model: Any, audio: Audio, pack: Pack) -> Any:
    """[n_mels, 3000]: 30 s, zeros after the pack."""
    import whisper

    return whisper.log_mel_spectrogram(whisper.pad_or_trim(packs.sound(audio, pack)), n_mels=model.dims.n_mels)


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
    limits = [token_limit(model, seconds_of(pack)) for pack in batch]
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
        sample_len=max(token_limit(model, seconds_of(pack)) for pack in batch),
        fp16=_half(model),
    )
    with torch.random.fork_rng():
        torch.manual_seed(batch[0][0].start)  # the same text on every run, and the caller's generator untouched
        return whisper.decode(model, features, options)


def _failed(result: Any, limit: int) -> bool:
    if _silent(result):
        return False  # another try would only invent something
    return result.compression_ratio > LOOKS_REPEATED or result.avg_logprob < packs.LOOKS_UNSURE or len(result.tokens) >= limit


def _silent(result: Any) -> bool:
    return packs.silent(result.no_speech_prob, result.avg_logprob)


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
    frames = int(seconds_of(pack) * SPEECH_RATE) // HOP_LENGTH
    listening = _AlreadyEncoded(model.device, model.dims, model.decoder, model.alignment_heads)
    words = find_alignment(listening, tokenizer, tokens, features, frames)
    merge_punctuations(words, packs.OPENING, packs.CLOSING)
    heard = Heard(
        language=LANGUAGES[result.language],
        avg_logprob=round(float(result.avg_logprob), 3),
        compression_ratio=round(float(result.compression_ratio), 3),
        no_speech_prob=round(float(result.no_speech_prob), 3),
        temperature=result.temperature,
        complete=len(result.tokens) < token_limit(model, seconds_of(pack)),
        language_prob=language_prob,
    )
    spoken = [(word.word, *packs.place(pack, word.start, word.end)) for word in words if word.word]
    return [Unit(text=text, start=start, stop=stop, heard=heard) for text, start, stop in spoken]
