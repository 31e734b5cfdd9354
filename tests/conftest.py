"""What all tests share: properties are searched without a stopwatch, since the machine may be busy."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run: a suite that fails now and then teaches people to run it again.
settings.register_profile("busy machine", deadline=None, derandomize=True)
settings.load_profile("busy machine")

# As in an activated environment: printed commands are then `overtone …`, and tests may run them as they stand.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
if shutil.which("overtone") is None:
    raise pytest.UsageError(f"no command overtone here; install it: {sys.executable} -m pip install --no-deps --no-build-isolation -e .")

SLOW_SECONDS = 1800
"""A slow test that takes longer hangs. When the limit is reached the whole session dies, so a busy machine must not come near it."""

FIRST = (
    "tests/recipes/voice_clone/test_regeneration.py",
    "tests/launch/",
    "tests/reliability/",
    "tests/recipes/speech/serving/test_serve_command.py",
    "tests/recipes/qwen3_tts/inference/test_synthesizer.py",
    "tests/recipes/voice_clone/test_speech_registration.py",
    "tests/finetune/data/test_mixture.py",
    "tests/finetune/training/test_generation_during_training.py",
    "tests/finetune/checkpointing/",
    "tests/recipes/speech/test_interface.py",
    "tests/test_",
)
"""Files that take longest come first, by their CPU time: an xdist worker takes whole files, in this order, and a long one at the end would
leave the other worker with nothing to do. The last ones are then files of `tests/recipes`, which have many small tests. The first file
trains the models that several of the others share, while the other worker does something else."""


def place_in_order(item: pytest.Item) -> int:
    """The first of `FIRST` that the file's path starts with; all others keep the order of their paths."""
    return next((place for place, path in enumerate(FIRST) if item.nodeid.startswith(path)), len(FIRST))


def pytest_configure() -> None:
    """A shell that starts the tests in the background makes them ignore SIGINT, and tests send it to themselves."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes never become part of an id: what a compressor or a random source wrote may differ between two workers' collections."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_in_order)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
