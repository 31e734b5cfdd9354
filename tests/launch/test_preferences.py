"""llm_dpo gives the same numbers on 1, 2 and 4 processes, sharded and not, with adapters and without; a killed run resumes with the same
numbers; and an export answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.__main__ import main as data_prep
from overtone.finetune.__main__ import main
from overtone.finetune.exporting import export
from overtone.recipes.preferences.batch_targets import LOSS
from tests.launch.launching import launch, series
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.llm_sft import tiny_runs
from tests.reliability import victims
from tests.reliability.victims import Fault

pytestmark = pytest.mark.slow
STEPS = 4
PAIRS = [
    {
        "prompt": [{"role": "user", "content": f"Number {count}?"}],
        "chosen": [{"role": "assistant", "content": "yes " * count}],
        "rejected": [{"role": "assistant", "content": "no " * (9 - count)}],
    }
    for count in range(1, 9)
]
LABELLED = [
    {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"} for row in PAIRS for side in ("chosen", "rejected")
]
LORA = {"model.lora": "{rank: 4, alpha: 8}", "train.lr": "3e-2"}
CACHED = {"options.reference": "cached"}
ALONE: dict[str, dict[str, str]] = {
    **{"full": {}, "lora": LORA, "simpo": {"options.objective": "simpo"}, "kto": {"options.objective": "kto"}},
    **{"cached": CACHED, "cached lora": {**LORA, **CACHED}, "cached kto": {"options.objective": "kto", **CACHED}},
}
SHARDED: list[ChangedCase] = [
    *((2, name, {"parallel.strategy": "fsdp"}) for name in ALONE),
    (2, "full", {"parallel.strategy": "ddp", "train.micro_tokens": "96"}),
    (2, "kto", {"parallel.strategy": "fsdp", "train.micro_tokens": "96"}),
    (2, "full", {"parallel.strategy": "fsdp", "train.activation_checkpointing": "full"}),
    *((4, name, {"parallel.strategy": "fsdp"}) for name in ALONE),
    (4, "lora", {"parallel.strategy": "ddp", "train.micro_tokens": "96"}),
]


def basic_keys(folder: Path) -> dict[str, str]:
    keys = {
        **{"data.train": folder / "pairs.jsonl", "train.steps": STEPS, "model.source": folder / "base"},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-2", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "parallel.strategy": "ddp", "data.packing": "true"},
    }
    return {key: str(value) for key, value in keys.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base and the data."""
    found = tmp_path_factory.mktemp("preferences")
    tiny_runs.write_base(found / "base")
    for name, rows in (("pairs", PAIRS), ("labels", LABELLED)):
        (found / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


@pytest.fixture(scope="module")
def runs(folder: Path) -> ChangedRuns:
    def given(name: str) -> dict[str, str]:
        labelled = {"data.train": str(folder / "labels.jsonl")} if "kto" in name else {}
        return {**basic_keys(folder), **labelled, **ALONE[name]}

    return ChangedRuns(folder, "llm_dpo", ALONE, SHARDED, given)


@pytest.mark.parametrize(("world", "name", "changes"), SHARDED)
def test_sharded_runs_match_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, name, {})
    assert len(found) == len(expected) == STEPS and expected[-1]["margin"] > expected[0]["margin"] + 0.1
    for one, other in zip(found, expected, strict=True):
        names = list_metrics(other)
        assert len(names) >= 11 and [one[key] for key in names] == pytest.approx([other[key] for key in names], rel=1e-4, abs=2e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("name", [name for name in ALONE if name.startswith("cached")])
def test_a_cached_reference_is_the_same_on_any_ranks_and_as_a_live_one(runs: ChangedRuns, name: str) -> None:
    """The whole epoch is one step, so that all runs have the same micro-batches."""
    live = runs(1, {"cached": "full", "cached lora": "lora", "cached kto": "kto"}[name], {})
    found = {
        world: runs(world, name, changes)
        for world, changes in ((1, {}), (2, {"parallel.strategy": "fsdp"}), (4, {"parallel.strategy": "fsdp"}))
    }
    assert [[step[key] for key in list_metrics(step)] for step in found[1]] == [[step[key] for key in list_metrics(step)] for step in live]
    places = [runs.place(1, name, {}), *(runs.place(world, name, {"parallel.strategy": "fsdp"}) for world in (2, 4))]
    files = [next((place / "cache").glob("*.reference")).read_bytes() for place in places]
    assert len({*files}) == 1 and len(files) == 3


def test_a_killed_computation_of_the_reference_resumes_on_other_ranks(folder: Path, tmp_path: Path) -> None:
    rows = [{**PAIRS[number % 8], "prompt": [{"role": "user", "content": f"Question {number}?"}]} for number in range(120)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def words(run: str) -> list[str]:
        keys = {**basic_keys(folder), **CACHED, "run.dir": str(tmp_path / run), "data.train": str(tmp_path / "many.jsonl")}
        keys |= {"train.steps": "1", "train.micro_tokens": "60", "train.global_batch_tokens": "120", "data.too_long": "drop"}
        return ["--recipe", "llm_dpo", *(word for key, value in keys.items() for word in (f"--{key}", value))]

    victims.finish(tmp_path / "whole-witness", 4, words("whole"))
    codes = victims.wait(victims.start(tmp_path / "witness", 2, words("killed"), Fault(rank=0, number=4, within=".parts/", torn=True)))
    assert -9 in codes, victims.said(tmp_path / "witness")
    cache = tmp_path / "killed" / "cache"
    assert [*next(cache.glob("*.parts")).glob("[0-9]*")] and not [*cache.glob("*.reference")]
    printed = launch("cpu", 1, "finetune/train.py", *words("killed"))
    assert "rows were computed before" in printed and not [*cache.glob("*.parts")]
    files = [next((tmp_path / run / "cache").glob("*.reference")).read_bytes() for run in ("whole", "killed")]
    assert files[0] == files[1]


def list_metrics(step: dict[str, Any]) -> list[str]:
    """The loss and the metrics of the recipe in a logged step."""
    return [
        name
        for name in step
        if name in (LOSS, "accuracy", "margin", "kl") or name.startswith(("chosen", "rejected", "mismatched", "longer"))
    ]


def test_a_launched_run_resumes_exports_and_answers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = {}
    for name, stops in (("whole", (4,)), ("resumed", (2, 4))):
        for stop in stops:
            keys = {**basic_keys(folder), "run.dir": str(tmp_path / name), "train.steps": str(stop), "train.schedule": "constant"}
            words = [word for key, value in keys.items() for word in (f"--{key}", value)]
            printed = launch("cpu", 2, "finetune/train.py", "--recipe", "llm_dpo", *words)
        logs[name] = [[event[key] for key in (*list_metrics(event), "grad_norm")] for event in series(tmp_path / name)]
    assert logs["whole"] == logs["resumed"] and len(logs["whole"]) == 4
    assert "reference: a frozen copy of the base" in printed
    exported = export.export(tmp_path / "resumed", tmp_path / "export")
    assert "| Objective | dpo on pairs of answers, β = 0.1 |" in (exported / "README.md").read_text()
    assert main(["generate", "--model", str(exported), "--prompt", "Number 3?", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.strip()


SIDES = [(f"Number {count}?", "yes " * count, "no " * (9 - count)) for count in range(1, 9)]


def make_labelled(question: str, answer: str, label: bool) -> dict[str, Any]:
    """A row as ShareGPT's with a label."""
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}], "label": label}


GIVEN: dict[str, list[dict[str, Any]]] = {
    "pairs": [
        *({"prompt": question, "chosen": good, "rejected": bad, "score_chosen": 8, "score_rejected": 3} for question, good, bad in SIDES),
        {"prompt": "Same?", "chosen": "yes", "rejected": "yes "},
    ],
    "labels": [
        *(make_labelled(question, answer, label) for question, *both in SIDES for answer, label in zip(both, (True, False), strict=True)),
        {"prompt": "Same?", "completion": "yes"},
    ],
}


@pytest.mark.parametrize("rows", GIVEN)
def test_published_rows_become_a_launched_run(folder: Path, tmp_path: Path, rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "published.jsonl", tmp_path / "data"
    source.write_text("".join(json.dumps(row) + "\n" for row in GIVEN[rows]))
    assert data_prep(["text", str(source), "--rows", rows, "--out", str(out), "--val-rows", "4"]) == 0
    printed = capsys.readouterr().out
    assert "1 rejected" in printed and "--recipe llm_dpo" in printed and ("objective kto" in printed) == (rows == "labels")
    keys = {
        **basic_keys(folder),
        "run.dir": str(tmp_path / "run"),
        **{"data.train": str(out / "train.jsonl"), "data.val": str(out / "val.jsonl"), "train.steps": "2", "eval.every": "2"},
        **({"options.objective": "kto"} if rows == "labels" else {}),
    }
    words = [word for key, value in keys.items() for word in (f"--{key}", value)]
    assert "finished" in launch("cpu", 2, "finetune/train.py", "--recipe", "llm_dpo", *words)
    assert len(series(tmp_path / "run")) == 2
