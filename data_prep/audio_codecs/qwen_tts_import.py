"""The only place that imports the `qwen_tts` package, so that it loads with any build of torch and prints nothing.

`qwen_tts` imports torchaudio, and uses it only in its 25 Hz tokenizer (kaldi filter banks). The published torchaudio wheel cannot load
beside a CPU build of torch, so empty modules replace it there; the 12 Hz models work without it.

It also imports librosa. With arrays at the codec's own rate it calls only functions that numba does not compile
(`data_prep/audio/librosa_import.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import IO

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_classes import COMMON_TOKENIZERS
from overtone.finetune.storage.model_security import Kind


def _is_part(_: str, inner: str) -> bool:
    """Return True for the types of nested configs: the package builds each with its own class, regardless of the type in the file."""
    return inner == "mimi" or inner.startswith("qwen3_tts")


CODEC_FOLDER, CODEC_TYPE = "speech_tokenizer", "qwen3_tts_tokenizer_12hz"
"""The subfolder of a model with its codec, and the codec's `model_type`."""
CODEC = Kind("the 12 Hz speech tokenizer of Qwen3-TTS", {CODEC_TYPE}, _is_part, {"feature_extractor_type": {"EncodecFeatureExtractor"}})
CLASSES = {"tokenizer_class": COMMON_TOKENIZERS | {"Qwen2Tokenizer", "Qwen2TokenizerFast"}, "processor_class": {"Qwen3TTSProcessor"}}
VOICE_MODEL = Kind("a Qwen3-TTS model", {"qwen3_tts"}, _is_part, CLASSES, {CODEC_FOLDER: CODEC})
"""The folders that are accepted as models of this package."""

STAND_INS = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
"""Modules to replace, parents before children: exactly what `qwen_tts` imports of torchaudio."""


def import_qwen_tts() -> ModuleType:
    """Import the `qwen_tts` package, with a stand-in for torchaudio where that cannot load.

    Raises `UserError` if the package is missing. Its output while loading is discarded, unless loading fails.
    """
    try:
        with _capture_output():
            ensure_torchaudio()
            return importlib.import_module("qwen_tts")  # noqa: TID251 - an installed package
    except ModuleNotFoundError as error:
        raise UserError(f"the Python package {error.name!r} is missing; install the voice extra: pip install 'overtone[voice]'") from error


def ensure_torchaudio() -> bool:
    """Make `import torchaudio` succeed; returns whether that imports the real package."""
    try:
        importlib.import_module(STAND_INS[-1])  # noqa: TID251 - an installed package
    except (ImportError, OSError):  # OSError: the wheel is installed, but a CUDA library that it links is not
        _install_torchaudio_stand_in()
    return not getattr(sys.modules["torchaudio"], "__version__", "").endswith("stand-in")


def _install_torchaudio_stand_in() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]  # left by the failed import; they would be found instead of the stand-ins
    for name in STAND_INS:
        module = ModuleType(name, "Inert: the real torchaudio cannot load here.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # transformers calls find_spec, which needs it
        module.__path__ = []
        vars(module)["__version__"] = "0+stand-in"
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


@contextlib.contextmanager
def _capture_output() -> Iterator[None]:
    """Capture file descriptors 1 and 2 (a child process, `sox -h`, writes there too); an exception prints it to stderr."""
    with tempfile.TemporaryFile() as sink:
        try:
            with _redirect_output(sink):
                yield
        except BaseException:
            sink.seek(0)
            os.write(2, sink.read())
            raise


@contextlib.contextmanager
def _redirect_output(sink: IO[bytes]) -> Iterator[None]:
    _flush_output()
    saved = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(sink.fileno(), number)
        yield
    finally:
        _flush_output()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _flush_output() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
