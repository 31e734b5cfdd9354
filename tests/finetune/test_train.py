"""`overtone train`: mistakes are reported early, and a recipe from any folder trains without other edits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.cli import export, generate
from overtone.finetune.config import describe_overlay
from overtone.finetune.config_sources import Arguments
from overtone.finetune.distributed.process_group import leave
from overtone.finetune.monitoring.run_records import read_log
from tests.byte_model.recipe import write_base
from tests.finetune import fork_server, tiny

ROOT = Path(__file__).parents[2]
RECIPE = ["--recipe", str(tiny.FOLDER)]


def refuse(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert train.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ")
    return err


def inputs(folder: Path, *more: str) -> list[str]:
    config = tiny.config_in(folder)
    own = ["--run.dir", str(folder / "run"), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    return [*own, "--train.steps", "2", *more]


# --- before anything is touched


def test_each_config_file_is_read_once() -> None:
    """A pipe of the shell, `--config <(…)`, is empty when it is read again."""
    reader, writer = os.pipe()
    os.write(writer, b"recipe: llm_sft\ntrain: {lr: 7e-6}\nlora: {train: {lr: 8e-5}}\n")
    os.close(writer)
    try:
        given = train.read_arguments(Arguments(files=[Path(f"/dev/fd/{reader}")], overrides=[("model.lora", "true")]))
    finally:
        os.close(reader)
    assert given.recipe == "llm_sft" and train.resolve_config(given).train.lr == 8e-5
    assert [line.partition(" (")[0] for line in describe_overlay(given.sources)] == ["train.lr: 8e-05"]


def test_a_missing_recipe_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "which recipe? give --recipe NAME, for example --recipe voice_clone" in refuse([], capsys)


def test_an_unknown_recipe_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    message = refuse(["--recipe", "voice_clown"], capsys)
    assert "voice_clown" in message and "known recipes: " in message and "voice_clone" in message


def test_missing_data_is_an_error_that_says_how_to_make_some(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe, ways in (
        (
            "voice_clone",
            ("overtone voice my_recordings/ --out data/me", "overtone codes", "python -m overtone.recipes.voice_clone.demo"),
        ),
        ("llm_sft", ("overtone text chats.jsonl", "python -m overtone.recipes.llm_sft.demo")),
        (str(tiny.FOLDER), ("It has one JSON object in each line; the recipe's `read` defines the keys.",)),
    ):
        message = refuse(["--recipe", recipe], capsys)
        assert message.count("no training data: give --data.train") == 1 and all(words in message for words in ways)
        assert ("overtone " in message) == ("overtone " in ways[0]), "each recipe names its own ways"


@pytest.mark.parametrize("key", ["data.train", "data.val"])
def test_a_missing_data_file_is_an_error(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tiny.write_rows(tmp_path / "train.jsonl", tiny.texts(3))
    message = refuse([*RECIPE, "--data.train", str(real), f"--{key}", "no/train.jsonl"], capsys)
    assert f"{key}: no/train.jsonl does not exist (looked from {Path.cwd()}). " in message and "one JSON object" in message


@pytest.mark.parametrize(("recipe", "verb"), [("llm_sft", "text"), ("voice_clone", "voice"), ("codec_lm", "voice"), ("csm", "voice")])
def test_raw_data_is_recognized_and_the_command_is_named(
    recipe: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw").mkdir()
    message = refuse(["--recipe", recipe, "--data.train", str(tmp_path / "raw")], capsys)
    assert f"data.train: {tmp_path / 'raw'} is a folder" in message and f"overtone {verb} {tmp_path / 'raw'} --out" in message
    (tmp_path / "chats.jsonl").write_text('{"conversations": []}\n')
    if recipe == "llm_sft":
        assert "of another form (keys: conversations" in refuse(["--recipe", recipe, "--data.train", str(tmp_path / "chats.jsonl")], capsys)


def test_raw_data_is_recognized_without_torch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,completion\n")
    words = ["--recipe", "llm_sft", "--data.train", str(tmp_path / "a.csv")]
    code = f"import sys; from overtone.finetune.train import main; print(main({words}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"] and "is a table" in done.stderr, done


def test_a_mixture_is_checked_before_anything_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tiny.write_rows(tmp_path / "train.jsonl", tiny.texts(3))
    mix = ["--data.mix", f"[{{path: {real}, weight: 0.9}}, {{path: no/replay.jsonl, weight: 0.1}}]"]
    assert "data.mix: no/replay.jsonl does not exist (looked from " in refuse([*RECIPE, *mix], capsys)
    twice = ["--data.mix", f"[{{path: {real}, weight: 1}}, {{path: {real}, weight: 2}}]"]
    assert f"data.mix: {real} is listed twice" in refuse([*RECIPE, *twice], capsys)
    both = refuse([*RECIPE, *mix, "--data.train", str(real)], capsys)
    assert f"data.train: {real} and data.mix are both set; list that file in data.mix" in both
    assert "data.mix.0.wieght; did you mean data.mix.0.weight?" in refuse([*RECIPE, "--data.mix", f"[{{path: {real}, wieght: 1}}]"], capsys)
    assert "data.mix.0.weight = 0: " in refuse([*RECIPE, "--data.mix", f"[{{path: {real}, weight: 0}}]"], capsys)


def test_patience_needs_validation_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tiny.write_rows(tmp_path / "train.jsonl", tiny.texts(3))
    for key, value in (("train.patience", "3"), ("checkpoint.best_by", "accuracy max")):
        message = refuse([*RECIPE, "--data.train", str(real), f"--{key}", value], capsys)
        assert f"{key} is set, but there are no evaluations without validation data; give --data.val FILE" in message
    assert "expected the name of a metric, and min or max" in refuse([*RECIPE, "--checkpoint.best_by", "accuracy best"], capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--train.lrr", "1"], "--train.lrr: unknown key train.lrr; did you mean train.lr?"),
        (["--lr", "1"], "--lr: unknown key lr; did you mean train.lr?"),
        (["--train.lr"], "--train.lr needs a value"),
        (["run"], "unexpected argument 'run'"),
        (["--config", "none.yaml"], "--config none.yaml: no such file"),
        (["--options.dropout", "2"], "options.dropout = 2: Input should be less than 1"),
        (["--train.lr", "-1", "--train.steps", "0"], "train.steps = 0"),
    ],
)
def test_a_wrong_flag_is_an_error(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refuse([*RECIPE, *argv], capsys)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_without_its_package_is_an_error(
    tracker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    real = tiny.write_rows(tmp_path / "train.jsonl", tiny.texts(3))
    message = refuse([*RECIPE, "--data.train", str(real), "--log.trackers", f"[tensorboard, {tracker}]"], capsys)
    assert f"log.trackers: {tracker} is not installed; `pip install {tracker}`, or take it out of the list" in message


def test_help_and_errors_come_without_torch() -> None:
    voice = ["--recipe", "voice_clone"]
    script = f"""
