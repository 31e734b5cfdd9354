"""The sampling process ends with its run, is no rank of it, and keeps to its share of a GPU."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.hardware import cuda_allocator
from overtone.finetune.recipe import Answer, MeasuredAnswers, PreparedMetrics, SampleMetrics
from overtone.finetune.training import sampling_process
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.finetune.training.waiting import ended, within

ROOT = Path(__file__).parents[3]


def test_the_process_ends_with_a_killed_run(tmp_path: Path) -> None:
    snapshot = tmp_path / "sample" / "step-00000010"
    snapshot.mkdir(parents=True)
    (snapshot / "manifest.json").write_text("{}")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "recipe.py").write_text("import time\ntime.sleep(600)\n")
    script = f"""
import os, sys, time
from pathlib import Path
from overtone.finetune.training.sampling_process import SamplingProcess
child = SamplingProcess(10, Path({str(snapshot)!r}), {str(tmp_path / "slow")!r}, ("x",), None)
print(child._process.pid, flush=True)
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert not ended(pid)
    run.kill()
    run.communicate()
    assert within(60, lambda: ended(pid))


def test_the_process_is_not_a_rank() -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "FSDP_VERSION": "2", "ACCELERATE_USE_FSDP": "true"}
    own = {"HOME": "/root", "LOCAL_SETTING": "kept"}
    found = sampling_process.environment_of_child({**launched, **own, "OMP_NUM_THREADS": "16", "CUDA_VISIBLE_DEVICES": "0,1"}, "")
    assert found == {**own, **sampling_process.ALONE, "CUDA_VISIBLE_DEVICES": ""}, "no GPU"
    assert sampling_process.environment_of_child({"CUDA_VISIBLE_DEVICES": "0,1"}, "1")["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_process_does_not_inherit_the_allocator_that_training_chose() -> None:
    assert cuda_allocator.VARIABLE not in sampling_process.environment_of_child({cuda_allocator.VARIABLE: cuda_allocator.SETTING}, "0")
    assert (
        sampling_process.environment_of_child({cuda_allocator.VARIABLE: "max_split_size_mb:64"}, "0")[cuda_allocator.VARIABLE]
        == "max_split_size_mb:64"
    )


def test_the_process_keeps_to_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set after the export, which runs on the CPU, and before the model is loaded."""
    order: list[Any] = []
    recipe = replace(RECIPE, inference=replace(RECIPE.inference, sample=lambda *_: order.append("sample") or []))
    monkeypatch.setattr(sampling_process, "load_recipe", lambda _: recipe)
    monkeypatch.setattr("overtone.finetune.exporting.export.export", lambda *_, **__: order.append("export"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", order.append)
    request = {"checkpoint": "x", "folder": str(tmp_path), "recipe": "llm_sft", "prompts": [], "fraction": 0.25, "prepared": None}
    sampling_process.answer_prompts(request)
    assert order == ["export", 0.25, "sample"]
    sampling_process.answer_prompts({**request, "fraction": None})
    assert order[3:] == ["export", "sample"]


def test_the_metrics_are_the_means_of_the_numbers_and_the_recipe_s_own() -> None:
    answers = [Answer("a", numbers={"seconds": 1.0, "rate": 4.0}), Answer("b", numbers={"seconds": 2.0})]

    def measure(folder: Path, prompts: list[str], answers: list[Answer], prepared: PreparedMetrics) -> MeasuredAnswers:
        assert (folder, prompts, prepared.local) == (Path("export"), ["x", "y"], {"asr": "small"})
        return MeasuredAnswers({"wer": 25.0, "similarity": math.nan}, [{"transcript": answer.text} for answer in answers])

    recipe = replace(RECIPE, inference=replace(RECIPE.inference, metrics=SampleMetrics(lambda _: None, measure)))
    plain = sampling_process.measure_answers(recipe, Path("export"), ["x", "y"], answers, None)
    assert plain == MeasuredAnswers({"seconds": 1.5, "rate": 4.0}, [])
    prepared = {"names": ["wer"], "settings": {}, "local": {"asr": "small"}, "bytes": 0}
    own = sampling_process.measure_answers(recipe, Path("export"), ["x", "y"], answers, prepared)
    assert own.metrics == {"seconds": 1.5, "rate": 4.0, "wer": 25.0}, "what is not finite cannot be compared"
    assert own.details == [{"transcript": "a"}, {"transcript": "b"}]
