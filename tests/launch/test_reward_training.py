"""llm_reward gives the same numbers on 1, 2 and 4 processes, sharded and not, packed and padded; and a killed run resumes bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from tests.launch.launching import launch, series
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.llm_sft import tiny_runs
from tests.reliability import victims
from tests.reliability.victims import Fault

pytestmark = pytest.mark.slow
STEPS = 4
ANSWERS = [("yes " * count, "no " * (9 - count)) for count in range(1, 9)]
PAIRS = [
    {
        "prompt": [{"role": "user", "content": f"Number {count}?"}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
        "margin": count / 10,
    }
    for count, (chosen, rejected) in enumerate(ANSWERS)
]
TEXTS = [{"text": text, "label": label} for pair in ANSWERS for text, label in zip(pair, ("good", "bad"), strict=True)]
METRICS = {
    "pairs": ("loss", "preference", "centering", "accuracy", "margin", "chosen_reward", "rejected_reward"),
    "texts": ("loss", "cross_entropy", "accuracy", "accuracy_0", "accuracy_1"),
}
ALONE: dict[str, dict[str, str]] = {
    "pairs": {"options.centering": "0.1"},
    "texts": {"options.objective": "classification", "model.lora": "{rank: 4, alpha: 8}", "train.lr": "3e-2"},
}
SHARDED: list[ChangedCase] = [
    *((world, name, {"parallel.strategy": "fsdp"}) for world in (2, 4) for name in ALONE),
    (2, "pairs", {"data.packing": "false", "train.micro_tokens": "96"}),
    (2, "texts", {"data.packing": "false", "train.micro_tokens": "40"}),
    (2, "pairs", {"parallel.strategy": "fsdp", "train.activation_checkpointing": "full"}),
]


def basic_keys(folder: Path, name: str) -> dict[str, str]:
    keys = {
        **{"data.train": folder / f"{name}.jsonl", "train.steps": STEPS, "model.source": folder / "base"},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-2", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "parallel.strategy": "ddp", "data.packing": "true"},
        **ALONE[name],
    }
    return {key: str(value) for key, value in keys.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base and the data."""
    found = tmp_path_factory.mktemp("rewards")
    tiny_runs.write_base(found / "base")
    for name, rows in (("pairs", PAIRS), ("texts", TEXTS)):
        (found / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


@pytest.fixture(scope="module")
def runs(folder: Path) -> ChangedRuns:
    return ChangedRuns(folder, "llm_reward", ALONE, SHARDED, lambda name: basic_keys(folder, name))


@pytest.mark.parametrize(("world", "name", "changes"), SHARDED)
def test_sharded_and_padded_runs_match_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, name, {})
    assert len(found) == len(expected) == STEPS and expected[-1]["loss"] < 0.8 * expected[0]["loss"]
    for one, other in zip(found, expected, strict=True):
        assert [one[key] for key in METRICS[name]] == pytest.approx([other[key] for key in METRICS[name]], rel=1e-4, abs=2e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("name", ALONE)
def test_a_run_that_was_killed_while_saving_resumes_bit_by_bit(folder: Path, tmp_path: Path, name: str) -> None:
    def words(run: str) -> list[str]:
        keys = {**basic_keys(folder, name), "run.dir": str(tmp_path / run), "train.steps": "6", "checkpoint.every": "2"}
        return ["--recipe", "llm_reward", *(word for key, value in keys.items() for word in (f"--{key}", value))]

    victims.finish(tmp_path / "whole-witness", 2, words("whole"))
    commits = [number for number, operation in enumerate(victims.operations(tmp_path / "whole-witness")) if operation == "rename"]
    codes = victims.wait(victims.start(tmp_path / "witness", 2, words("killed"), Fault(rank=0, number=commits[1])))
    assert -9 in codes, victims.said(tmp_path / "witness")
    launch("cpu", 2, "finetune/train.py", *words("killed"))
    assert [event["step"] for event in series(tmp_path / "killed", "resumed")] == [2], "the save of step 4 was not committed"
    logs = []
    for run in ("whole", "killed"):
        logs.append({event["step"]: [event[key] for key in (*METRICS[name], "grad_norm")] for event in series(tmp_path / run)})
    assert logs[0] == logs[1] and len(logs[0]) == 6
    folders = [export.export(tmp_path / run, tmp_path / f"export-{run}") for run in ("whole", "killed")]
    assert len({(each / "model.safetensors").read_bytes() for each in folders}) == 1
