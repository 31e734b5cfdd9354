"""overtone ray-tune --space SPACE.yaml --recipe NAME [--config FILE …] [--section.key value …]

Tunes config keys of a recipe on a Ray cluster. Draws settings from a search space, trains each of them as an ordinary run in its own folder
below run.dir, stops those that fall behind (ASHA), and writes a report. The same command resumes: finished trials are kept.

The space is YAML; each key has one of these, as in `train.lr: {loguniform: [1e-6, 1e-4]}`:
  {choice: [a, b]}  {grid: [a, b]}  {uniform: [low, high]}  {loguniform: [low, high]}  {randint: [low, high]}, which excludes high

  --space FILE             the search space
  --num-samples N          draws for each combination of the grid values (default 10; 1 if all keys are grids)
  --metric "NAME min|max"  what is best: any number in log.jsonl, with min or max (default "val/loss min"; "loss min" without data.val)
  --tune-seed N            seed of the draws (default 0); all trials have the run.seed of the config, unless the space has it
  --early-stopping true    ASHA: true (default) or false, which trains every trial to its end
  --grace-steps N          no trial is stopped before this step (default: eval.every)
  --reduction N            at steps N·grace, N²·grace, … the best 1/N of the trials that got there continue (default 3)
  --max-concurrent N       most trials at a time (default: as many as the cluster has room for)
  --storage DIR            a folder that all machines share; a relative run.dir is inside it (default: the current folder)
  --use-gpu auto           a GPU for each trial: auto (if the cluster has any), true or false, which takes a CPU
  --ray-address HOST:PORT  which cluster; auto: the one that runs here; local: a new one (default: RAY_ADDRESS, else auto, else local)
  --max-failures N         how often a trial, or preparing its data, is started again after the death of its worker (default 3)
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

from overtone.finetune.command_lines import export_command, join_words, shorten_path
from overtone.finetune.config_sources import Arguments, parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection
from overtone.finetune.ray_cluster.verb_arguments import CLUSTER_FLAGS, ClusterOptions, list_local_files, parse_choice, parse_count
from overtone.finetune.recipe import recipe_arguments
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_diagnostic, print_line
from overtone.finetune.train import load_checked_recipe, print_help, read_arguments, report_overlay
from overtone.finetune.tuning import report, search_space, study_plan, study_record
from overtone.finetune.tuning.study_plan import StudyOptions, StudyPlan
from overtone.finetune.tuning.study_record import TrialRecord
from overtone.finetune.tuning.trial_metric import explain_missing_metric, rank_trials, read_curve

FLAGS = (
    *("space", "num-samples", "metric", "tune-seed", "early-stopping", "grace-steps", "reduction", "max-concurrent"),
    *CLUSTER_FLAGS,
)


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run or resume a study; returns the exit code. Raises `UserError` for what the user can fix, before anything is started."""
    arguments = parse_arguments(argv, FLAGS)
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    study, where, training = split_arguments(arguments)
    plan = study_plan.make_plan(study, training)
    report_overlay(read_arguments(training))
    load_checked_recipe(next(iter(plan.configs.values())))
    lock = files.lock_folder(plan.folder)
    try:
        with cluster_connection.connect(where.address):
            stopped = run_study(plan, where, study.at_once)
    finally:
        os.close(lock)
    return report_end(plan, stopped)


def split_arguments(arguments: Arguments) -> tuple[StudyOptions, ClusterOptions, Arguments]:
    """Split the command line into the verb's own flags and the arguments of the training. Raises `UserError`."""
    given = {key: value for key, value in arguments.overrides if key in FLAGS}
    rest = [(key, value) for key, value in arguments.overrides if key not in FLAGS]
    if "space" not in given:
        raise UserError("which keys? give --space FILE with a line such as `train.lr: {loguniform: [1e-6, 1e-4]}`")

    def count(flag: str, least: int = 1) -> int | None:
        return parse_count(flag, given[flag], least) if flag in given else None

    where = ClusterOptions.parse(given)
    study = StudyOptions(
        space=Path(given["space"]),
        samples=count("num-samples"),
        metric=given.get("metric"),
        seed=count("tune-seed", 0) or 0,
        stops_early=bool(parse_choice("early-stopping", given.get("early-stopping", "true"), {"true": True, "false": False})),
        grace=count("grace-steps"),
        reduction=parse_reduction(given.get("reduction", "3")),
        storage=where.storage,
        at_once=count("max-concurrent"),
    )
    return study, where, Arguments(arguments.recipe, arguments.files, rest)