import sys
from overtone.finetune import train
for argv in (["--help"], {voice} + ["--help"], {voice} + ["--train.lrr", "1"], {voice}):
    code = train.main(argv)
    print("imported" if "torch" in sys.modules else "not imported", code)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if "imported" in line]
    assert lines == ["not imported 0", "not imported 0", "not imported 2", "not imported 2"], done.stderr


def test_help_shows_the_defaults_of_the_recipe_by_section_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--recipe", "voice_clone", "--help"]) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    assert "--train.epochs Passes over the data. (int, default of this recipe 10) --train.steps " in words
    assert all(line.startswith(" " * 29) for line in printed.splitlines() if line.startswith("   ")), "texts keep their column"
    assert "\n\ntrain: Optimization.\n  --train.epochs " in printed and "\n\noptions: " in printed
    assert "overtone train --recipe voice_clone --data.train" in printed


def test_help_lists_the_options_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    assert train.main(["--recipe", str(folder), "--help"]) == 0
    own = capsys.readouterr().out
    assert train.main(["--help"]) == 0
    general = capsys.readouterr().out
    assert "--options.dropout" in own and "Dropout in each block." in own and "--train.lr " in own
    assert (
        "--options." not in general
        and "--train.lr " in general
        and "accelerate launch --config_file configs/fsdp2.yaml finetune/train.py" in general
    )


# --- a whole run


