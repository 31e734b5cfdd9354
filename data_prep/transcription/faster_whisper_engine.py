"""Whisper transcription with faster-whisper (CTranslate2), the optional engine: several times faster on a CPU, own weight format.

Its batched pipeline decodes our packs greedily and without retries; the quality rules reject what fails.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, PackagePath, version
from importlib.metadata import files as files_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import SPEECH_RATE, Audio, Samples
from overtone.data_prep.segmentation.clip_segmentation import TextUnit, WhisperScores
from overtone.data_prep.transcription import packed_transcription
from overtone.data_prep.transcription.packed_transcription import Pack
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files

FORM = 1
"""Version of the text units, part of the cache key: increase it when the code gives other results for the same settings."""
PREFIX = "faster-whisper:"
WEIGHTS = "model.bin"
CUBLAS, CUBLAS_PACKAGE = "libcublas.so.12", "nvidia-cublas-cu12"
"""Library that CTranslate2 loads by name at the first matrix product on a GPU, and the package that contains it. torch for CUDA 12 installs
it; torch for CUDA 13 installs another version."""
MOST_TOKENS = 224
"""Maximum tokens per pack: half of Whisper's context, as in openai-whisper."""


def is_faster_whisper(name: str, option: str = WHISPER_OPTION) -> bool:
    """Whether a model name selects this engine: `faster-whisper:NAME_OR_FOLDER`. Raises `UserError` if the package is missing."""
    if name.startswith(PREFIX) and find_spec("faster_whisper") is None:
        raise UserError(f"{option} {name}: faster-whisper is not installed; install it with: pip install 'overtone[faster-whisper]'")
    return name.startswith(PREFIX)


def is_model(model: Any) -> bool:
    """Whether `model` was created by `load_model`."""
    return type(model).__module__.startswith("faster_whisper.")


def fetch_weights(name: str, option: str = WHISPER_OPTION) -> Path:
    """The file with the weights; a published name is downloaded once from the Hugging Face hub. Raises `UserError`."""
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


def load_model(name: str, device: str, option: str = WHISPER_OPTION) -> Any:
    """The model. Raises `UserError`."""
    import torch
    from faster_whisper import WhisperModel

    check_device(name, device, option)
    folder = fetch_weights(name, option).parent
    kind, _, number = device.partition(":")  # torch's `cuda:1`
    require_readable(folder, f"{option} {name}")
    threads = torch.get_num_threads()  # workers share the cores through torch's thread count
    try:
        return WhisperModel(str(folder), device=kind, device_index=int(number or 0), cpu_threads=threads)
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


def describe_settings(name: str, language: str | None) -> dict[str, Any]:
    """Everything that the text depends on besides the audio: part of the cache key. Published weights are identified by name."""
    weights = Path(name.removeprefix(PREFIX)) / WEIGHTS
    return {
        "form": FORM,
        "faster-whisper": version("faster-whisper"),
        "ctranslate2": version("ctranslate2"),
        "weights": files.digest(weights) if weights.is_file() else name,
        "language": language,
        "most tokens": MOST_TOKENS,
        **packed_transcription.describe_settings(),
    }


def transcribe_batch(model: Any, audio: Audio, batch: list[Pack], code: str | None) -> list[TextUnit]:
    """The words of a batch of packs, with the scores of their pack. `audio` at 16 kHz; `code`: language, None to detect it per batch.

    The pipeline gets the concatenated packs as one audio, with the packs as its clips.
    """
    sounds = [packed_transcription.join_samples(audio, pack) for pack in batch]
    edges = np.cumsum([0, *map(len, sounds)]) / SPEECH_RATE
    limit = packed_transcription.compute_token_limit(max(map(packed_transcription.sum_seconds, batch)), MOST_TOKENS)
    segments, info = _decode_packs(model, np.concatenate(sounds), edges, limit, code)
    sure = round(info.language_probability, 3) if code is None and model.model.is_multilingual else None
    units = []
    for segment in segments:
        index = int(np.abs(edges[:-1] * model.frames_per_second - segment.seek).argmin())
        units += _make_units(segment.words, batch[index], float(edges[index]), _read_scores(segment, limit, info.language, sure))
    return units


def _decode_packs(model: Any, sound: Samples, edges: NDArray[np.float64], limit: int, code: str | None) -> tuple[Iterable[Any], Any]:
    """Segments and info of the pipeline. `edges`: [packs + 1] clip boundaries in seconds."""
    from faster_whisper import BatchedInferencePipeline

    found: tuple[Iterable[Any], Any] = BatchedInferencePipeline(model).transcribe(
        sound,
        clip_timestamps=[{"start": start, "end": end} for start, end in itertools.pairwise(edges)],
        batch_size=len(edges) - 1,
        language=code,
        beam_size=1,
        temperature=0.0,
        word_timestamps=True,
        prepend_punctuations=packed_transcription.OPENING,
        append_punctuations=packed_transcription.CLOSING,
        max_new_tokens=limit,
    )
    return found


def _read_scores(segment: Any, limit: int, code: str, sure: float | None) -> WhisperScores:
    """Scores of a segment; `sure`: probability of its language `code`."""
    from whisper.tokenizer import LANGUAGES

    return WhisperScores(
        language=LANGUAGES[code],
        avg_logprob=round(float(segment.avg_logprob), 3),
        compression_ratio=round(float(segment.compression_ratio), 3),
        no_speech_prob=round(float(segment.no_speech_prob), 3),
        temperature=0.0,
        complete=len(segment.tokens) < limit - 1,  # CTranslate2 counts the end-of-text token too
        language_prob=sure,
    )


def _make_units(words: list[Any], pack: Pack, offset: float, scores: WhisperScores) -> list[TextUnit]:
    """Words as text units. `offset`: start of the pack in seconds in the audio that the word times refer to."""
    if packed_transcription.is_silence(scores.no_speech_prob, scores.avg_logprob):
        return []
    placed = [(word.word, *packed_transcription.locate_word(pack, word.start - offset, word.end - offset)) for word in words]
    return [TextUnit(text=text, start=start, stop=stop, heard=scores) for text, start, stop in placed]
