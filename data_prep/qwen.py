"""The one door to the `qwen_tts` package: it imports on any torch build, and without noise.

`qwen_tts` imports torchaudio at package import and uses it only in its 25 Hz tokenizer (kaldi filter banks). On a CPU build of torch the
published torchaudio wheel cannot load, so inert modules take its place; everything at 12 Hz works without it.

It imports librosa too, and of it only what numba does not compile (`rosa`), as long as it is given arrays at the codec's own rate.
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

from finetune.errors import UserError
from finetune.model_gate import Kind


def _is_part(_: str, inner: str) -> bool:
    """The package builds each nested config by a class of its own, whatever type the file names."""
    return inner == "mimi" or inner.startswith("qwen3_tts")


CODEC_FOLDER, CODEC_TYPE = "speech_tokenizer", "qwen3_tts_tokenizer_12hz"
"""Where a model holds its codec, and that codec's `model_type`."""
CODEC = Kind("the 12 Hz speech tokenizer of Qwen3-TTS", {CODEC_TYPE}, _is_part)
VOICE_MODEL = Kind("a Qwen3-TTS model", {"qwen3_tts"}, _is_part, {CODEC_FOLDER: CODEC})
"""The folders that are read as models of this package."""

STOOD_IN = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
"""Parents before children; exactly what `qwen_tts` imports."""


def import_qwen_tts() -> ModuleType:
    """The `qwen_tts` package, with a stand-in for torchaudio where that cannot load.

    Raises `UserError` if the package is missing. What it prints while loading is dropped, unless loading fails.
    """
    try:
        with _silenced():
            ensure_torchaudio()
            return importlib.import_module("qwen_tts")
    except ModuleNotFoundError as error:
        raise UserError(f"the Python package {error.name!r} is missing; install the voice extra: pip install 'overtone[voice]'") from error


def ensure_torchaudio() -> bool:
    """Make `import torchaudio` succeed; returns whether it is the real one."""
    try:
        importlib.import_module(STOOD_IN[-1])
    except (ImportError, OSError):  # OSError: the wheel is there, and a CUDA library that it links is not
        _stand_in_for_torchaudio()
    return not getattr(sys.modules["torchaudio"], "__version__", "").endswith("stand-in")


def _stand_in_for_torchaudio() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]  # a failed import leaves halves behind, and they would be found instead of ours
    for name in STOOD_IN:
        module = ModuleType(name, "Inert: the real torchaudio cannot load here.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # transformers asks find_spec, which wants one
        module.__path__ = []
        vars(module)["__version__"] = "0+stand-in"
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Hold back what is written to file descriptors 1 and 2 (a part comes from a child process, `sox -h`); a failure brings it out."""
    with tempfile.TemporaryFile() as sink:
        try:
            with _descriptors_into(sink):
                yield
        except BaseException:
            sink.seek(0)
            os.write(2, sink.read())
            raise


@contextlib.contextmanager
def _descriptors_into(sink: IO[bytes]) -> Iterator[None]:
    _flush()
    saved = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(sink.fileno(), number)
        yield
    finally:
        _flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
