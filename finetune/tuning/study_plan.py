"""The plan of a study: checked trials with their configs, from the command line, the search space and an earlier launch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from pydantic import BaseModel

from overtone.finetune.addresses import hide_word
from overtone.finetune.config import AUTO, Config, Data, require_number
from overtone.finetune.config_sources import Arguments, ConfigSource
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.recipe import find_recipe, load_options
from overtone.finetune.terminal import print_line
from overtone.finetune.train import check_inputs, list_words, read_arguments
from overtone.finetune.tuning import search_space, study_record
from overtone.finetune.tuning.search_space import Draw, Space
from overtone.finetune.tuning.study_record import EarlyStopping, StudyDefinition, StudyRecord, TrialRecord
from overtone.finetune.tuning.trial_metric import TrialMetric, parse_metric

PREPARED = "prepared"
"""Folder in the study's folder with the caches that trials share."""
FIRST_RUNG = 25
"""Steps of the first rung while `eval.every` is `auto`."""
SAMPLES = 10
MOST_TRIALS = 10**4


@dataclass(frozen=True)
class StudyOptions:
    """Options of a study, from the command line."""

    space: Path
    samples: int | None
    """Draws for each combination of the grid values; None: the default."""
    metric: str | None
    seed: int
    stops_early: bool
    grace: int | None
    """Steps of the first rung; None: `eval.every`."""
    reduction: float
    storage: Path
    at_once: int | None = None
    """Maximum number of trials at a time; None: as many as the cluster has room for."""


class TrialOrder(TypedDict):
    """Order to a worker to train a trial, or to prepare its data."""

    number: int
    folder: str
    """Working directory."""
    arguments: list[str]
    """Arguments of the training, without run.dir."""
    run_dir: str
    prepared: str
    """Run folder whose cache other trials share; empty: none."""
    metric: str


@dataclass(frozen=True)
class StudyPlan:
    """A study that was checked and can start."""

    folder: Path
    definition: StudyDefinition
    metric: TrialMetric
    trials: list[TrialRecord]
    """Trials of earlier launches and of this one."""
    configs: dict[int, Config]
    """Number of a trial → its config, with the run.dir of the command line."""
    arguments: list[str]
    """Arguments of the training of every trial."""

    def save(self, trials: Sequence[TrialRecord]) -> None:
        """Record the state of the trials."""
        study_record.write_record(self.folder, StudyRecord(definition=self.definition, trials=[*trials]))


@dataclass(frozen=True)
class CheckedSpace:
    """A search space, and the config sources that it varies."""

    space: Space
    recipe: str
    options: type[BaseModel]
    sources: list[ConfigSource]

    def resolve(self, draw: Draw) -> Config:
        """Return the config of a trial. Raises `UserError` for values that do not fit together, and for data that is missing."""
        config = search_space.resolve_draw(draw, self.space, self.recipe, self.options, self.sources)
        check_inputs(config)
        if config.checkpoint.copy_to is not None:
            raise UserError("checkpoint.copy_to is set, and the trials would share that URL; remove it, and copy the best run afterwards")
        return config


def make_plan(options: StudyOptions, arguments: Arguments) -> StudyPlan:
    """Check space, config, data and the study's folder. Raises `UserError`. Imports neither Ray nor torch, unless the options do."""
    checked = check_space(options.space, arguments)
    draws = make_draws(options, checked.space)
    configs = {draw.number: checked.resolve(draw) for draw in draws}
    first = configs[draws[0].number]
    metric = choose_metric(options.metric, first.data)
    words = list_words(replace(arguments, overrides=[(key, value) for key, value in arguments.overrides if key != "run.dir"]))
    definition = StudyDefinition(
        recipe=checked.recipe,
        arguments=[hide_word(word) for word in words[2:]],  # after --recipe NAME
        space={each.key: {each.distribution: list(each.values)} for each in checked.space},
        metric=metric.text,
        seed=options.seed,
        early_stopping=EarlyStopping(grace=options.grace or interval_of(first.eval.every), reduction=options.reduction)
        if options.stops_early
        else None,
    )
    folder = options.storage.absolute() / first.run.dir
    drawn = [TrialRecord(number=draw.number, values=draw.values, run_seed=configs[draw.number].run.seed) for draw in draws]
    trials = study_record.merge_trials(folder, study_record.read_record(folder), definition, drawn)
    recorded = redraw_trials(folder, trials, checked.space, options.seed)
    configs |= {draw.number: checked.resolve(draw) for draw in recorded if draw.number not in configs}  # --num-samples is smaller now
    return StudyPlan(folder, definition, metric, trials, configs, [*words, *follow_metric(metric, first.checkpoint.best_by, checked.space)])


