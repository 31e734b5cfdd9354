"""The hashed requirements are the pinned ones: the same versions, every one with a hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from overtone.data_prep.speakers import resemblyzer_encoder

ROOT = Path(__file__).parents[1]
PINS = {
    "main.txt": "constraints.txt",
    "build.txt": "constraints.txt",
    "torch-cpu.txt": "constraints.txt",
    "chat.txt": "constraints-chat.txt",
}
OLDEST = {
    "gpu-chat.txt": ("constraints-chat.txt", "constraints-gpu-chat.txt"),
    "gpu-voice.txt": ("constraints.txt", "constraints-gpu-voice.txt"),
}
"""Requirements of `make test-gpu-versions`: pinned as in the first file, but for what the second one pins."""


def pins(path: Path) -> dict[str, str]:
    """Package → version."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("name", PINS)
def test_the_locked_versions_are_the_pinned_ones(name: str) -> None:
    locked, pinned = pins(ROOT / "locked" / name), pins(ROOT / PINS[name])
    assert locked and locked == {package: pinned.get(package) for package in locked}


@pytest.mark.parametrize("name", OLDEST)
def test_the_oldest_torch_is_locked_beside_the_pinned_versions(name: str) -> None:
    base, own = (pins(ROOT / path) for path in OLDEST[name])
    locked, pinned = pins(ROOT / "locked" / name), base | own
    assert own.keys() <= locked.keys() and "nvidia-nccl-cu13" in locked
    assert {package: version for package, version in locked.items() if pinned.get(package, version) != version} == {}
    floor = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert floor and locked["torch"] == f"{floor[1]}.0", "the oldest torch that pyproject.toml admits is the one that is tested"


def test_all_that_is_pinned_is_locked() -> None:
    everything = {**pins(ROOT / "locked" / "main.txt"), **pins(ROOT / "locked" / "build.txt"), **pins(ROOT / "locked" / "cuda.txt")}
    assert len(everything) > 180
    assert set(pins(ROOT / "constraints.txt")) - set(everything) <= {"tzdata"}, "run locked/compile"


@pytest.mark.parametrize("name", [*PINS, *OLDEST, "cuda.txt", "similarity.txt", "real.txt", "gguf.txt", "lm-eval.txt"])
def test_every_entry_has_a_hash(name: str) -> None:
    entries = re.findall(r"^[^#\s].*(?:\n[ ]+.*)*", (ROOT / "locked" / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert entries and all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_the_command_for_the_speaker_encoder_names_the_locked_version() -> None:
    """No extra: it would bring webrtcvad, which needs a C compiler and is used by that package's own code alone."""
    ((name, version),) = pins(ROOT / "locked" / "similarity.txt").items()
    assert f"pip install --no-deps {name}=={version}" == resemblyzer_encoder.INSTALL


def test_voice_is_speech_and_qwen_tts() -> None:
    """Only `qwen-tts` pins transformers, so that other speech models can use a later one with `speech`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert extras["voice"] == ["overtone[qwen-tts,speech]"]
    assert len(extras["speech"]) >= 9 and [line for line in extras["speech"] if "==" in line or "qwen" in line] == []
    (pinned,) = extras["qwen-tts"]
    assert pinned.partition("==")[0] == "qwen-tts" and pins(ROOT / "locked" / "main.txt")["qwen-tts"] == pinned.partition("==")[2]
    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0].rstrip(">=") for line in extras["speech"]}
    assert names <= pins(ROOT / "locked" / "main.txt").keys()


def test_what_is_locked_is_of_extras_that_exist() -> None:
    script = (ROOT / "locked" / "compile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^extras=\((.+)\)$", script, re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {"speech", "text", "serve"} < set(listed.split()) <= extras.keys()


def test_chats_and_images_have_transformers_5_and_all_else_that_voices_have() -> None:
    """So that every command but those of Qwen3-TTS runs in either environment."""
    chat, voice = pins(ROOT / "locked" / "chat.txt"), pins(ROOT / "locked" / "main.txt")
    assert chat["transformers"].startswith("5.") and voice["transformers"] == "4.57.3"
    gradio = {
        "brotli",
        "gradio",
        "gradio-client",
        "groovy",
        "hf-gradio",
        "httpcore",
        "httpx",
        "orjson",
        "pydub",
        "pytz",
        "safehttpx",
        "semantic-version",
    }
    assert voice.keys() - chat.keys() == {"qwen-tts", "sox", "torchaudio", *gradio}, "what qwen-tts asks for"
    assert {package for package in chat.keys() & voice.keys() if chat[package] != voice[package]} == {
        "accelerate", "huggingface-hub", "tokenizers", "transformers"
    }  # fmt: skip
