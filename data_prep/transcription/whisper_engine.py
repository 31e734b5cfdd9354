"""Whisper transcription with openai-whisper: batched decoding of packs of speech, word timestamps from cross-attention.

Each pack is encoded once. Only packs that fail Whisper's usual quality checks are decoded again, at most twice, at a higher temperature.
Each pack has its own token limit, which stops a looping model; reaching it is reported.

Model names starting with `faster-whisper:` select the engine in `data_prep/transcription/faster_whisper_engine.py`;
`whisper-demo-en` is a demo model (`finetune/storage/demo_models.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, convert_position
from overtone.data_prep.parallel.torch_settings import restore_thread_count
from overtone.data_prep.segmentation.clip_segmentation import TextUnit, WhisperScores
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import (
    demo_whisper,
    faster_whisper_engine,
    packed_transcription,
    whisper_conversion,
    whisper_languages,
)
from overtone.data_prep.transcription.packed_transcription import Pack, WhisperSettings, sum_seconds
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.finetune.storage import files
from overtone.finetune.storage.folder_handles import cache_home
from overtone.finetune.storage.model_security import load_pickled_weights

if TYPE_CHECKING:
    import torch
    from faster_whisper import WhisperModel
    from torch import Tensor
    from whisper import DecodingResult, ModelDimensions, Whisper
    from whisper.model import TextDecoder
    from whisper.tokenizer import Tokenizer

FORM = 3
"""Version of the text units, part of the cache key: increase it when the code gives other results for the same settings."""
ENCODED_AT_ONCE = 4
"""Packs per encoder batch; more take memory and are not faster."""
FALLBACK_TEMPERATURES = (0.2, 0.6)
BEAMS = 1
"""Texts that the decoder follows at the same time. Of 831 words of telephone prompts, tiny.en has 51 wrong with one and 40 with five, which
take 1.6 times the decoding time on a CPU."""
LOOKS_REPEATED = 2.4
WORD_TOLERANCE = 0.4
"""Tolerance of word timestamps in seconds, when matching them to pauses."""


def digest_weights(name: str, option: str = WHISPER_OPTION) -> str:
    """Return the SHA-256 of the weights called `name` (a published name, a path to a .pt file, or a hub name), without loading them. Only
    the weights of a hub name are downloaded for this."""
    import whisper

    if demo_whisper.is_demo_name(name):
        return demo_whisper.digest_archive(option)
    if Path(name).is_file():
        return files.digest(Path(name))
    if name in whisper._MODELS:
        return whisper._MODELS[name].split("/")[-2]
    if whisper_conversion.is_transformers_whisper(name):
        return whisper_conversion.digest_weights(name, option)
    raise UserError(
        f"{option} {name}: neither a file nor one of {demo_whisper.NAME}, {', '.join(whisper.available_models())}, nor a hub name "
        "(owner/model)"
    )


def fetch_weights(name: str, option: str = WHISPER_OPTION) -> Path:
    """Return the file with the weights; a published name is downloaded to ~/.cache/whisper if missing. Raises `UserError`.

    Call it before several processes load the model, or they would all download to the same file.
    """
    import whisper

    if faster_whisper_engine.is_faster_whisper(name, option):
        return faster_whisper_engine.fetch_weights(name, option)
    if demo_whisper.is_demo_name(name):
        return demo_whisper.fetch_checkpoint(option)
    if Path(name).is_file():
        return Path(name)
    if name not in whisper._MODELS and whisper_conversion.is_transformers_whisper(name):
        return whisper_conversion.find_weights(name, option)[0]
    folder = cache_home() / "whisper"
    try:
        return Path(str(whisper._download(whisper._MODELS[name], str(folder), in_memory=False)))
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{option} {name}: the weights cannot be downloaded ({error}); download the .pt file on a machine with network access, "
            f"and pass its path: {option} /path/to/model.pt"
        ) from error


def find_cached_english_model() -> str:
    """Return the smallest good model for English among those in ~/.cache/whisper that are fast on a CPU; "" if none is there."""
    names = ("base.en", "small.en", "base", "small", "tiny.en")
    return next((name for name in names if is_cached(name)), "")


def is_cached(name: str) -> bool:
    """Return True if the published model with that name is in ~/.cache/whisper."""
    return (cache_home() / "whisper" / f"{name}.pt").is_file()


def load_whisper(name: str, device: str, option: str = WHISPER_OPTION) -> Whisper | WhisperModel:
    """Load the model from a .pt file, by its published name (downloaded once to ~/.cache/whisper), or in the format of transformers from a
    folder or the hub. Raises `UserError`."""
    import whisper

    from overtone.finetune.storage.construction_limits import limit_construction  # imports torch

    if faster_whisper_engine.is_faster_whisper(name, option):
        return faster_whisper_engine.load_model(name, device, option)
    path = fetch_weights(name, option)
    cudnn_sdpa.disable_cudnn()
    converted = whisper_conversion.read_checkpoint(name, option) if path.suffix == ".safetensors" else None
    try:
        checkpoint = converted or load_pickled_weights(path)
        with limit_construction(path.parent if converted else path):
            model = whisper.Whisper(whisper.ModelDimensions(**checkpoint["dims"]))
        model.load_state_dict(checkpoint["model_state_dict"])
    except Exception as error:  # an invalid file fails in many ways
        raise UserError(f"{option} {name}: not a Whisper checkpoint ({type(error).__name__}: {error})") from error
    if path != Path(name) and name in whisper._ALIGNMENT_HEADS:
        model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    else:  # of our own exports; Whisper's own loader does not read them from a file, and uses the upper half
        whisper_conversion.set_alignment_heads(model, checkpoint.get("alignment_heads"), name, option)
    model.to(device)
    if _uses_fp16(model):
        halve_products(model)
    return model


def halve_products(model: Whisper) -> None:
    """Convert the weights of all matrix products and convolutions to fp16, once. In fp16, openai-whisper converts the fp32 weights in every
    call instead, with the same result: it reads and writes four times as many bytes for each decoded token."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            module.half()