def interval_of(every: int | str) -> int:
    """Return the steps between two reports of a trial. `eval.every: auto` follows from the data of each trial, and rungs must be the same
    for all."""
    return FIRST_RUNG if every == AUTO else require_number(every)


def check_space(path: Path, arguments: Arguments) -> CheckedSpace:
    """Return the space with the sources of the command line. Raises `UserError` for wrong keys and values in both."""
    recipe, sources = read_arguments(arguments)
    options = load_options(find_recipe(recipe))
    space = search_space.read_space(path, options)
    search_space.check_values(space, recipe, options, sources)
    return CheckedSpace(space, recipe, options, sources)


def make_draws(options: StudyOptions, space: Space) -> list[Draw]:
    """Return the draws of the study; prints how many were dropped because they repeat another. Raises `UserError` for too many."""
    is_grid = all(dimension.distribution == "grid" for dimension in space)
    samples = options.samples or (1 if is_grid else SAMPLES)
    wanted = samples * search_space.count_combinations(space)
    if wanted > MOST_TRIALS:
        raise UserError(f"{options.space}: {wanted:,} trials; use fewer grid values or a smaller --num-samples ({MOST_TRIALS:,} at most)")
    draws = search_space.draw_trials(space, options.seed, samples)
    if len(draws) < wanted:
        print_line(f"{wanted - len(draws)} of {format_count(wanted, 'draw')} repeat the settings of an earlier one and are dropped")
    return draws


def redraw_trials(folder: Path, trials: Sequence[TrialRecord], space: Space, seed: int) -> list[Draw]:
    """Return the draws of recorded trials. Raises `UserError` for other values: a file chooses no keys and values of a training."""
    last = max(trial.number for trial in trials)
    draws = {draw.number: draw for draw in search_space.draw_trials(space, seed, last // search_space.count_combinations(space) + 1)}
    for trial in trials:
        if trial.number not in draws or draws[trial.number].values != trial.values:
            raise UserError(
                f"{folder / study_record.RECORD}: the values of {trial.name} are not those that the space and --tune-seed {seed} give; "
                "the file was changed: restore it, or choose another --run.dir"
            )
    return [draws[trial.number] for trial in trials]


def choose_metric(given: str | None, data: Data) -> TrialMetric:
    """Return the metric of the study. Raises `UserError` for one of the evaluations if there are none."""
    metric = parse_metric(given or ("loss min" if data.val is None else "val/loss min"))
    if metric.best_by is not None and data.val is None:
        raise UserError(f"--metric {metric.text}: no evaluations without validation data; give --data.val FILE, or another metric")
    return metric


def follow_metric(metric: TrialMetric, best_by: str | None, space: Space) -> list[str]:
    """Return the arguments that make each run keep the checkpoint that is the best by the study's metric, unless the config says
    otherwise."""
    is_set = best_by is not None or any(dimension.key == "checkpoint.best_by" for dimension in space)
    return [] if metric.best_by is None or is_set else [f"--checkpoint.best_by={metric.best_by}"]


def make_orders(plan: StudyPlan) -> dict[int, TrialOrder]:
    """Return the order of each trial. Trials that read the same data in the same way share a prepared cache; a trial that shares its
    settings with no other one prepares its own data when it starts."""
    signatures = {number: describe_data(config) for number, config in plan.configs.items()}
    counts = Counter(signatures.values())
    orders: dict[int, TrialOrder] = {}
    for trial in plan.trials:
        values = [f"--{key}={search_space.format_value(value)}" for key, value in sorted(trial.values.items())]
        signature = signatures[trial.number]
        is_shared = counts[signature] > 1
        orders[trial.number] = {
            "number": trial.number,
            "folder": str(Path.cwd()),
            "arguments": [*plan.arguments, *values],
            "run_dir": str(plan.folder / trial.name),
            "prepared": str(plan.folder / PREPARED / f"data-{hashlib.sha256(signature.encode()).hexdigest()[:12]}") if is_shared else "",
            "metric": plan.metric.text,
        }
    return orders


def describe_data(config: Config) -> str:
    """Return the keys that the prepared data depends on. A cache that does not fit nevertheless is rebuilt by the trial itself."""
    model = {"source": config.model.source, "revision": config.model.revision}
    return repr((config.data.model_dump_json(), config.options.model_dump_json(), model, config.train.micro_tokens))


def list_preparations(orders: dict[int, TrialOrder], numbers: Sequence[int]) -> list[list[TrialOrder]]:
    """For each cache that some of these trials share, an order of each of them that fills it, with the cache's folder as run.dir."""
    groups: dict[str, list[TrialOrder]] = {}
    for number in numbers:
        if name := orders[number]["prepared"]:
            groups.setdefault(name, []).append({**orders[number], "run_dir": name})
    return [*groups.values()]
