"""`overtone plan` shows the settings with their origins, and the samples that a run trains on first, without reading a weight."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from overtone.finetune.cli import plan
from overtone.finetune.config import resolve
from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.data.batching import micro_batches
from overtone.finetune.data.cached_samples import index_path
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import Cluster, Gpu
from overtone.finetune.monitoring import run_records
from overtone.finetune.planning import meta_device_estimate
from overtone.finetune.storage import files
from tests.finetune import fork_server, tiny
from tests.recipes.llm_sft.tiny_runs import write_base

ROOT = Path(__file__).parents[3]
SHOWING = replace(tiny.RECIPE, show=lambda sample, processor: f"«{bytes(sample['ids'].tolist()).decode()}» for {processor}")


def argv_in(folder: Path, *more: str) -> list[str]:
    config = tiny.config_in(folder)
    own = ["--run.dir", str(config.run.dir), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    return ["--recipe", str(tiny.FOLDER), *own, *more]


def test_the_settings_show_each_origin_and_are_a_valid_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = tmp_path / "extra.yaml"
    extra.write_text("train:\n  lr: 2e-3\nmodel: {lora: {rank: 4}}\n")
    argv = argv_in(tmp_path, "--config", str(extra), "--train.beta1", "0.8", "--log.trackers", "[]")
    assert plan.main(argv) == 0
    out = capsys.readouterr().out
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert lines["lr"].endswith(f"# {extra}:2") and "lr: 0.002 " in lines["lr"]
    assert lines["rank"].endswith(f"# {extra}:3") and lines["alpha"].endswith("# default")
    assert lines["beta1"].endswith("# --train.beta1") and lines["beta2"].endswith("# default")
    assert lines["micro_tokens"].endswith("byte_model/config.yaml:2")
    arguments = parse_arguments(argv)
    expected = resolve(arguments.recipe or "", tiny.RECIPE.Options, [tiny.FOLDER / "config.yaml", *arguments.files], arguments.overrides)
    assert yaml.safe_load(out)["train"]["lr"] == 0.002
    (tmp_path / "again.yaml").write_text(out)
    assert resolve(str(tiny.FOLDER), tiny.RECIPE.Options, [tmp_path / "again.yaml"], []).model_dump() == expected.model_dump()


def test_a_plan_writes_its_launch_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    argv = argv_in(tmp_path, "--gpus", "2", "--gpu", "a100-40gb", "--write", str(mine))
    assert plan.main(argv) == 0
    out = capsys.readouterr().out
    assert "ddp on 2 × a100-40gb" in out and "  not zero1: " in out and f"# wrote {mine}" in out
    values = yaml.safe_load(mine.read_text(encoding="utf-8"))
    assert (values["num_processes"], values["distributed_type"]) == (2, "MULTI_GPU")
    assert plan.main(argv) == 2 and "already exists" in capsys.readouterr().err
    assert plan.main(argv_in(tmp_path, "--gpus", "many")) == 2 and "expected a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "gpus", "nodes", "note"),
    [
        (["--launch", "cpu"], 2, 1, ""),
        (["--launch", "fsdp2", "--num_processes", "3"], 3, 1, ""),
        (["--launch", "two_nodes"], 8, 2, ""),
        (["--launch", "two_nodes", "--nodes", "4"], 4, 4, ""),
        (["--launch", "cpu", "--gpus", "5"], 5, 1, ""),
        (["--launch", "ddp"], 1, 1, "--launch ddp starts one process for each GPU; this plan is for 1; give --gpus N for more"),
    ],
)
def test_the_plan_is_for_the_processes_of_the_launch(more: list[str], gpus: int, nodes: int, note: str) -> None:
    found = plan.take_plan_options(parse_arguments(more))
    assert (found.cluster.gpus, found.cluster.nodes, found.note) == (gpus, nodes, note)


def test_processes_that_machines_cannot_share_have_no_plan() -> None:
    with pytest.raises(UserError, match="16 processes on 3 machines"):
        plan.take_plan_options(parse_arguments(["--launch", "two_nodes", "--nodes", "3"]))


def test_the_number_of_gpus_that_nobody_knows_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(argv_in(tmp_path, "--launch", "ddp")) == 0
    out = capsys.readouterr().out
    assert "# --launch ddp starts one process for each GPU; this plan is for 1" in out and yaml.safe_load(out)["train"]


def test_the_exit_code_says_whether_the_run_can_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that `overtone plan … && overtone train …` does not start a run that has problems."""
    argv = argv_in(tmp_path)
    assert plan.main(argv) == 0 and "# no problems found" in capsys.readouterr().out
    assert plan.main([*argv, "--train.precision", "fp32", "--data.val", str(tmp_path / "none.jsonl")]) == 1
    assert "# problems to fix before training: 1" in capsys.readouterr().out
    assert plan.main([*argv, "--train.no_such_key", "1"]) == 2


