"""voice_dpo gives the same numbers on 1, 2 and 4 processes and in any micro-batches; a launched run resumes with the same numbers, and its
export speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile

from overtone.finetune.__main__ import main
from overtone.finetune.exporting import export
from overtone.recipes.preferences.batch_targets import LOSS
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.launching import launch, series
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.voice_clone.conftest import make_ready, make_rows, write_corpus
from tests.recipes.voice_dpo import spoken_pairs
from tests.reliability import victims
from tests.reliability.victims import Fault

pytestmark = pytest.mark.slow
STEPS = 4
FSDP, SMALL = {"parallel.strategy": "fsdp"}, {"train.micro_tokens": "60"}
LORA = {"model.lora": "{rank: 4, alpha: 8}", "train.lr": "1e-2"}
ALONE: dict[str, dict[str, str]] = {
    **{"full": {}, "lora": LORA, "simpo": {"options.objective": "simpo"}, "ipo": {"options.objective": "ipo"}},
    **{"cached": {"options.reference": "cached"}, "small": SMALL},
}
SHARDED: list[ChangedCase] = [
    *((world, name, FSDP) for world in (2, 4) for name in ("full", "lora", "simpo", "cached")),
    (2, "full", {"parallel.strategy": "ddp", **SMALL}),
    (2, "ipo", {**FSDP, **SMALL}),
    (4, "full", {**FSDP, **SMALL}),
]


def basic_keys(folder: Path) -> dict[str, str]:
    keys = {
        **{"data.train": folder / "pairs.jsonl", "train.steps": STEPS, "model.source": folder / "export"},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-3", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "parallel.strategy": "ddp"},
    }
    return {key: str(value) for key, value in keys.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported voice and pairs of its clips."""
    found = tmp_path_factory.mktemp("voice_preferences")
    nano = tiny_checkpoint.build(found / "nano")
    rows = make_rows({"Anna": "high.flac", "Bert": "low.flac"})
    spoken_pairs.export_voice(make_ready(write_corpus(found / "data", rows).config(nano), rows), "custom_voice", found / "export")
    pairs = [*spoken_pairs.make_pairs(), *spoken_pairs.make_pairs(frames=(3, 9), seed=1)]
    (found / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return found


@pytest.fixture(scope="module")
def runs(folder: Path) -> ChangedRuns:
    return ChangedRuns(folder, "voice_dpo", ALONE, SHARDED, lambda name: {**basic_keys(folder), **ALONE[name]})


def list_metrics(step: dict[str, Any]) -> list[str]:
    """The loss and the metrics of the recipe in a logged step."""
    return [name for name in step if name in (LOSS, "accuracy", "margin", "kl") or name.startswith(("chosen", "rejected", "longer"))]


@pytest.mark.parametrize(("world", "name", "changes"), [*SHARDED, (1, "small", {}), (1, "cached", {})])
def test_every_run_takes_the_steps_of_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, {"small": "full", "cached": "full"}.get(name, name), {})
    assert len(found) == len(expected) == STEPS and expected[-1]["margin"] > expected[0]["margin"] + 0.1
    for one, other in zip(found, expected, strict=True):
        names = list_metrics(other)
        assert len(names) >= 11 and [one[key] for key in names] == pytest.approx([other[key] for key in names], rel=1e-4, abs=1e-4)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_a_run_that_was_killed_while_saving_resumes_bit_by_bit(folder: Path, tmp_path: Path) -> None:
    def words(run: str) -> list[str]:
        keys = {**basic_keys(folder), "run.dir": str(tmp_path / run), "train.steps": "6", "checkpoint.every": "2"}
        keys |= {"train.micro_tokens": "60", "train.global_batch_tokens": "120"}  # several steps of an epoch: the order must resume too
        return ["--recipe", "voice_dpo", *(word for key, value in keys.items() for word in (f"--{key}", value))]

    victims.finish(tmp_path / "whole-witness", 2, words("whole"))
    commits = [number for number, operation in enumerate(victims.operations(tmp_path / "whole-witness")) if operation == "rename"]
    codes = victims.wait(victims.start(tmp_path / "witness", 2, words("killed"), Fault(rank=0, number=commits[1])))
    assert -9 in codes, victims.said(tmp_path / "witness")
    launch("cpu", 2, "finetune/train.py", *words("killed"))
    assert [event["step"] for event in series(tmp_path / "killed", "resumed")] == [2], "the save of step 4 was not committed"
    whole, killed = (
        {event["step"]: [event[key] for key in (*list_metrics(event), "grad_norm")] for event in series(tmp_path / run)}
        for run in ("whole", "killed")
    )
    assert whole == killed and len(whole) == 6
    folders = [export.export(tmp_path / run, tmp_path / f"export-{run}") for run in ("whole", "killed")]
    assert len({(each / "model.safetensors").read_bytes() for each in folders}) == 1


@pytest.mark.parametrize("world", [1, 2])
def test_a_launched_run_resumes_exports_and_speaks(world: int, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = {}
    for name, stops in (("whole", (4,)), ("resumed", (2, 4))):
        for stop in stops:
            keys = {**basic_keys(folder), "run.dir": str(tmp_path / name), "train.steps": str(stop), "train.schedule": "constant"}
            words = [word for key, value in keys.items() for word in (f"--{key}", value)]
            printed = launch("cpu", world, "finetune/train.py", "--recipe", "voice_dpo", *words)
        logs[name] = [[event[key] for key in (*list_metrics(event), "grad_norm")] for event in series(tmp_path / name)]
    assert logs["whole"] == logs["resumed"] and len(logs["whole"]) == 4 and "reference: a frozen copy of the base" in printed
    exported = export.export(tmp_path / "resumed", tmp_path / "export")
    assert json.loads((exported / "voices.json").read_text())["objective"] == "dpo"
    words = ["--model", str(exported), "--speaker", "anna", "--text", "It is late.", "--max-seconds", "1", "--out", str(tmp_path / "a.wav")]
    assert main(["generate", *words]) == 0 and soundfile.info(tmp_path / "a.wav").duration > 0
    assert "anna" in capsys.readouterr().out
