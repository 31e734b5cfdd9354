"""Released weights learn a task in four ways, and what they say is the same wherever the export is loaded.

Full, LoRA, DoRA and QLoRA; packed and not; 1 and 2 processes; fp32 and bf16; one of them killed and resumed. Scores are held-out sentences
extracted and general questions still answered; both are printed at the end of the tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, pipeline

from overtone.finetune.exporting.export import export
from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, command
from tests.real.build_models import CHAT
from tests.real.person_extraction import HELD_OUT, QUESTIONS, TRAINED, Scores, answer, make_examples, score_model, write_rows
from tests.recipes.voice_clone.served import server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 8
EXTRACTED, KNOWN = 20, 10
"""Least numbers of 30 after training. A wrong loss, mask or export extracts none; a broken model knows none."""


class Method(NamedTuple):
    """A way to train; `killed`: with SIGKILL in the middle, and resumed."""

    processes: int
    settings: dict[str, object]
    killed: bool = False


METHODS = {
    "full": Method(1, {"train.precision": "bf16", "train.lr": 1e-4}),
    "lora": Method(2, {"model.lora": "true", "train.precision": "fp32", "train.lr": 1e-3}),
    "dora": Method(1, {"model.lora": "{dora: true}", "train.precision": "fp32", "train.lr": 1e-3, "data.packing": "false"}, killed=True),
    "qlora": Method(2, {"model.lora": "true", "model.quantization": "nf4", "train.precision": "bf16", "train.lr": 1e-3}),
}


def train(model: Path, folder: Path, method: Method) -> Path:
    """Train `model` on the task; returns the folder of the run."""
    given = {
        "recipe": "llm_sft", "model.source": model, "data.train": write_rows(folder / "train.jsonl", make_examples(*TRAINED)),
        "data.val": write_rows(folder / "val.jsonl", make_examples(*HELD_OUT)), "run.dir": folder / "run", "train.steps": STEPS,
        "train.global_batch_tokens": 1024, "train.micro_tokens": 512, "log.trackers": "[]", "eval.every": STEPS, "checkpoint.every": 2,
        **method.settings,
    }  # fmt: skip
    words = command("cpu", method.processes, "finetune/train.py", *(word for name, value in given.items() for word in (f"--{name}", value)))
    if method.killed:
        kill_at_step(words, STEPS // 2 + 1)
    done = subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("a fresh start in" in done.stdout) != method.killed, done.stdout
    assert "kernels" not in done.stdout + done.stderr, "bitsandbytes is imported, and advises to download code"
    return folder / "run"


def kill_at_step(words: list[str], step: int) -> None:
    """Start a run, and kill its ranks and then their launcher when it prints that step."""
    with subprocess.Popen(words, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        assert launcher.stdout is not None
        assert any(line.startswith(f"step {step}/") for line in launcher.stdout)
        for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
            process.kill()


@pytest.fixture(scope="module")
def before(chat_model: Path) -> Scores:
    return score_model(chat_model)


@pytest.fixture(scope="module")
def runs(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a method, trained when a test wants it."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = train(chat_model, tmp_path_factory.mktemp(name), METHODS[name])
        return made[name]

    return get


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_the_task_and_forgets_a_bounded_part(
    name: str, runs: Callable[[str], Path], before: Scores, tmp_path: Path, figures: list[str]
) -> None:
    run = runs(name)
    steps = [event["step"] for event in read_log(run / "log.jsonl") if event["event"] == "step"]
    assert {*steps} == {*range(1, STEPS + 1)}
    after = score_model(export(run, tmp_path / "export", dtype="fp32"))
    figures.append(
        f"{name}, {STEPS} steps: {before.extracted} → {after.extracted} of 30 persons extracted, "
        f"{before.known} → {after.known} of 30 general questions answered"
    )
    assert before.extracted <= 1 and before.known == len(QUESTIONS)
    assert after.extracted >= EXTRACTED and after.known >= KNOWN


QUESTIONED = [*(example.prompt for example in make_examples(*HELD_OUT)[:4]), *(question for question, _ in QUESTIONS[:4])]


class Loaded(NamedTuple):
    """The export of the LoRA run and transformers' answers with it."""

    run: Path
    folder: Path
    """Merged, in fp32."""
    answers: list[str]


@pytest.fixture(scope="module")
def loaded(runs: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = export(runs("lora"), tmp_path_factory.mktemp("merged") / CHAT, dtype="fp32")
    return Loaded(runs("lora"), folder, answer(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), folder, QUESTIONED, 24))


def test_a_pipeline_of_transformers_gives_the_same_answers(loaded: Loaded) -> None:
    generate = pipeline("text-generation", model=str(loaded.folder), dtype=torch.float32)
    assert [
        generate([{"role": "user", "content": question}], max_new_tokens=24, do_sample=False, return_full_text=False)[0]["generated_text"]
        for question in QUESTIONED
    ] == loaded.answers


def test_peft_gives_the_same_answers_with_the_adapter_alone(loaded: Loaded, tmp_path: Path) -> None:
    folder = export(loaded.run, tmp_path / "adapter", adapter_only=True)
    assert answer(AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32), folder, QUESTIONED, 24) == loaded.answers


def test_the_server_and_generate_give_the_same_answers(loaded: Loaded, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("".join(f"{question}\n" for question in QUESTIONED))
    words = ["generate", "--model", loaded.folder, "--prompt-file", tmp_path / "questions.txt", "--max-new-tokens", "24"]
    done = subprocess.run(
        [sys.executable, "-m", "overtone", *map(str, words)], cwd=ROOT, env=ALONE, capture_output=True, text=True, check=True
    )
    with server([loaded.folder], tmp_path, "--batch", "4", "--max-new-tokens", "24") as running:
        client = running.client()
        served = [
            client.chat.completions.create(model=CHAT, messages=[{"role": "user", "content": question}]).choices[0].message.content
            for question in QUESTIONED
        ]
    assert served == loaded.answers
    for text in loaded.answers:
        assert text.strip() in done.stdout