def test_a_plan_before_there_are_data_has_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for a row of the README's table of GPUs."""
    base, run = write_base(tmp_path / "base"), tmp_path / "run"
    argv = ["--recipe", "llm_sft", "--model.source", str(base), "--run.dir", str(run), "--data.val", str(tmp_path / "val.jsonl")]
    assert plan.main(argv[:-2]) == 0
    out = capsys.readouterr().out
    assert "no problems found" in out and "no data yet: with --data.train FILE" in out and "a step: 65,536 tokens" in out
    assert plan.main(argv) == 1 and "data.val" in capsys.readouterr().out, "a file that is named must exist"


def test_a_model_that_cannot_be_traced_has_a_plan_without_an_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the size of a result\ndepends on values")

    monkeypatch.setattr(meta_device_estimate, "trace_step", fail)
    assert plan.main(argv_in(tmp_path)) == 0
    out = capsys.readouterr().out
    reason = "one step cannot be traced without weights (RuntimeError: the size of a result depends on values)"
    assert f"# no estimate of memory and time: {reason}\n# no problems found" in out
    assert plan.main(argv_in(tmp_path, "--data.val", str(tmp_path / "none.jsonl"))) == 1
    assert "# problems to fix before training: 1" in capsys.readouterr().out
    assert plan.main(argv_in(tmp_path, "--write", str(tmp_path / "launch.yaml"))) == 2
    assert "there is no estimate" in capsys.readouterr().err and not (tmp_path / "launch.yaml").exists()


def test_a_run_that_does_not_fit_has_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "make_cluster", lambda *_: Cluster("toy", Gpu(0.5, 1, 1, 1), 1))
    assert plan.main(argv_in(tmp_path)) == 1 and "out of memory: " in capsys.readouterr().out