def tree(folder: Path) -> dict[str, str]:
    packages = [folder / name for name in ("finetune", "recipes", "data_prep")]
    found = [path for package in packages for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_a_recipe_outside_the_tree_trains_and_exports_without_other_edits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine" / "my.own-recipe", ignore=shutil.ignore_patterns("__pycache__"))
    before = tree(ROOT)
    argv = ["--recipe", str(folder), *inputs(tmp_path)]
    done = fork_server.run_command(ROOT / "finetune" / "train.py", *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "my.own-recipe: 13,982 of 13,982 parameters" in done.stdout
    stages = [line for line in done.stdout.splitlines() if line.endswith(" …")]
    assert [stage.split(" ")[0] for stage in stages] == ["loading", "preparing", "reading", "loading"], "what takes time is announced"
    assert done.stdout.startswith(f"loading torch and the recipe {folder} …\n")
    run = tmp_path / "run"
    assert "finished at step 2 after " in done.stdout
    export_command, generate_command = (
        f"overtone {words} --recipe {folder}\n" for words in (f"export {run} --to exports/run", "generate --model exports/run")
    )
    assert done.stdout.endswith(f"next:\n  {export_command}  {generate_command}")
    monkeypatch.chdir(tmp_path)
    assert export.main([str(run), "--to", "out"]) == 2 and "give its folder yourself with --recipe PATH" in capsys.readouterr().err
    named = ["--recipe", str(folder)]
    assert export.main([str(run), "--to", "out", *named]) == generate.main(["--model", "out", *named]) == 0
    assert generate.main(["--model", str(run), *named]) == 0, "and of a run, whose export is made by the same recipe"
    ready, hint, *said = capsys.readouterr().out.splitlines()
    assert ready == "out is ready" and hint.startswith("next: overtone generate --model out --recipe ")
    assert said[0] == "out says nothing" and said[1].startswith("step-00000002-")
    assert len(before) > 40 and tree(ROOT) == before


def test_a_run_writes_log_curve_and_exit_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*RECIPE, *inputs(tmp_path, "--log.trackers", "[]")]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert train.main(argv) == 0
    run = tmp_path / "run"
    assert json.loads((run / "exit.json").read_text()).items() >= {"reason": "finished", "step": 2, "last_commit": "step-00000002"}.items()
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    events = [(event["event"], event["step"]) for event in read_log(run / "log.jsonl")]
    assert events == [("started", 0), ("step", 1), ("step", 2), ("committed", 2), ("stopped", 2)]
    out, err = capsys.readouterr()
    assert "finished at step 2" in out and err.startswith("warning: 2 of the 3 visible GPUs of ")
    assert train.main([*argv[:-4], "--train.steps", "3", "--log.trackers", "[]"]) == 0
    events = [(event["event"], event["step"]) for event in read_log(run / "log.jsonl")]
    assert events[-4:] == [("resumed", 2), ("step", 3), ("committed", 3), ("stopped", 3)]


LORA_SECTION = "train: {lr: 1e-3, schedule: constant, warmup: 0.0}\nlora:\n  train:\n    lr: 2e-2\n"


def test_lora_trains_at_the_rate_of_its_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model.lora true` as a user types it; then full fine-tuning, and LoRA with a rate of the user's own, in other folders."""
    monkeypatch.setattr("overtone.finetune.training.run.draw_curve", lambda *_: None)
    extra = tmp_path / "extra.yaml"
    extra.write_text(LORA_SECTION, encoding="utf-8")
    rates = {}
    for name, more in (("lora", ["--model.lora", "true"]), ("full", []), ("own", ["--model.lora", "true", "--train.lr", "3e-2"])):
        argv = [*RECIPE, *inputs(tmp_path, "--log.trackers", "[]", "--config", str(extra)), "--run.dir", str(tmp_path / name), *more]
        assert train.main(argv) == 0
        said = capsys.readouterr().out
        assert (f"train.lr: 0.02 (because model.lora is set: {extra}:4)\n" in said) == (name == "lora")
        assert ("LoRA of rank 16, alpha 32" in said) == (name != "full")
        rates[name] = {event["lr"] for event in read_log(tmp_path / name / "log.jsonl") if event["event"] == "step"}
        assert f"learning rate {max(rates[name]):g}" in said
    assert rates == {"lora": {0.02}, "full": {0.001}, "own": {0.03}}
    beside = tmp_path / "lora" / "checkpoints" / "step-00000002" / "config.yaml"
    again = ["--config", str(beside), "--train.steps", "3", "--run.dir", str(tmp_path / "lora")]
    assert train.main([*RECIPE, *again]) == 0
    said = capsys.readouterr().out
    assert "  train.steps: 2 → 3" in said and "train.lr" not in said, "a saved config.yaml is complete: no section applies after it"


def test_the_config_beside_a_checkpoint_starts_the_same_run(tmp_path: Path) -> None:
    argv = inputs(tmp_path, "--log.trackers", "[]")
    assert train.main([*RECIPE, *argv]) == 0
    kept = checkpoint.find(tmp_path / "run") / "config.yaml"
    assert train.main([*RECIPE, "--config", str(kept), "--run.dir", str(tmp_path / "again")]) == 0
    assert series(tmp_path / "again") == series(tmp_path / "run") and len(series(tmp_path / "run")) == 2


def series(run: Path) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in read_log(run / "log.jsonl") if event["event"] == "step"]


def test_a_launch_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
    argv = [*RECIPE, *inputs(tmp_path, "--log.trackers", "[]")]
    try:
        assert train.main(argv) == 2 and "gradient_accumulation_steps: 8" in capsys.readouterr().err
    finally:
        leave()


def test_a_base_that_does_not_fit_stops_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = inputs(tmp_path, "--log.trackers", "[]")
    shutil.rmtree(tmp_path / "base")
    write_base(tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").unlink()
    assert train.main([*RECIPE, *argv]) == 2
    leave()
    assert "contains no *.safetensors weights" in capsys.readouterr().err


def test_the_process_flushes_its_output_when_it_ends() -> None:
    """`os._exit` flushes nothing, and what is piped is buffered."""
    program = (
        "import sys; from overtone.finetune.train import end_process; print('said', end=''); print('complained', end='', file=sys.stderr); "
        "end_process(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said", "complained")


def test_training_does_not_import_the_planner(tmp_path: Path) -> None:
    program = """
import sys
from overtone.finetune import train
print(train.main(sys.argv[1:]), [name for name in sys.modules if name.startswith("overtone.finetune.planning")])
"""
    done = fork_server.run_command("-c", program, *RECIPE, *inputs(tmp_path))
    assert "finished at step 2 after " in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "0 []"
