"""The plan of a study: every mistake before anything is started, shared data, and the arguments of the trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.tuning import study_record
from overtone.finetune.tuning.study_plan import StudyOptions, StudyPlan, list_preparations, make_orders, make_plan
from tests.finetune import loopback_files, tiny
from tests.finetune.loopback_files import FileServer


def plan_of(tmp_path: Path, space: str, *argv: str, val: bool = True, **options: object) -> StudyPlan:
    config = tiny.config_in(tmp_path)
    (tmp_path / "space.yaml").write_text(space)
    usual = StudyOptions(tmp_path / "space.yaml", None, None, 0, True, None, 3.0, tmp_path)
    given = replace(usual, **options)  # type: ignore[arg-type]
    rows = ["--data.train", str(config.data.train), *(["--data.val", str(config.data.train)] if val else [])]
    words = ["--recipe", str(tiny.FOLDER), "--model.source", str(config.model.source), *rows, "--run.dir", "study", *argv]
    return make_plan(given, parse_arguments(words))


RATES = "train.lr: {loguniform: [1e-6, 1e-3]}"


def test_trials_have_their_values_folders_and_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, RATES, "--run.seed", "7", samples=3)
    assert plan.folder == tmp_path / "study" and plan.metric.text == "val/loss min"
    assert [trial.run_seed for trial in plan.trials] == [7, 7, 7] and len({trial.values["train.lr"] for trial in plan.trials}) == 3
    orders = make_orders(plan)
    rate = plan.trials[1].values["train.lr"]
    assert orders[1]["arguments"][-2:] == ["--checkpoint.best_by=loss min", f"--train.lr={rate}"]
    assert orders[1]["run_dir"] == f"{tmp_path}/study/trial-0001"
    assert "--run.dir" not in orders[1]["arguments"] and plan.definition.arguments == plan.arguments[2:-1]
    chosen = plan_of(tmp_path, RATES, "--checkpoint.best_by", "next min")
    assert not any(word.startswith("--checkpoint.best_by=") for word in chosen.arguments), "the user's own choice stays"


def test_a_secret_reaches_the_workers_and_not_the_record(tmp_path: Path) -> None:
    content = tiny.config_in(tmp_path / "made").data.train.read_bytes()
    with loopback_files.opened(FileServer({"rows.jsonl": content}, etag="strong", query="sig=s3cr3t")) as server:
        plan = plan_of(tmp_path, RATES, "--data.train", f"http://{server.place}/rows.jsonl?sig=s3cr3t", samples=2)
        again = plan_of(tmp_path, RATES, "--data.train", f"http://{server.place}/rows.jsonl?sig=s3cr3t", samples=2)
    plan.save(plan.trials)
    assert f"http://{server.place}/rows.jsonl?sig=s3cr3t" in make_orders(plan)[0]["arguments"]
    saved = (plan.folder / study_record.RECORD).read_text()
    assert "s3cr3t" not in saved and f"http://{server.place}/rows.jsonl?***" in saved and again.definition == plan.definition


def test_the_default_number_of_trials(tmp_path: Path) -> None:
    assert len(plan_of(tmp_path, RATES).trials) == 10
    assert len(plan_of(tmp_path, "train.lr: {grid: [1e-5, 1e-4]}").trials) == 2
    assert len(plan_of(tmp_path, f"{RATES}\nrun.seed: {{grid: [0, 1]}}", samples=4).trials) == 8


def test_trials_with_the_same_data_share_one_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = make_orders(plan_of(tmp_path, RATES, samples=3))
    (prepared,) = {order["prepared"] for order in orders.values()}
    assert prepared.startswith(f"{tmp_path}/study/prepared/data-")
    assert list_preparations(orders, [1, 2]) == [[orders[number] | {"run_dir": prepared} for number in (1, 2)]]
    assert list_preparations(orders, []) == []
    split = make_orders(plan_of(tmp_path, "train.micro_tokens: {choice: [64, 128, 512]}\ntrain.lr: {grid: [1e-5, 1e-4]}", samples=2))
    assert len({order["prepared"] for order in split.values()} - {""}) == len(list_preparations(split, [*split])) >= 1


def test_more_trials_leave_each_cache_in_its_folder(tmp_path: Path) -> None:
    space = "train.micro_tokens: {choice: [64, 128, 256, 512]}\ntrain.lr: {uniform: [1e-5, 1e-4]}"
    few, many = (make_orders(plan_of(tmp_path, space, samples=samples)) for samples in (5, 40))
    assert {order["prepared"] for order in few.values()} & {""} and len({order["prepared"] for order in many.values()}) == 4
    assert all(many[number]["prepared"] == order["prepared"] for number, order in few.items() if order["prepared"])


def test_data_that_no_other_trial_reads_is_not_prepared_beforehand(tmp_path: Path) -> None:
    orders = make_orders(plan_of(tmp_path, "options.dropout: {uniform: [0.0, 0.5]}", samples=3))
    assert [order["prepared"] for order in orders.values()] == ["", "", ""] and list_preparations(orders, [*orders]) == []


@pytest.mark.parametrize(
    ("space", "argv", "message"),
    [
        ("train.lrr: {uniform: [0.1, 0.2]}", [], r"space.yaml:1: unknown key train.lrr; did you mean train.lr\?"),
        (RATES, ["--train.lr", "1e-5"], "train.lr is also set by --train.lr"),
        (RATES, ["--checkpoint.copy_to", "s3://bucket/me"], "checkpoint.copy_to is set, and the trials would share that URL"),
        ("data.train: {choice: [gone.jsonl]}", [], "is also set by --data.train"),
        ("data.val: {choice: [gone.jsonl]}", [], "is also set by --data.val"),
        ("run.seed: {grid: [0, 1, 2]}\ntrain.lr: {uniform: [0.1, 0.2]}", ["--train.speed", "1"], "unknown key train.speed"),
    ],
)
def test_mistakes_are_reported_before_anything_is_started(space: str, argv: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        plan_of(tmp_path, space, *argv)
    assert not (tmp_path / "study").exists()


def test_data_that_is_missing_is_reported_before_the_first_trial(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.val: gone.jsonl does not exist"):
        plan_of(tmp_path, "data.val: {choice: [gone.jsonl]}", val=False)


def test_without_validation_data_the_training_loss_decides(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, RATES, val=False)
    assert plan.metric.text == "loss min" and not any("best_by" in word for word in plan.arguments)
    with pytest.raises(UserError, match="--metric val/loss min: no evaluations without validation data"):
        plan_of(tmp_path, RATES, val=False, metric="val/loss")


def test_too_many_trials_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"20,000 trials; use fewer grid values or a smaller --num-samples"):
        plan_of(tmp_path, RATES, samples=20_000)


def test_a_study_is_resumed_with_more_trials_but_not_with_another_definition(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, RATES, samples=2)
    done = plan.trials[0].model_copy(update={"status": "finished", "value": 1.0})
    plan.save([done, plan.trials[1]])
    again = plan_of(tmp_path, RATES, samples=3)
    assert again.trials[0] == done and again.trials[1] == plan.trials[1] and len(again.trials) == 3
    fewer = plan_of(tmp_path, RATES, samples=1)
    assert len(fewer.trials) == 2 and [*fewer.configs] == [0, 1], "recorded trials stay"
    for changed in ({"seed": 1}, {"metric": "val/loss max"}, {"stops_early": False}, {"reduction": 4.0}):
        with pytest.raises(UserError, match="of a study with another"):
            plan_of(tmp_path, RATES, samples=2, **changed)
    with pytest.raises(UserError, match=r"of a study with another arguments: .*--train.steps"):
        plan_of(tmp_path, RATES, "--train.steps", "9", samples=2)
    assert study_record.read_record(plan.folder).trials[0] == done  # type: ignore[union-attr]


def test_a_record_chooses_neither_keys_nor_values_of_a_training(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, RATES, samples=2)
    for values in ({"train.lr": 1.0}, {"recipe": "/tmp/code"}, plan.trials[1].values | {"model.source": "elsewhere"}):
        plan.save([plan.trials[0], plan.trials[1].model_copy(update={"values": values})])
        with pytest.raises(UserError, match="study.json: the values of trial-0001 are not those that the space and --tune-seed 0 give"):
            plan_of(tmp_path, RATES, samples=1)
    plan.save([plan.trials[0].model_copy(update={"number": 99_999})])
    with pytest.raises(UserError, match="the values of trial-99999"):
        plan_of(tmp_path, RATES, samples=1)
