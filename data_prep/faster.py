"""The same as `transcribe` by faster-whisper, the optional engine: CTranslate2, on a CPU several times as quick, weights in its own format.

Its batched pipeline gets our packs; it decodes greedily and never again, so what fails the usual signs is left to the rules.
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

from data_prep import packs
from data_prep.audio import SPEECH_RATE, Audio, Samples
from data_prep.packs import Pack
from data_prep.segment import Heard, Unit
from finetune import files
from finetune.errors import UserError

FORM = 1
"""Of the units: raise it when the code gives others for the same settings, so that stored ones are not taken for them."""
PREFIX = "faster-whisper:"
WEIGHTS = "model.bin"
CUBLAS, CUBLAS_PACKAGE = "libcublas.so.12", "nvidia-cublas-cu12"
"""What CTranslate2 opens by name with the first product on a GPU, and the package that has it: a torch for CUDA 12 brings it, one for
CUDA 13 brings another."""
MOST_TOKENS = 224
"""In a pack: half of Whisper's context, as in openai-whisper."""


def runs(name: str) -> bool:
    """Whether a name is for this engine: `faster-whisper:small`, or with the path of a folder. Raises `UserError` without the package."""
    if name.startswith(PREFIX) and find_spec("faster_whisper") is None:
        raise UserError(f"--whisper {name}: the package is not installed; install it: pip install 'overtone[faster-whisper]'")
    return name.startswith(PREFIX)


def is_model(model: Any) -> bool:
    """Whether `load` made it."""
    return type(model).__module__.startswith("faster_whisper.")


def fetch(name: str) -> Path:
    """The file with the weights; those of a published name are fetched once from the Hugging Face hub. Raises `UserError`."""
    from faster_whisper import available_models, download_model

    given = name.removeprefix(PREFIX)
    if (Path(given) / WEIGHTS).is_file():
        return Path(given) / WEIGHTS
    try:
        return Path(download_model(given)) / WEIGHTS
    except Exception as error:  # the hub's client fails in many ways
        raise UserError(
            f"--whisper {name}: neither a folder with {WEIGHTS} nor weights that can be fetched ({error}); give a folder made by "
            f"ct2-transformers-converter, with tokenizer.json and preprocessor_config.json in it, or one of {', '.join(available_models())}"
        ) from error


def load(name: str, device: str) -> Any:
    """The model. Raises `UserError`."""
    import torch
    from faster_whisper import WhisperModel

    check_device(name, device)
    folder = fetch(name).parent
    kind, _, number = device.partition(":")  # torch's `cuda:1`
    threads = torch.get_num_threads()  # workers share the cores through torch's count
    try:
        return WhisperModel(str(folder), device=kind, device_index=int(number or 0), cpu_threads=threads)
    except Exception as error:  # a foreign or broken file
        raise UserError(f"--whisper {name}: not a Whisper of CTranslate2 ({type(error).__name__}: {error})") from error


def check_device(name: str, device: str) -> None:
    """Open what CTranslate2 will open on a GPU: with it, its own attempt succeeds; without it, every recording would come out without text.

    Raises `UserError` naming the package.
    """
    if not device.startswith("cuda"):
        return
    try:
        ctypes.CDLL(CUBLAS)
    except OSError as error:
        installed = next((file.locate() for file in _files_of(CUBLAS_PACKAGE) if file.name == CUBLAS), None)
        if installed is None:
            raise UserError(
                f"--whisper {name}: CTranslate2 needs {CUBLAS} (CUDA 12) on a GPU, which cannot be loaded ({error}); "
                f"install it: pip install {CUBLAS_PACKAGE}; or take openai-whisper, by a name without {PREFIX}"
            ) from None
        try:
            ctypes.CDLL(str(installed))
        except OSError as broken:
            raise UserError(f"--whisper {name}: {installed} cannot be loaded ({broken}); install {CUBLAS_PACKAGE} again") from None


def _files_of(package: str) -> Iterable[PackagePath]:
    try:
        return files_of(package) or ()
    except PackageNotFoundError:
        return ()


def settings(name: str, language: str | None) -> dict[str, Any]:
    """All that the text depends on besides the sound: part of the cache key. Published weights are known by their name."""
    weights = Path(name.removeprefix(PREFIX)) / WEIGHTS
    return {
        "form": FORM,
        "faster-whisper": version("faster-whisper"),
        "ctranslate2": version("ctranslate2"),
        "weights": files.digest(weights) if weights.is_file() else name,
        "language": language,
        "most tokens": MOST_TOKENS,
        **packs.settings(),
    }


def listen(model: Any, audio: Audio, batch: list[Pack], code: str | None) -> list[Unit]:
    """The words of some packs, with the confidence of their pack. `audio` at 16 kHz; `code`: of the language, None to detect it by batch.

    The packs one behind the other are one sound for the pipeline, and its clips are the packs.
    """
    sounds = [packs.sound(audio, pack) for pack in batch]
    edges = np.cumsum([0, *map(len, sounds)]) / SPEECH_RATE
    limit = packs.token_limit(max(map(packs.seconds_of, batch)), MOST_TOKENS)
    segments, info = _decode(model, np.concatenate(sounds), edges, limit, code)
    sure = round(info.language_probability, 3) if code is None and model.model.is_multilingual else None
    units = []
    for segment in segments:
        index = int(np.abs(edges[:-1] * model.frames_per_second - segment.seek).argmin())
        units += _units(segment.words, batch[index], float(edges[index]), _heard(segment, limit, info.language, sure))
    return units


def _decode(model: Any, sound: Samples, edges: NDArray[np.float64], limit: int, code: str | None) -> tuple[Iterable[Any], Any]:
    """The pipeline's segments, and what it says of the whole. `edges`: seconds at which clips begin and end."""
    from faster_whisper import BatchedInferencePipeline

    found: tuple[Iterable[Any], Any] = BatchedInferencePipeline(model).transcribe(
        sound,
        clip_timestamps=[{"start": start, "end": end} for start, end in itertools.pairwise(edges)],
        batch_size=len(edges) - 1,
        language=code,
        beam_size=1,
        temperature=0.0,
        word_timestamps=True,
        prepend_punctuations=packs.OPENING,
        append_punctuations=packs.CLOSING,
        max_new_tokens=limit,
    )
    return found


def _heard(segment: Any, limit: int, code: str, sure: float | None) -> Heard:
    """What is known of a segment; `sure`: of its language, `code`."""
    from whisper.tokenizer import LANGUAGES

    return Heard(
        language=LANGUAGES[code],
        avg_logprob=round(float(segment.avg_logprob), 3),
        compression_ratio=round(float(segment.compression_ratio), 3),
        no_speech_prob=round(float(segment.no_speech_prob), 3),
        temperature=0.0,
        complete=len(segment.tokens) < limit - 1,  # CTranslate2 counts the end of the text too
        language_prob=sure,
    )


def _units(words: list[Any], pack: Pack, offset: float, heard: Heard) -> list[Unit]:
    """`offset`: seconds at which the pack begins in the sound that the words' times refer to."""
    if packs.silent(heard.no_speech_prob, heard.avg_logprob):
        return []
    placed = [(word.word, *packs.place(pack, word.start - offset, word.end - offset)) for word in words]
    return [Unit(text=text, start=start, stop=stop, heard=heard) for text, start, stop in placed]