def describe_settings(name: str, language: str | None, option: str = WHISPER_OPTION, beams: int | None = None) -> WhisperSettings:
    """Return everything that the text depends on besides the audio: part of the cache key. `beams`: as of `transcribe_recording`."""
    if faster_whisper_engine.is_faster_whisper(name, option):
        return faster_whisper_engine.describe_settings(name, language, beams or faster_whisper_engine.BEAMS)
    demo: WhisperSettings = demo_whisper.describe_settings(option) if demo_whisper.is_demo_name(name) else {}
    return {
        **demo,
        "form": FORM,
        "whisper": version("openai-whisper"),
        "weights": digest_weights(name, option),
        "language": language,
        "beams": beams or BEAMS,
        **packed_transcription.describe_settings(),
        "temperatures": FALLBACK_TEMPERATURES,
    }


def transcribe_recording(
    model: Whisper | WhisperModel,
    audio: Audio,
    windows: list[Region],
    language: str | None,
    longest: float | None = None,
    report: Callable[[float], None] = lambda _done: None,
    beams: int | None = None,
) -> list[TextUnit]:
    """Return the words in order, with the scores of their pack. `audio` at 16 kHz; `language`: full name, or None to detect it; `longest`:
    maximum seconds of a pack, `report` receives the seconds that are finished (`packed_transcription.transcribe_windows`); `beams`: texts
    that the decoder follows at the same time, None for those of the engine.

    A window that Whisper fails on becomes a unit without text and with the error.
    """
    transcribe_batch = _choose_engine(model, audio, language, beams)
    return packed_transcription.transcribe_windows(windows, transcribe_batch, longest, report)


def transcribe_clips(
    model: Whisper | WhisperModel, clips: Sequence[tuple[Audio, list[Region]]], language: str | None
) -> list[list[TextUnit]]:
    """Return the text of each clip, given at 16 kHz with its windows as for `transcribe_recording`, as a unit for each pack: words are not
    located. openai-whisper encodes and decodes several clips at once, each in an input of its own: the texts are those of each clip
    alone, up to rounding."""
    packs, sounds, places, start = list[Pack](), list[Samples](), list[Region](), 0
    for audio, windows in clips:
        # A place of an even number of samples begins at whole samples of both rates; the gap separates the words of neighbours.
        sound = np.pad(audio.samples, (0, 2 + len(audio.samples) % 2))
        packs += [tuple(Region(start + one.start, start + one.stop) for one in pack) for pack in packed_transcription.pack_windows(windows)]
        places.append(Region(start, start + convert_position(len(sound), SPEECH_RATE, MASTER_RATE)))
        sounds.append(sound)
        start = places[-1].stop
    if not packs:
        return [[] for _ in clips]
    units = packed_transcription.transcribe_packs(
        packs, _choose_engine(model, Audio(np.concatenate(sounds), SPEECH_RATE), language, has_words=False)
    )
    return [[unit for unit in units if place.start <= unit.start < place.stop] for place in places]


