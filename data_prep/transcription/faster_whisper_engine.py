"""Whisper transcription with faster-whisper (CTranslate2), the optional engine: several times faster on a CPU, own weight format.

It decodes our packs in batches, with beam search and without retries; the quality rules reject what fails.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, PackagePath, version
from importlib.metadata import files as files_of
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeGuard

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import Audio
from overtone.data_prep.segmentation.clip_segmentation import TextUnit, WhisperScores
from overtone.data_prep.transcription import packed_transcription
from overtone.data_prep.transcription.packed_transcription import Pack, WhisperSettings
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.folder_handles import cache_home

if TYPE_CHECKING:
    from ctranslate2 import StorageView
    from ctranslate2.models import WhisperGenerationResult
    from faster_whisper import WhisperModel

FORM = 2
"""Version of the text units, part of the cache key: increase it when the code gives other results for the same settings."""
PREFIX = "faster-whisper:"
WEIGHTS = "model.bin"
CUBLAS, CUBLAS_PACKAGE = "libcublas.so.12", "nvidia-cublas-cu12"
"""Library that CTranslate2 loads by name at the first matrix product on a GPU, and the package that contains it. torch for CUDA 12 installs
it; torch for CUDA 13 installs another version."""
MOST_TOKENS = 224
"""Maximum tokens per pack: half of Whisper's context, as in openai-whisper."""
BEAMS = 5
"""Texts that the decoder follows at the same time, as in faster-whisper's own pipelines."""


class FasterWhisperWord(TypedDict):
    """A word as faster-whisper aligns it; its times are seconds in the pack."""

    word: str
    start: float
    end: float


def is_faster_whisper(name: str, option: str = WHISPER_OPTION) -> bool:
    """Return whether a model name selects this engine: `faster-whisper:NAME_OR_FOLDER`. Raises `UserError` if the package is missing."""
    if name.startswith(PREFIX) and find_spec("faster_whisper") is None:
        raise UserError(f"{option} {name}: faster-whisper is not installed; install it with: pip install 'overtone[faster-whisper]'")
    return name.startswith(PREFIX)


def choose_engine(name: str, device: str) -> str:
    """Return `name` with `PREFIX` if it is a published Whisper that this engine transcribes in less time: the package is installed, and the
    device is a CPU. Weights that are on this machine for openai-whisper only are not downloaded again."""
    import whisper

    if device != "cpu" or name not in whisper._MODELS or find_spec("faster_whisper") is None:
        return name
    from faster_whisper import available_models, download_model

    if name not in available_models():
        return name
    if (cache_home() / "whisper" / f"{name}.pt").is_file():
        try:
            download_model(name, local_files_only=True)
        except Exception:  # the hub client fails in many ways
            return name
    return PREFIX + name


def is_model(model: object) -> TypeGuard[WhisperModel]:
    """Return whether `model` was created by `load_model`."""
    return type(model).__module__.startswith("faster_whisper.")


def fetch_weights(name: str, option: str = WHISPER_OPTION) -> Path:
    """Return the file with the weights; a published name is downloaded once from the Hugging Face hub. Raises `UserError`."""
    from faster_whisper import available_models, download_model

    given = name.removeprefix(PREFIX)
    if (Path(given) / WEIGHTS).is_file():
        return Path(given) / WEIGHTS
    try:
        return Path(download_model(given)) / WEIGHTS
    except Exception as error:  # the hub client fails in many ways
        raise UserError(
            f"{option} {name}: neither a folder with {WEIGHTS} nor downloadable weights ({error}); give a folder made by "
            f"ct2-transformers-converter, with tokenizer.json and preprocessor_config.json, or one of {', '.join(available_models())}"
        ) from error


