"""Expandable segments are set if every GPU supports them, the user set nothing else, and torch has not yet read its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.hardware import cuda_allocator
from overtone.finetune.hardware.cuda_allocator import (
    NCCL_REGISTRATION,
    OLDER,
    SETTING,
    VARIABLE,
    has_virtual_memory,
    use_expandable_segments,
)

ROOT = Path(__file__).parents[3]


class Driver:
    """In place of libcuda: answers for so many GPUs, with 0 for success, as the driver does."""

    def __init__(self, supported: list[int], failing: str = "") -> None:
        self.supported, self.failing = supported, failing

    def cuInit(self, flags: int) -> int:  # noqa: N802 - CUDA's names
        assert flags == 0
        return 100 * (self.failing == "cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.supported)
        return 100 * (self.failing == "cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 101 * (self.failing == "cuDeviceGet")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert attribute == 102
        value._obj.value = self.supported[device.value]
        return 1 * (self.failing == "cuDeviceGetAttribute")


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started, on a machine with two GPUs."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(cuda_allocator, "load_driver", lambda: Driver([1, 1]))


def test_expandable_segments_are_set_and_reported() -> None:
    environ = {"HOME": "/root"}
    account = use_expandable_segments(environ)
    assert environ == {"HOME": "/root", VARIABLE: SETTING} and account is not None
    assert f"{VARIABLE}={SETTING}" in account
    assert use_expandable_segments(environ) is None, "once"


@pytest.mark.parametrize("name", [VARIABLE, *OLDER, NCCL_REGISTRATION])
def test_a_setting_of_the_user_is_kept(name: str) -> None:
    environ = {name: "max_split_size_mb:128"}
    assert use_expandable_segments(environ) is None and environ == {name: "max_split_size_mb:128"}


def test_after_the_import_of_torch_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", cuda_allocator)
    environ: dict[str, str] = {}
    assert use_expandable_segments(environ) is None and environ == {}


def test_without_a_driver_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_allocator, "load_driver", lambda: None)
    environ: dict[str, str] = {}
    assert use_expandable_segments(environ) is None and environ == {}


@pytest.mark.parametrize(
    ("library", "allows"),
    [
        (Driver([1]), True),
        (Driver([1, 1, 1]), True),
        (Driver([]), False),
        (Driver([1, 0]), False),
        *((Driver([1], failing), False) for failing in ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute")),
    ],
)
def test_every_visible_gpu_must_support_virtual_memory(library: Driver, allows: bool) -> None:
    assert has_virtual_memory(library) is allows


RECIPE = """
import torch
from overtone.finetune.recipe import Inference, Recipe
from .options import Options
RECIPE = Recipe(Options, *[None] * 6, ("plain",), Inference(print))
"""


def test_training_sets_the_allocator_before_torch_reads_its_settings(tmp_path: Path) -> None:
    """Up to where the ranks would join; there, torch's own parser says what it has read."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "options.py").write_text("from overtone.finetune.config import Section\n\n\nclass Options(Section):\n    pass\n")
    (tmp_path / "config.yaml").write_text("train: {steps: 3}\n")
    script = f"""
import os, sys, types
from tests.finetune.hardware.test_cuda_allocator import Driver
from overtone.finetune.hardware import cuda_allocator; from overtone.finetune import train
cuda_allocator.load_driver = lambda: Driver([1])
def no_join(*_):
    import torch
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: os.environ["PYTORCH_ALLOC_CONF"])()
    sys.exit(f"torch read {{read}}")
run = types.ModuleType("overtone.finetune.training.run")
run.process_group, run.train = no_join, None
sys.modules["overtone.finetune.training.run"] = run
train.main(["--recipe", {str(tmp_path)!r}, "--data.train", {str(tmp_path / "rows.jsonl")!r}])
"""
    own = {name: value for name, value in os.environ.items() if name not in (VARIABLE, *OLDER)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=own, capture_output=True, text=True, timeout=100, check=False)
    assert "torch read expandable_segments:True" in done.stderr, done.stderr
    assert done.stdout.count(f"{VARIABLE}={SETTING}") == 1
