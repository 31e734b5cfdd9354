"""llm_grpo gives the same answers and numbers on 1, 2 and 4 processes, sharded and not, with adapters and without; and a run that was
killed with SIGKILL resumes with the same bits."""

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
from tests.launch.launching import ALONE, ROOT, command, launch, series
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.llm_sft import tiny_runs

pytestmark = pytest.mark.slow
STEPS = 4
ROWS = [{"prompt": [{"role": "user", "content": f"Number {count}?"}], "answer": str(count)} for count in range(1, 9)]
LORA = {"model.lora": "{rank: 4, alpha: 8}", "train.lr": "3e-2"}
# Without a reward for the length some groups have no variance.
DYNAMIC = {
    **{"options.objective": "dapo", "options.dynamic_sampling": "3", "options.rewards.length": "null"},
    **{"options.rewards.overlong": "{tokens: 4}", "options.group": "2"},
}
CASES: dict[str, dict[str, str]] = {
    "full": {},
    "lora": LORA,
    "dapo with kl": {"options.objective": "dapo", "options.kl_weight": "0.1"},
    "dynamic": DYNAMIC,
}
SHARDED: list[ChangedCase] = [
    *((2, name, {"parallel.strategy": "fsdp"}) for name in CASES),
    (1, "full", {"train.micro_tokens": "500"}),
    (2, "full", {"parallel.strategy": "ddp", "train.micro_tokens": "500"}),
    (2, "lora", {"parallel.strategy": "zero2", "data.packing": "false"}),
    *((4, name, {"parallel.strategy": "fsdp"}) for name in CASES),
    (2, "dynamic", {"parallel.strategy": "ddp", "train.micro_tokens": "150"}),
    (4, "full", {"parallel.strategy": "ddp", "train.micro_tokens": "200"}),
]
NUMBERS = ("loss", "reward", "answer_tokens", "unfinished", "flat_groups", "mismatch", "grad_norm")


def basic_keys(folder: Path) -> dict[str, str]:
    keys = {
        **{"data.train": folder / "rows.jsonl", "train.steps": STEPS, "model.source": folder / "base"},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 1000, "train.lr": "1e-3", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "parallel.strategy": "ddp", "data.packing": "true", "log.every": 1},
        **{"options.rewards.length.weight": 1, "options.rewards.regular_expression": "{pattern: '.*[aeiou].*', weight: 0.5}"},
        **{"options.group": 4, "options.max_new_tokens": 12, "options.rollout_batch": 4},
    }
    return {key: str(value) for key, value in keys.items()}


def write_inputs(folder: Path) -> Path:
    tiny_runs.write_base(folder / "base")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ChangedRuns:
    folder = write_inputs(tmp_path_factory.mktemp("rewards"))
    return ChangedRuns(folder, "llm_grpo", CASES, SHARDED, lambda name: {**basic_keys(folder), **CASES[name]})


def read_rollouts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / ROLLOUTS).read_text().splitlines()]


@pytest.mark.parametrize(("world", "name", "changes"), SHARDED)
def test_runs_on_several_ranks_match_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, name, {})
    assert len(found) == len(expected) == STEPS and len({step["reward"] for step in expected}) > 1
    for one, other in zip(found, expected, strict=True):
        assert [one[key] for key in NUMBERS if key != "mismatch"] == pytest.approx(
            [other[key] for key in NUMBERS if key != "mismatch"], rel=1e-4, abs=2e-5
        )
        assert 0 < one["mismatch"] < 1e-5 and one["tokens"] == other["tokens"]
    rows = read_rollouts(runs.place(world, name, changes))
    assert [(row["step"], row["row"], [answer["text"] for answer in row["answers"]]) for row in rows] == [
        (row["step"], row["row"], [answer["text"] for answer in row["answers"]]) for row in read_rollouts(runs.place(1, name, {}))
    ]
    assert len(rows) == STEPS * len(ROWS)
    assert [row["replaces"] for row in rows] == [row["replaces"] for row in read_rollouts(runs.place(1, name, {}))]
    if name == "dynamic":
        assert {len(row["replaces"]) for row in rows} >= {0, 1} and all(one["replaced_groups"] > 0 for one in found)


def words(folder: Path, run: str) -> list[str]:
    keys = {**basic_keys(folder), "run.dir": str(folder / run), "train.steps": "8", "train.global_batch_tokens": "800"}
    keys |= {"train.micro_tokens": "400", "checkpoint.every": "2", "train.schedule": "constant", "parallel.strategy": "fsdp", **DYNAMIC}
    return ["finetune/train.py", "--recipe", "llm_grpo", *(word for key, value in keys.items() for word in (f"--{key}", value))]


@pytest.mark.ci
def test_a_run_killed_in_the_middle_resumes_with_the_same_bits(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path)
    launch("cpu", 2, *words(folder, "whole"))
    with subprocess.Popen(
        command("cpu", 2, *words(folder, "killed")), cwd=ROOT, env=ALONE, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 200
        while not [*(folder / "killed" / "checkpoints").glob("step-00000004")] and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    reached = max(row["step"] for row in read_rollouts(folder / "killed"))
    assert 4 <= reached < 8, "it was killed in the middle"
    printed = launch("cpu", 2, *words(folder, "killed"))
    assert "resuming from step" in printed
    names = (*NUMBERS, "clipped", "reward_regular_expression", "replaced_groups")
    both = [[[step[name] for name in names] for step in series(folder / run)] for run in ("whole", "killed")]
    assert both[0] == both[1] and len(both[0]) == 8
    assert (folder / "whole" / ROLLOUTS).read_bytes() == (folder / "killed" / ROLLOUTS).read_bytes()
    assert any(row["replaces"] for row in read_rollouts(folder / "whole") if row["step"] > 4)
    weights = [(folder / run / "checkpoints" / "step-00000008").glob("*.safetensors") for run in ("whole", "killed")]
    contents = [[path.read_bytes() for path in sorted(each)] for each in weights]
    assert contents[0] == contents[1] and contents[0]