def load_model(name: str, device: str, option: str = WHISPER_OPTION) -> WhisperModel:
    """Load the model. Raises `UserError`."""
    import torch
    from faster_whisper import WhisperModel

    check_device(name, device, option)
    folder = fetch_weights(name, option).parent
    kind, _, number = device.partition(":")  # torch's `cuda:1`
    # CTranslate2 does not know the current GPU of torch: all ranks of a training would load the model on the first one.
    current = torch.cuda.current_device() if kind == "cuda" and torch.cuda.is_initialized() else 0
    require_readable(folder, f"{option} {name}")
    threads = torch.get_num_threads()  # workers divide the cores by torch's thread count
    try:
        return WhisperModel(str(folder), device=kind, device_index=int(number or current), cpu_threads=threads)
    except Exception as error:  # an invalid file
        raise UserError(f"{option} {name}: not a CTranslate2 Whisper model ({type(error).__name__}: {error})") from error


def require_readable(folder: Path, option: str) -> None:
    """Raises `UserError` for a pipe, a device or a socket in a folder, and for a settings or vocabulary file that is too large for one:
    CTranslate2 and faster-whisper open the files themselves."""
    for path in sorted(folder.iterdir()):
        try:
            input_files.require_regular(path)
            if path.name != WEIGHTS and path.is_file() and path.stat().st_size > input_files.LARGEST_TEXT:
                raise UserError(f"{option}: {path} has more than {input_files.LARGEST_TEXT:,} bytes; download the model again")
        except OSError as error:
            raise UserError(f"{option}: {path} cannot be used ({error.strerror}); download the model again") from error


def check_device(name: str, device: str, option: str = WHISPER_OPTION) -> None:
    """Load the CUDA library that CTranslate2 needs on a GPU; without it, every recording would end up without text.

    Raises `UserError` with the package to install.
    """
    if not device.startswith("cuda"):
        return
    try:
        ctypes.CDLL(CUBLAS)
    except OSError as error:
        installed = next((file.locate() for file in _list_files(CUBLAS_PACKAGE) if file.name == CUBLAS), None)
        if installed is None:
            raise UserError(
                f"{option} {name}: CTranslate2 needs {CUBLAS} (CUDA 12) on a GPU, which cannot be loaded ({error}); "
                f"install it with: pip install {CUBLAS_PACKAGE}; or use openai-whisper, with a name without {PREFIX}"
            ) from None
        try:
            ctypes.CDLL(str(installed))
        except OSError as broken:
            raise UserError(f"{option} {name}: {installed} cannot be loaded ({broken}); install {CUBLAS_PACKAGE} again") from None


def _list_files(package: str) -> Iterable[PackagePath]:
    try:
        return files_of(package) or ()
    except PackageNotFoundError:
        return ()


def describe_settings(name: str, language: str | None, beams: int) -> WhisperSettings:
    """Return everything that the text depends on besides the audio: part of the cache key. Published weights are identified by name."""
    weights = Path(name.removeprefix(PREFIX)) / WEIGHTS
    return {
        "form": FORM,
        "faster-whisper": version("faster-whisper"),
        "ctranslate2": version("ctranslate2"),
        "weights": files.digest(weights) if weights.is_file() else name,
        "language": language,
        "most tokens": MOST_TOKENS,
        "beams": beams,
        **packed_transcription.describe_settings(),
    }


def transcribe_batch(model: WhisperModel, audio: Audio, batch: list[Pack], code: str | None, beams: int, has_words: bool) -> list[TextUnit]:
    """Return the words of a batch of packs, with the scores of their pack; without `has_words`, the text of each pack as a unit. `audio` at
    16 kHz; `code`: language, None to detect it in each pack."""
    features = np.stack([_compute_features(model, audio, pack) for pack in batch])
    encoded = model.encode(features)
    if not model.model.is_multilingual:
        return _transcribe_encoded(model, encoded, batch, "en", [None] * len(batch), beams, has_words)
    detected = [found[0] for found in model.model.detect_language(encoded)] if code is None else []
    sure: list[float | None] = [round(probability, 3) for _, probability in detected] or [None] * len(batch)
    codes = [token.strip("<|>") for token, _ in detected] or [code] * len(batch)
    units = list[TextUnit]()
    for one in sorted(set(codes)):
        chosen = [index for index, found in enumerate(codes) if found == one]
        part = encoded if len(chosen) == len(batch) else model.encode(features[chosen])
        units += _transcribe_encoded(
            model, part, [batch[index] for index in chosen], one, [sure[index] for index in chosen], beams, has_words
        )
    return units