def test_the_printed_command_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a LoRA section that decides the learning rate, and values that a shell would split."""
    extra = tmp_path / "my settings.yaml"
    extra.write_text("train: {lr: 1e-3}\nlora: {train: {lr: 2e-2}}\n")
    argv = argv_in(tmp_path, "--config", str(extra), "--model.lora", "{rank: 4}", "--model.revision", "it's")
    assert plan.main([*argv, "--gpus", "2"]) == plan.main(argv) == 0
    out = capsys.readouterr().out
    rates = [line for line in out.splitlines() if line.strip().startswith("lr: ")]
    assert len(rates) == 2 and all("lr: 0.02 " in line and line.endswith(f"# {extra}:2") for line in rates)
    several, one = (shlex.split(line[2:]) for line in out.splitlines() if "--recipe" in line and line.startswith("#   "))
    assert one[:2] == ["overtone", "train"] and several[:3] == ["accelerate", "launch", "--config_file"]
    for words in (several, one):
        arguments = parse_arguments(words[words.index("--recipe") :])
        assert arguments.recipe == str(tiny.FOLDER) and arguments.files == [extra]
        assert dict(arguments.overrides).items() >= {"model.lora": "{rank: 4}", "model.revision": "it's"}.items()


def test_the_settings_of_a_launched_training_are_those_of_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(argv_in(tmp_path, "--settings")) == 0
    plain = capsys.readouterr().out
    assert plan.main(argv_in(tmp_path, "--settings", "--launch", "fsdp2", "--num_processes", "2")) == 0
    assert capsys.readouterr().out == plain
    assert plan.main(argv_in(tmp_path, "--settings", "--launch", "none.yaml")) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_a_long_value_is_printed_as_valid_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "a: 'text' # that " * 20 + "\nhas two lines"
    assert plan.main(argv_in(tmp_path, "--settings", "--model.revision", json.dumps(long))) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["revision"] == long


def test_the_first_batch_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("overtone.finetune.train.load_recipe", lambda _: SHOWING)
    weights = tmp_path / "base" / "model.safetensors"
    argv = argv_in(tmp_path, "--show-batch", "--data.too_long", "drop", "--data.sequence_length", "30")
    files.write_bytes(weights, b"no weights at all")
    assert plan.main(argv) == 0
    out = capsys.readouterr().out
    config = tiny.config_in(tmp_path, ("data.too_long", "drop"), ("data.sequence_length", "30"))
    kept = [(line, text) for line, text in enumerate(tiny.texts(), start=1) if len(text) <= 30]
    assert 0 < len(kept) < 20 and "dropped" in out.split("the first micro-batch")[0]
    tiny.write_base(tmp_path / "base")
    world = join((), tmp_path)
    training, _ = tiny.built(world, config)
    leave()
    first = micro_batches(training.order, training.rows.lengths, 0, 0)[0]
    assert f"the first micro-batch: {len(first.ids)} of {len(kept)} rows, {first.tokens} positions" in out
    expected = [f"── {config.data.train}:{kept[row][0]}\n«{kept[row][1]}» for None" for row in first.ids]
    assert out.split("\n\n")[-len(expected) :] == [*expected[:-1], expected[-1] + "\n"]


def test_the_index_serves_the_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overtone.finetune.train.load_recipe", lambda _: SHOWING)
    assert plan.main(argv_in(tmp_path, "--show-batch")) == 0
    config = tiny.config_in(tmp_path)
    assert config.data.train is not None
    made = index_path(config.data.train, config.run.dir / "cache").stat().st_mtime_ns
    assert not (config.run.dir / run_records.EXIT_RECORD).exists() and not (config.run.dir / "checkpoints").exists()
    tiny.built(join((), tmp_path), config)
    leave()
    assert index_path(config.data.train, config.run.dir / "cache").stat().st_mtime_ns == made


def test_bad_rows_are_reported_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("overtone.finetune.train.load_recipe", lambda _: SHOWING)
    tiny.write_rows(tmp_path / "train.jsonl", ["fine", "x"])
    assert plan.main(argv_in(tmp_path, "--show-batch")) == 2
    printed = capsys.readouterr()
    assert "train.jsonl:2: text must hold" in printed.err and "train:" not in printed.out, "a refusal comes without the config before it"


def test_a_problem_that_two_checks_find_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = str(tiny.config_in(tmp_path).data.train)
    mix = ["--data.train", "null", "--data.mix", f"[{{path: {train}, weight: 1}}, {{path: {train}, weight: 2}}]"]
    plan.main(argv_in(tmp_path, *mix))
    assert capsys.readouterr().out.count(f"data.mix: {train} is listed twice") == 1


def test_a_recipe_without_show_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(argv_in(tmp_path, "--show-batch")) == 2
    assert "does not define `show`" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "before anything is read"


def test_help_and_settings_come_without_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from overtone.finetune.cli import plan; code = plan.main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    recipe = tmp_path / "light" / "recipe.py"
    recipe.parent.mkdir()
    recipe.write_text(
        "from overtone.finetune.config import Section\nfrom overtone.finetune.recipe import Inference, "
        "Recipe\n\n\nclass Options(Section):\n    pass\n\n\n"
        "RECIPE = Recipe(Options, *[None] * 6, ('plain',), Inference(print))\n"
    )
    (recipe.parent / "config.yaml").write_text("train: {steps: 3}\n")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    for more in (["--help"], ["--settings", "--data.train", str(tmp_path / "rows.jsonl")]):
        argv = [sys.executable, "-c", script, "--recipe", str(recipe.parent), *more]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert ("--show-batch" in done.stdout) == (more == ["--help"]) and "steps" in done.stdout


def test_the_settings_of_a_built_in_recipe_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--recipe", "llm_sft", "--settings", "--train.lr", "3e-3"]) == 0
    saved = tmp_path / "mine.yaml"
    saved.write_text(capsys.readouterr().out)
    assert plan.main(["--config", str(saved), "--settings"]) == 0
    (rate,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  lr: ")]
    assert rate.split() == ["lr:", "0.003", "#", rate.split()[-1]] and rate.split()[-1].startswith(f"{saved}:")
    saved.write_text(f"recipe: {tiny.FOLDER}\n")
    assert plan.main(["--config", str(saved), "--settings"]) == 2
    assert "which recipe? give --recipe NAME" in capsys.readouterr().err, "a file must not choose which code runs"


def test_settings_need_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--recipe", "voice_clone", "--settings", "--data.train", str(tmp_path / "none.jsonl")]) == 0
    assert plan.main(["--recipe", "voice_clone", "--settings"]) == 0
    assert "\ntrain:" in capsys.readouterr().out
    assert plan.main(["--recipe", "voice_clone", "--show-batch"]) == 2
    assert "no training data" in capsys.readouterr().err


def test_the_verb_runs_as_a_command(tmp_path: Path) -> None:
    done = fork_server.run_command("-m", "finetune", "plan", *argv_in(tmp_path, "--settings"))
    assert done.returncode == 0 and done.stdout.startswith(f"recipe: {tiny.FOLDER}"), done.stderr
