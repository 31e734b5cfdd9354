"""What a run prints before its first step and after its last."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.distributed.process_group import World
from overtone.finetune.recipe import Inference
from overtone.finetune.training import run, start_and_end_messages
from tests.finetune import tiny


@pytest.fixture(autouse=True)
def without_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "draw_curve", lambda *_: None)  # half a second that no test here looks at


def test_a_run_prints_one_screen_before_and_one_after(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(5, seed=1))
    own = (("data.val", str(tmp_path / "val.jsonl")), ("train.steps", "5"), ("eval.every", "2"), ("checkpoint.every", "2"))
    config = tiny.config_in(tmp_path, *own, ("checkpoint.keep", "5"), ("run.dir", str(tmp_path / "a run")))
    recipe = replace(tiny.RECIPE, inference=Inference(lambda *_: 0, chat=lambda *_: 0, example=("--prompt", "Who are you?")))
    assert run.train(world, config, recipe) == "finished"
    out = capsys.readouterr().out
    before, after = out.split("finished at step 5 after ")
    folder = tmp_path / "a run"
    assert f"  model     {tmp_path / 'base'}, full fine-tuning\n" in before
    assert f"  data      {tmp_path / 'train.jsonl'}: 20 rows, " in before and "val.jsonl: 5 rows, every 2 steps\n" in before
    assert "  steps     5, of about " in before and "learning rate 0.01, " in before
    assert f"  saved in  {folder / 'checkpoints'}: every 2 steps and after the last, 0.2 MB each; the newest 5 are kept" in before
    assert f"  stop      Ctrl-C, or `touch '{folder}/STOP'`: " in before
    assert "  resume    run the same command again\n" in before
    assert "  memory " not in before, "a CPU is no card"
    assert before.index("  resume ") < before.index("step 1/5")
    assert f"  checkpoints  {folder / 'checkpoints'}: steps 2, 4, 5\n" in after
    assert f"  loss curve   {folder / 'loss.png'}; all values: {folder / 'log.jsonl'}\n" in after
    assert "  best step    5, validation loss " in after
    *_, heading, export, chat, generate = after.splitlines()
    assert (heading, export) == ("next:", f"  overtone export '{folder}' --to 'exports/a run'")
    assert chat == "  overtone chat --model 'exports/a run'"
    assert shlex.split(generate) == ["overtone", "generate", "--model", "exports/a run", "--prompt", "Who are you?"]


def test_a_stopped_run_prints_how_to_resume(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "9"))
    config.run.dir.mkdir()
    (config.run.dir / "STOP").touch()
    typed = ["python", "-m", "finetune", "train", "--recipe", "mine", "--model.lora", "{rank: 16}"]
    monkeypatch.setattr("sys.orig_argv", typed)
    assert run.train(world, config, tiny.RECIPE).startswith("stopped by the file ")
    before, command, export = capsys.readouterr().out.splitlines()[-3:]
    assert before.endswith(" at step 1 of 9; it resumes from step 1 with this command:") and before.startswith("stopped by the file ")
    assert command == f"  {shlex.join(typed)}"
    assert export.startswith(f"to use the model of step 1 as it is: overtone export {config.run.dir} --to exports/run")


def test_a_run_that_saved_nothing_starts_again(tmp_path: Path) -> None:
    chosen = tiny.config_in(tmp_path)
    (line,) = start_and_end_messages.describe_stop(chosen.run.dir, chosen.recipe, "stopped by SIGINT on rank 0; not saved: …", 3, 9)
    assert line.endswith("at step 3 of 9; nothing was saved, so it starts from the beginning with the same command")


def test_the_best_step_is_exported_if_it_is_not_the_last(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The validation losses are given, so that the second of four evaluations, of which every other is saved, is the best."""
    losses = iter([5.0, 3.0, 2.5, 4.0])
    monkeypatch.setattr("overtone.finetune.training.loop.evaluate", lambda *_: {"loss": next(losses)})
    own = (("data.val", str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3)))), ("train.steps", "8"), ("eval.every", "2"))
    config = tiny.config_in(tmp_path, *own, ("checkpoint.every", "4"), ("options.dropout", "0"))
    recipe = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, serve=lambda *_: 0, evaluate=lambda *_: 0))
    run.train(world, config, recipe)
    out = capsys.readouterr().out
    unsaved = "step 6 had 2.5000, but checkpoints were saved every 4 steps only (checkpoint.every)"
    assert f"  best step    4, validation loss 3.0000 (step 8: 4.0000); {unsaved}\n" in out
    export, serve, evaluate = out.splitlines()[-3:]
    assert f"export {config.run.dir} --step 4 --to exports/run" in export and " serve --model exports/run" in serve
    assert f" eval-voice --model exports/run --data {tmp_path / 'val.jsonl'}" in evaluate


def test_a_training_that_made_the_model_worse_is_reported() -> None:
    text = start_and_end_messages.describe_best(8, {4: 3.5, 8: 3.0}, (2.0, 0), 4)
    assert text == "8, validation loss 3.0000; the model before training had 2.0000, so training did not improve it on this data"
    assert start_and_end_messages.describe_best(8, {4: 3.5, 8: 3.0}, (3.0, 8), 4) == "8, validation loss 3.0000"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ((("model.revision", "v2"),), " at v2, full fine-tuning"),
        ((("model.lora", "{rank: 4, alpha: 8}"),), ", LoRA of rank 4, alpha 8"),
        ((("model.lora", "{dora: true}"), ("model.quantization", "nf4")), ", 4-bit base, DoRA of rank 16, alpha 32"),
    ],
)
def test_what_is_trained_is_described(overrides: tuple[tuple[str, str], ...], text: str, tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, *overrides)
    assert start_and_end_messages.describe_model(config.model) == f"{config.model.source}{text}"


@pytest.mark.parametrize(("size", "text"), [(2.5e5, "0.2 MB"), (1.4e8, "0.1 GB"), (1.09e10, "10.9 GB")])
def test_sizes_have_a_readable_unit(size: float, text: str) -> None:
    assert start_and_end_messages.format_size(size) == text