def _compute_features(model: WhisperModel, audio: Audio, pack: Pack) -> NDArray[np.float32]:
    """Return the log-mel spectrogram [mels, 3000]: 30 s, with silence after the pack. faster-whisper's own pipelines pad the spectrogram
    with zeros, which stand for noise: after that, the text of a short pack often ends early."""
    import whisper

    features: NDArray[np.float32] = model.feature_extractor(whisper.pad_or_trim(packed_transcription.join_samples(audio, pack)))
    return features[..., : whisper.audio.N_FRAMES]


def _transcribe_encoded(
    model: WhisperModel, encoded: StorageView, batch: list[Pack], code: str, sure: list[float | None], beams: int, has_words: bool
) -> list[TextUnit]:
    """Return the units of `transcribe_batch` for packs in one language, `code`, from their encoder output. `sure`: probability of the
    language of each pack."""
    from faster_whisper.tokenizer import Tokenizer
    from faster_whisper.transcribe import get_suppressed_tokens, merge_punctuations

    tokenizer = Tokenizer(model.hf_tokenizer, model.model.is_multilingual, task="transcribe", language=code)
    prompt = model.get_prompt(tokenizer, [], without_timestamps=True)
    seconds = [packed_transcription.sum_seconds(pack) for pack in batch]
    found = model.model.generate(
        encoded,
        [prompt] * len(batch),
        beam_size=beams,
        max_length=len(prompt) + packed_transcription.compute_token_limit(max(seconds), MOST_TOKENS),
        suppress_tokens=get_suppressed_tokens(tokenizer, [-1]),
        return_scores=True,
        return_no_speech_prob=True,
    )
    tokens = [[token for token in one.sequences_ids[0] if token < tokenizer.eot] for one in found]
    if has_words:
        words = model.find_alignment(tokenizer, tokens, encoded, [int(one * model.frames_per_second) for one in seconds])
    else:
        words = [[{"word": tokenizer.decode(own), "start": 0.0, "end": one}] for own, one in zip(tokens, seconds, strict=True)]
    units = list[TextUnit]()
    for one, own, spoken, pack, probability in zip(found, tokens, words, batch, sure, strict=True):
        merge_punctuations(spoken, packed_transcription.OPENING, packed_transcription.CLOSING)
        limit = packed_transcription.compute_token_limit(packed_transcription.sum_seconds(pack), MOST_TOKENS)
        is_complete = len(own) < limit - 1  # CTranslate2 counts the end-of-text token too
        scores = _make_scores(one, tokenizer.decode(own), is_complete, code, probability)
        units += _make_units(spoken, pack, scores)
    return units


def _make_scores(found: WhisperGenerationResult, text: str, is_complete: bool, code: str, sure: float | None) -> WhisperScores:
    """Return the scores of a decoded pack. CTranslate2 gives the mean over the tokens without the end of the text; Whisper counts that one
    too."""
    from whisper.tokenizer import LANGUAGES
    from whisper.utils import compression_ratio

    length = len(found.sequences_ids[0])
    return WhisperScores(
        language=LANGUAGES[code],
        avg_logprob=round(found.scores[0] * length / (length + 1), 3),
        compression_ratio=round(compression_ratio(text), 3),
        no_speech_prob=round(found.no_speech_prob, 3),
        temperature=0.0,
        complete=is_complete,
        language_prob=sure,
    )


def _make_units(words: list[FasterWhisperWord], pack: Pack, scores: WhisperScores) -> list[TextUnit]:
    """Return the words as text units; their times are seconds in the pack."""
    if packed_transcription.is_silence(scores.no_speech_prob, scores.avg_logprob):
        return []
    placed = [(word["word"], *packed_transcription.locate_word(pack, word["start"], word["end"])) for word in words if word["word"]]
    return [TextUnit(text=text, start=start, stop=stop, heard=scores) for text, start, stop in placed]
