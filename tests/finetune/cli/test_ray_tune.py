"""`overtone ray-tune`: mistakes before Ray and torch are imported, and the end of a study. Studies on a cluster are in
tests/launch/test_ray_tune.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.cli import ray_tune
from overtone.finetune.cli.ray_tune import format_export, report_end, split_arguments
from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.ray_cluster.verb_arguments import ClusterOptions
from overtone.finetune.tuning.study_plan import StudyOptions, StudyPlan, make_plan
from overtone.finetune.tuning.study_record import TrialRecord
from tests.finetune import tiny

ROOT = Path(__file__).parents[3]


def test_the_verb_s_flags_are_separated_from_training_arguments() -> None:
    study, where, rest = split_arguments(
        parse_arguments(
            [
                *("--space", "s.yaml", "--num-samples=4", "--metric", "val/loss max", "--tune-seed", "7", "--early-stopping", "false"),
                *("--grace-steps", "50", "--reduction", "2.5", "--max-concurrent", "3", "--storage", "/shared", "--use-gpu", "true"),
                *("--ray-address", "auto", "--max-failures", "0", "--train.lr", "1e-5", "--recipe", "csm"),
            ]
        )
    )
    assert study == StudyOptions(Path("s.yaml"), 4, "val/loss max", 7, False, 50, 2.5, Path("/shared"), 3)
    assert where == ClusterOptions(Path("/shared"), True, "auto", 0)
    assert (rest.recipe, rest.overrides) == ("csm", [("train.lr", "1e-5")])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], r"which keys\? give --space FILE"),
        (["--space", "s", "--num-samples", "0"], "--num-samples 0: expected a number from 1"),
        (["--space", "s", "--reduction", "1"], "--reduction 1: expected a number above 1"),
        (["--space", "s", "--reduction", "x"], "--reduction x: expected a number above 1"),
        (["--space", "s", "--early-stopping", "maybe"], "--early-stopping maybe: expected true, false"),
        (["--space", "s", "--storage", "s3://b"], "--storage s3://b: the run's folder"),
    ],
)
def test_an_invalid_flag_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_arguments(parse_arguments(argv))


def test_a_mistake_in_the_space_comes_before_ray_and_torch(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("train:\n  lr_: {uniform: [1e-5, 1e-4]}\n")
    script = (
        "import sys; from overtone.finetune.cli import ray_tune; code = ray_tune.main(sys.argv[1:]);"
        "assert code == 2 and not {'ray', 'torch', 'matplotlib'} & set(sys.modules), code"
    )
    command = [sys.executable, "-c", script, "--recipe", "voice_clone", "--space", str(tmp_path / "space.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "space.yaml:2: unknown key train.lr_; did you mean train.lr?" in done.stderr, done.stderr


def test_the_help_names_flags_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert ray_tune.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "{loguniform: [low, high]}" in printed and "--grace-steps" in printed and "--train.lr" in printed


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    config = tiny.config_in(tmp_path)
    (tmp_path / "space.yaml").write_text("train.lr: {grid: [0.001, 0.01]}")
    words = ["--recipe", str(tiny.FOLDER), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    words += ["--data.val", str(config.data.train), "--run.dir", "study"]
    return make_plan(StudyOptions(tmp_path / "space.yaml", None, None, 0, True, None, 3.0, tmp_path), parse_arguments(words))


def give_result(plan: StudyPlan, number: int, status: str, *values: float) -> None:
    """A log with these validation losses at steps 5, 10, …, and the record of the driver."""
    run = plan.folder / f"trial-{number:04}"
    run.mkdir(parents=True)
    events = [{"event": "evaluation", "step": 5 * at, "val/loss": value} for at, value in enumerate(values, 1)]
    (run / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    best = min(values, default=None)
    found = {"status": status, "value": best, "value_step": None if best is None else 5 * (values.index(best) + 1)}
    plan.trials[number] = TrialRecord(**{**plan.trials[number].model_dump(), **found})


def test_the_end_names_the_best_trial_and_its_export(plan: StudyPlan, capsys: pytest.CaptureFixture[str]) -> None:
    give_result(plan, 0, "finished", 3.0, 2.0, 2.5)
    give_result(plan, 1, "stopped early", 4.0)
    assert report_end(plan, None) == 0
    printed = capsys.readouterr().out
    assert "best: trial-0000, val/loss 2 (train.lr 0.001)" in printed and "1 finished, 1 stopped early; report: " in printed
    assert "resumes" not in printed and (plan.folder / "report.html").is_file() and (plan.folder / "report.png").is_file()
    export = f"overtone export {plan.folder}/trial-0000 --to exports/trial-0000"
    assert f"next: {export}\n" in printed, "the newest checkpoint, since that of the best evaluation was not kept"
    (plan.folder / "trial-0000" / "checkpoints" / "step-00000010").mkdir(parents=True)
    assert format_export(plan, plan.trials[0]) == export.replace("--to", "--step 10 --to")


def test_what_is_not_done_is_named_with_the_command_that_resumes(plan: StudyPlan, capsys: pytest.CaptureFixture[str]) -> None:
    give_result(plan, 0, "failed", 3.0)
    assert report_end(plan, "stopped by SIGTERM") == 0
    assert "1 failed, 1 waiting" in (printed := capsys.readouterr().out) and "the same command resumes what is not done" in printed


def test_a_study_without_a_value_is_a_failure(plan: StudyPlan, capsys: pytest.CaptureFixture[str]) -> None:
    give_result(plan, 0, "diverged", 3.0)
    assert report_end(plan, None) == 1
    assert "warning: no best trial: every trial with a value of val/loss has diverged" in capsys.readouterr().err
