"""voice_grpo speaks the same clips and takes the same steps on 1, 2 and 4 processes and in any micro-batches; and a run that was killed
with SIGKILL resumes with the same bits. The judge has random weights: its rewards differ from clip to clip, which is all that matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.monitoring.run_records import ROLLOUTS
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.launching import ALONE, ROOT, command, launch, series
from tests.recipes.voice_clone.conftest import make_export, make_ready, make_rows, write_babbler, write_corpus, write_speaker_model
from tests.recipes.voice_grpo.clip_rewards import ROWS

pytestmark = pytest.mark.slow
STEPS = 3
CASES: dict[str, dict[str, str]] = {
    "full": {},
    "lora": {"model.lora": "{rank: 4, alpha: 8}", "train.lr": "1e-2", "options.kl_weight": "0.1"},
}
FSDP, SMALL = {"parallel.strategy": "fsdp"}, {"train.micro_tokens": "120"}
CHANGED: list[tuple[int, str, dict[str, str]]] = [(2, "full", FSDP), (4, "lora", FSDP), (1, "full", SMALL), (2, "full", SMALL)]
NUMBERS = ("loss", "reward", "reward_similarity", "reward_pace", "seconds", "unfinished", "flat_groups", "grad_norm")


def basic_keys(folder: Path) -> dict[str, str]:
    keys = {
        **{"data.train": folder / "texts.jsonl", "train.steps": STEPS, "model.source": folder / "export"},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-3", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "log.every": 1, "parallel.strategy": "ddp"},
        **{"options.group": 3, "options.max_seconds": 1.0, "options.rollout_batch": 4, "options.judge.asr": folder / "babbler.pt"},
        **{"options.judge.recordings": folder / "data" / "train.jsonl", "options.judge.speaker_model": folder / "speakers"},
    }
    return {key: str(value) for key, value in keys.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported voice, texts, and a judge."""
    found = tmp_path_factory.mktemp("voice_rewards")
    rows = make_rows({"Anna": "high.flac", "Bert": "low.flac"})
    made = make_ready(write_corpus(found / "data", rows).config(tiny_checkpoint.build(found / "nano")), rows)
    make_export(made, "custom_voice", found / "export")
    (found / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    write_babbler(found / "babbler.pt")
    write_speaker_model(found / "speakers")
    return found


def train(folder: Path, world: int, name: str, changes: dict[str, str]) -> Path:
    """A launched run, which is trained once."""
    run = folder / " ".join((str(world), name, *changes))
    if not run.is_dir():
        keys = {**basic_keys(folder), "run.dir": str(run), **CASES[name], **changes}
        words = [word for key, value in keys.items() for word in (f"--{key}", value)]
        # Not in forked ranks: safetensors reads no weights there.
        launch("cpu", world, "finetune/train.py", "--recipe", "voice_grpo", *words)
    return run


def read_rollouts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / ROLLOUTS).read_text().splitlines()]


@pytest.mark.parametrize(("world", "name", "changes"), CHANGED)
def test_runs_on_several_ranks_match_one_process(folder: Path, world: int, name: str, changes: dict[str, str]) -> None:
    places = train(folder, world, name, changes), train(folder, 1, name, {})
    found, expected = map(series, places)
    assert len(found) == len(expected) == STEPS and len({step["reward"] for step in expected}) > 1
    for one, other in zip(found, expected, strict=True):
        assert [one[key] for key in NUMBERS] == pytest.approx([other[key] for key in NUMBERS], rel=1e-4, abs=2e-5)
        assert 0 < one["mismatch"] < 1e-5 and one["tokens"] == other["tokens"]
    kept = [[(one["step"], one["row"], [answer["tokens"] for answer in one["answers"]]) for one in read_rollouts(run)] for run in places]
    assert kept[0] == kept[1] and len(kept[0]) == STEPS * len(ROWS)


def words(folder: Path, run: Path) -> list[str]:
    keys = {**basic_keys(folder), "run.dir": str(run), "train.steps": "6", "train.global_batch_tokens": "400", "checkpoint.every": "2"}
    keys |= {"train.micro_tokens": "200", "train.schedule": "constant", **FSDP}
    return ["finetune/train.py", "--recipe", "voice_grpo", *(word for key, value in keys.items() for word in (f"--{key}", value))]


def test_a_run_killed_in_the_middle_resumes_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    launch("cpu", 2, *words(folder, tmp_path / "whole"))
    with subprocess.Popen(
        command("cpu", 2, *words(folder, tmp_path / "killed")), cwd=ROOT, env=ALONE, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 200
        while not [*(tmp_path / "killed" / "checkpoints").glob("step-00000002")] and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert 2 <= max(row["step"] for row in read_rollouts(tmp_path / "killed")) < 6, "it was killed in the middle"
    printed = launch("cpu", 2, *words(folder, tmp_path / "killed"))
    assert "resuming from step" in printed
    both = [[[step[name] for name in (*NUMBERS, "mismatch")] for step in series(tmp_path / run)] for run in ("whole", "killed")]
    assert both[0] == both[1] and len(both[0]) == 6
    assert (tmp_path / "whole" / ROLLOUTS).read_bytes() == (tmp_path / "killed" / ROLLOUTS).read_bytes()
    parts = [sorted((tmp_path / run / "checkpoints" / "step-00000006").glob("*.safetensors")) for run in ("whole", "killed")]
    assert [path.read_bytes() for path in parts[0]] == [path.read_bytes() for path in parts[1]] and parts[0]