def parse_reduction(value: str) -> float:
    """Return a number above 1. Raises `UserError`."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 1 < number < 1e6:
        raise UserError(f"--reduction {value}: expected a number above 1")
    return number


def run_study(plan: StudyPlan, where: ClusterOptions, most: int | None) -> str | None:
    """Prepare the data and run the unfinished trials, at most `most` at a time; returns why they were stopped, or None. Needs a connection
    to a cluster."""
    from overtone.finetune.monitoring.stop_requests import STOP_FILE, StopRequests
    from overtone.finetune.ray_cluster import study_driver  # here, since mistakes in the command line need no torch

    each = cluster_checks.choose_worker_resources(where.gpu)
    cluster_checks.require_resources(most or 1, each, f"--max-concurrent {most or 1}")
    local = [*dict.fromkeys(path for config in plan.configs.values() for path in list_local_files(config.model.source, config.data))]
    cluster_checks.check_same_files(plan.folder, local)
    plan.save(plan.trials)
    orders = study_plan.make_orders(plan)
    at_once = min(most or len(plan.trials), cluster_checks.count_room(each))
    settings = study_driver.TrialSettings(plan.folder, plan.metric, plan.definition.early_stopping, each, at_once, where.failures)
    driver = study_driver.TrialDriver(settings, {trial.number: trial for trial in plan.trials}, orders, plan.save)
    for number, reason in study_driver.find_missed_stops(plan.folder, plan.trials).items():
        driver.end_without_start(number, {"status": "stopped early", "message": reason})
    unfinished = [trial.number for trial in driver.trials.values() if trial.status not in study_record.FINAL]
    print_line(f"{len(unfinished)} of {format_count(len(plan.trials), 'trial')} to run, {at_once} at a time; {plan.folder}")
    with StopRequests(plan.folder) as requests:
        problems, stopped = study_driver.prepare_shared_data(study_plan.list_preparations(orders, unfinished), settings, requests)
        for number, outcome in problems.items():
            driver.end_without_start(number, outcome)
        if stopped is None:
            stopped = driver.run([number for number in unfinished if number not in problems], requests)
        files.discard(plan.folder / STOP_FILE)
    plan.trials[:] = driver.trials.values()
    return stopped


def report_end(plan: StudyPlan, stopped: str | None) -> int:
    """Write the report, print the table and how to export the best trial; returns the exit code: 1 if no trial has a value."""
    curves = {trial.number: read_curve(plan.folder / trial.name, plan.metric) for trial in plan.trials}
    ranked = rank_trials(plan.trials, plan.metric)
    pages = report.write_report(plan.folder, plan.definition, plan.metric, ranked, curves)
    print_line(report.render_table(ranked, plan.metric))
    counts = Counter(trial.status for trial in plan.trials)
    print_line(f"{', '.join(f'{count} {status}' for status, count in counts.items())}; report: {', '.join(map(str, pages))}")
    if stopped is not None or set(counts) - set(study_record.FINAL):
        print_line(f"the same command resumes what is not done:\n  {join_words(sys.orig_argv)}")
    best = ranked[0]
    if best.value is None or best.status == "diverged":
        print_diagnostic(f"warning: no best trial: {explain_missing_metric(plan.metric, curves.values())}")
        return 1
    print_line(f"best: {best.name}, {plan.metric.name} {best.value:.6g} ({search_space.describe_values(best.values)})")
    print_line(f"next: {format_export(plan, best)}")
    return 0


def format_export(plan: StudyPlan, best: TrialRecord) -> str:
    """Return the command that exports a trial: its best checkpoint, if that was kept, else its newest."""
    run_dir = plan.folder / best.name
    kept = best.value_step is not None and (run_dir / CHECKPOINTS / f"step-{best.value_step:08d}").is_dir()
    return export_command(shorten_path(run_dir), recipe_arguments(plan.definition.recipe), best.value_step if kept else None)