def _choose_engine(
    model: Whisper | WhisperModel, audio: Audio, language: str | None, beams: int | None = None, has_words: bool = True
) -> Callable[[list[Pack]], list[TextUnit]]:
    """The function that transcribes a batch of packs of `audio`, to units of a word each, or of a pack."""
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper needs audio at {SPEECH_RATE} Hz, not {audio.rate}")
    code = whisper_languages.find_whisper_code(language, is_multilingual(model))
    is_faster = faster_whisper_engine.is_model(model)
    transcribe_batch = faster_whisper_engine.transcribe_batch if is_faster else _transcribe_batch
    followed = beams or (faster_whisper_engine.BEAMS if is_faster else BEAMS)
    if is_faster and not has_words:  # its batches share a token limit, which would let the text of a clip depend on the others
        return lambda batch: [unit for pack in batch for unit in transcribe_batch(model, audio, [pack], code, followed, has_words)]
    return lambda batch: transcribe_batch(model, audio, batch, code, followed, has_words)


def is_multilingual(model: Whisper | WhisperModel) -> bool:
    """Return whether a Whisper model of either engine is multilingual."""
    return bool(getattr(model, "model", model).is_multilingual)  # faster-whisper has the attribute one level deeper


def compute_token_limit(model: Whisper, seconds: float) -> int:
    """Return the maximum number of tokens of a pack of `seconds`."""
    return packed_transcription.compute_token_limit(seconds, model.dims.n_text_ctx // 2)


def _transcribe_batch(model: Whisper, audio: Audio, batch: list[Pack], code: str | None, beams: int, has_words: bool) -> list[TextUnit]:
    features = _encode_mels(model, [_compute_mel(model, audio, pack) for pack in batch])
    results = _decode_packs(model, features, batch, code, beams, retried_alone=not has_words)
    sure = _read_language_probs(model, features, results) if has_words else [None] * len(batch)
    with restore_thread_count():
        spoken = [_make_units(model, *of_pack, has_words) for of_pack in zip(features, batch, results, sure, strict=True)]
    return [unit for units in spoken for unit in units]


def _compute_mel(model: Whisper, audio: Audio, pack: Pack) -> Tensor:
    """Return the log-mel spectrogram [n_mels, 3000] on the model's device: 30 s, zero-padded after the pack."""
    import whisper

    samples = whisper.pad_or_trim(packed_transcription.join_samples(audio, pack))
    return whisper.log_mel_spectrogram(samples, n_mels=model.dims.n_mels, device=model.device)


def _encode_mels(model: Whisper, mels: list[Tensor]) -> Tensor:
    """Return the encoder output [packs, 1500, n_audio_state], in the precision that `_decode_packs` needs."""
    import torch

    kind = torch.float16 if _uses_fp16(model) else torch.float32
    groups = [torch.stack(mels[start : start + ENCODED_AT_ONCE]) for start in range(0, len(mels), ENCODED_AT_ONCE)]
    with torch.no_grad():
        return torch.cat([model.encoder(group.to(model.device, kind)) for group in groups])


def _uses_fp16(model: Whisper) -> bool:
    return model.device.type == "cuda"


def _decode_packs(
    model: Whisper, features: Tensor, batch: list[Pack], code: str | None, beams: int, retried_alone: bool
) -> list[DecodingResult]:
    """Decode the most probable text, then retry failed packs at higher temperatures; the first text stays if no retry succeeds.

    With `retried_alone`, no text depends on the other packs of the batch. Without, those that are retried share random numbers, seeded by
    the place of the first one, and each may get as many tokens as the longest one.
    """
    results = _decode_at_temperature(model, features, batch, code, 0.0, beams)
    limits = [compute_token_limit(model, sum_seconds(pack)) for pack in batch]
    if retried_alone and len(batch) > 1:
        for index, limit in enumerate(limits):
            if len(results[index].tokens) >= limit:
                (results[index],) = _decode_at_temperature(model, features[[index]], [batch[index]], code, 0.0, beams)
    for temperature in FALLBACK_TEMPERATURES:
        failing = [index for index, (result, limit) in enumerate(zip(results, limits, strict=True)) if _has_failed(result, limit)]
        if not failing:
            break
        for group in [[index] for index in failing] if retried_alone else [failing]:
            packs, seed = [batch[index] for index in group], 0 if retried_alone else batch[group[0]][0].start
            tried = _decode_at_temperature(model, features[group], packs, code, temperature, seed=seed)
            for index, again in zip(group, tried, strict=True):
                if not _has_failed(again, limits[index]):
                    results[index] = again
    return results


def _decode_at_temperature(
    model: Whisper, features: Tensor, batch: list[Pack], code: str | None, temperature: float, beams: int = 1, seed: int = 0
) -> list[DecodingResult]:
    import torch
    import whisper

    from overtone.data_prep.transcription.beam_search import decode_beams  # imports whisper

    options = whisper.DecodingOptions(
        language=code,
        temperature=temperature,
        without_timestamps=True,
        sample_len=max(compute_token_limit(model, sum_seconds(pack)) for pack in batch),
        fp16=_uses_fp16(model),
        beam_size=beams if beams > 1 else None,
    )
    if beams > 1:
        return decode_beams(model, features, options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # reproducible text, without changing the caller's generator
        return whisper.decode(model, features, options)


def _has_failed(result: DecodingResult, limit: int) -> bool:
    if _is_silent(result):
        return False  # a retry would only hallucinate
    return (
        result.compression_ratio > LOOKS_REPEATED or result.avg_logprob < packed_transcription.LOOKS_UNSURE or len(result.tokens) >= limit
    )


def _is_silent(result: DecodingResult) -> bool:
    return packed_transcription.is_silence(result.no_speech_prob, result.avg_logprob)


def _read_language_probs(model: Whisper, features: Tensor, results: list[DecodingResult]) -> list[float | None]:
    """Return the probability of the decoded language, requested or detected, for each pack."""
    if not model.is_multilingual:
        return [None] * len(results)
    _, probabilities = model.detect_language(features)
    return [round(every[result.language], 3) for every, result in zip(probabilities, results, strict=True)]


@dataclass(frozen=True)
class _EncodedWhisper:
    """The parts of a Whisper that `find_alignment` uses, for encoded audio: encoding again would take half the time of an alignment."""

    device: torch.device
    dims: ModelDimensions
    decoder: TextDecoder
    alignment_heads: Tensor

    def __call__(self, features: Tensor, tokens: Tensor) -> Tensor:
        return self.decoder(tokens, features)


def _make_units(
    model: Whisper, features: Tensor, pack: Pack, result: DecodingResult, language_prob: float | None, has_words: bool
) -> list[TextUnit]:
    from whisper.tokenizer import LANGUAGES, get_tokenizer

    if _is_silent(result):
        return []
    tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages, language=result.language, task="transcribe")
    tokens = [token for token in result.tokens if token < tokenizer.eot]
    scores = WhisperScores(
        language=LANGUAGES[result.language],
        avg_logprob=round(float(result.avg_logprob), 3),
        compression_ratio=round(float(result.compression_ratio), 3),
        no_speech_prob=round(float(result.no_speech_prob), 3),
        temperature=result.temperature,
        complete=len(result.tokens) < compute_token_limit(model, sum_seconds(pack)),
        language_prob=language_prob,
    )
    words = _align_words(model, features, pack, tokenizer, tokens) if has_words else [(tokenizer.decode(tokens), 0.0, sum_seconds(pack))]
    spoken = [(word, *packed_transcription.locate_word(pack, start, end)) for word, start, end in words if word]
    return [TextUnit(text=text, start=start, stop=stop, heard=scores) for text, start, stop in spoken]


def _align_words(model: Whisper, features: Tensor, pack: Pack, tokenizer: Tokenizer, tokens: list[int]) -> list[tuple[str, float, float]]:
    """Return the words of a pack, each with its start and end in seconds of the pack."""
    from whisper.audio import HOP_LENGTH
    from whisper.timing import find_alignment, merge_punctuations

    frames = int(sum_seconds(pack) * SPEECH_RATE) // HOP_LENGTH
    encoded = _EncodedWhisper(model.device, model.dims, model.decoder, model.alignment_heads)
    words = find_alignment(encoded, tokenizer, tokens, features, frames)
    merge_punctuations(words, packed_transcription.OPENING, packed_transcription.CLOSING)
    return [(word.word, word.start, word.end) for word in words]
