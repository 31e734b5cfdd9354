"""The released models for tests, built once in OVERTONE_REAL_MODELS or in .real_models of the repository, and recordings of a person."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data_prep.telephone_prompts import Prompt, has_prompts, list_prompts
from tests.real.build_models import CHAT, GGUF, ROOT, VOICE, WHISPER, WHISPER_CT2, WHISPER_FOLDER, UnavailableError, build_models

VARIABLE = "OVERTONE_REAL_MODELS"
PROMPT_PACKAGES = "asterisk-core-sounds-en asterisk-core-sounds-en-g722"
_skipped: dict[str, str] = {}
"""What was not tested → the reason."""
_figures: list[str] = []


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder of `build_models`. Tests that need it are skipped where its packages cannot be downloaded."""
    target = Path(os.environ.get(VARIABLE) or ROOT / ".real_models")
    try:
        build_models(target)
    except UnavailableError as error:
        _skipped["NOTHING WAS TESTED ON REAL MODELS"] = str(error)
        pytest.skip(str(error))
    return target


@pytest.fixture(scope="session")
def chat_model(real_models: Path) -> Path:
    """SmolLM2-135M-Instruct, a Hugging Face folder in bf16."""
    return real_models / CHAT


@pytest.fixture(scope="session")
def chat_gguf(real_models: Path) -> Path:
    """The 4-bit GGUF from which `chat_model` is made."""
    return real_models / GGUF


@pytest.fixture(scope="session")
def whisper_file(real_models: Path) -> Path:
    """tiny.en for openai-whisper."""
    return real_models / WHISPER


@pytest.fixture(scope="session")
def whisper_folder(real_models: Path) -> Path:
    """tiny.en for faster-whisper."""
    return real_models / WHISPER_CT2


@pytest.fixture(scope="session")
def whisper_base(real_models: Path) -> Path:
    """tiny.en for transformers."""
    return real_models / WHISPER_FOLDER


@pytest.fixture(scope="session")
def piper_voice(real_models: Path) -> Path:
    """An .onnx for piper-tts, with its .onnx.json."""
    return real_models / VOICE


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Telephone prompts of one speaker, of 1 to 12 s: those on which no threshold was chosen."""
    if not has_prompts("en"):
        _skipped["NOTHING WAS TESTED ON REAL RECORDINGS"] = reason = f"apt-get install {PROMPT_PACKAGES}"
        pytest.skip(reason)
    return [one for one in list_prompts("en", "reported") if 1.0 <= one.seconds <= 12.0]


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """Lines that a test adds are printed after the last one."""
    return _figures


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lines that cannot be overlooked, since a run without the models or the recordings passes."""
    if _figures:
        terminalreporter.section("figures of real models")
        for line in _figures:
            terminalreporter.line(line)
    for title, reason in _skipped.items():
        terminalreporter.section(title, red=True, bold=True)
        terminalreporter.line(reason)
