"""overtone plan --recipe NAME [--config FILE …] [--section.key value …] [--gpus 8] [--nodes 2] [--gpu h100-80gb] [--write FILE]

Plans a run without weights, data or a GPU. Prints every config key with its value and the file that sets it; then, as YAML comments, the
estimated parameters, steps, checkpoints and time, the GPU memory term by term, the recommended parallelism strategy with reasons against
the others, and problems that would stop the run later. The output is YAML that can be used as a --config file. The exit code is 0 if the
run can start like this, 1 if there are problems to fix first, such as too little memory, and 2 for an error.

    --gpus N --nodes N         GPUs per machine, and number of machines (default: those of --launch, or 1 and 1)
    --gpu NAME                 type of GPU (default: h100-80gb)
    --write FILE               write a launch file for accelerate
    --settings                 print only the config, without the estimate
    --show-batch               print the config and the first micro-batch, sample by sample, with the trained positions highlighted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import JsonValue

from overtone.finetune import launcher
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.config import Config, choose_sources
from overtone.finetune.config_sources import Arguments, ConfigSource, Dumper, parse_arguments
from overtone.finetune.data.sample_cache_key import data_key
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.hardware.gpu_specs import Cluster, make_cluster
from overtone.finetune.recipe import Recipe, find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.finetune.terminal import announce_torch, print_coloured, print_content, print_line
from overtone.finetune.train import (
    check_given_inputs,
    check_inputs,
    list_words,
    load_checked_recipe,
    print_help,
    read_arguments,
    resolve_config,
)
from overtone.finetune.training import generation_during_training

if TYPE_CHECKING:
    from overtone.finetune.data.run_sizes import RunSizes
    from overtone.finetune.distributed.process_group import World
    from overtone.finetune.planning.data_preview import DataPreview
    from overtone.finetune.planning.run_plan import RunPlan

FLAGS = ("gpus", "nodes", "gpu", "write")
SHOW_BATCH, SETTINGS = "--show-batch", "--settings"


@dataclass(frozen=True)
class PlanOptions:
    """The command-line options of `plan` besides the config."""

    cluster: Cluster
    write: Path | None
    """Path of the launch file to write; None: none is written."""
    note: str
    """Reason why the number of GPUs is not that of --launch; empty if there is none."""


@catch_user_errors
def main(argv: list[str]) -> int:
    switches = (SHOW_BATCH, SETTINGS)
    known = (*launcher.FLAGS, *FLAGS, *(switch.removeprefix("--") for switch in switches))
    arguments = parse_arguments([argument for argument in argv if argument not in switches], known)
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    if SHOW_BATCH in argv or SETTINGS in argv:
        launcher.take_launch(arguments)  # so that the command line of a training can be shown as it is
        given = read_arguments(arguments)
        config = resolve_config(given)
        if SHOW_BATCH in argv:
            check_inputs(config)  # the config alone needs no data
            announce_torch(f"the recipe {config.recipe}")
        recipe = load_checked_recipe(config) if SHOW_BATCH in argv or generation_during_training.is_configured(config.sample) else None
        lines = [] if SHOW_BATCH not in argv or recipe is None else read_first_batch(config, recipe)  # first: it may be refused
        print_content(format_config(config.model_dump(mode="json"), find_origins(given.sources)))
        for line in lines:
            print_coloured(line)
        return 0
    requested = take_plan_options(arguments)
    given = read_arguments(arguments)
    config = resolve_config(given)  # does not check that the data exists: `startup_errors` reports that with the other problems
    print_content(format_config(config.model_dump(mode="json"), find_origins(given.sources)))
    if requested.note:
        print_line(f"# {requested.note}")
    announce_torch(f"the recipe {config.recipe}")
    return print_estimate(config, load_recipe(find_recipe(config.recipe)), requested, arguments)


def take_plan_options(arguments: Arguments) -> PlanOptions:
    """Remove the flags of `plan` from the overrides and return them. Raises `UserError` for an invalid number or an unknown GPU."""
    launch = launcher.take_launch(arguments)  # so that the command line of a training can be planned as it is
    given = {key: value for key, value in arguments.overrides if key in FLAGS}
    arguments.overrides = [(key, value) for key, value in arguments.overrides if key not in given]
    for key in ("gpus", "nodes"):
        if not given.get(key, "1").isdecimal():
            raise UserError(f"--{key} {given[key]}: expected a number, as in --{key} 8")
    gpus, nodes = int(given.get("gpus", "1")), int(given.get("nodes", "1"))
    note = ""
    if launch is not None and "gpus" not in given:
        nodes = nodes if "nodes" in given else launch.read_number("num_machines") or 1
        processes = launch.read_number("num_processes")
        if processes is None:
            note = f"--launch {launch.file.stem} starts one process for each GPU; this plan is for 1; give --gpus N for more"
        elif nodes < 1 or processes % nodes:
            raise UserError(f"--launch {launch.file}: {processes} processes on {nodes} machines; give a multiple of the machines")
        else:
            gpus = processes // nodes
    wanted = make_cluster(given.get("gpu", "h100-80gb"), gpus, nodes)
    write = Path(given["write"]) if "write" in given else None
    if write is not None and write.exists():
        raise UserError(f"--write {write}: already exists; remove it or choose another name")
    return PlanOptions(wanted, write, note)


def print_estimate(config: Config, recipe: Recipe, requested: PlanOptions, arguments: Arguments) -> int:
    """Print the estimate as YAML comments, and write the launch file if `--write` was given. Returns 1 if there are problems to fix before
    training, else 0."""
    from overtone.finetune.planning.launch_file import format_launch_file

    found, words = estimate(config, recipe, requested.cluster), list_words(arguments)
    if found.prospect is None and requested.write is not None:
        raise UserError(f"--write {requested.write}: there is no estimate by which to choose a strategy: {found.obstacle}")
    for line in found.format_lines(words, requested.write):
        print_line(f"# {line}".rstrip())
    if requested.write is not None and found.prospect is not None:
        files.write_text(requested.write, format_launch_file(found.prospect.best, requested.cluster, requested.write, words))
        print_line(f"# wrote {requested.write}")
    return 1 if found.problems else 0


@dataclass(frozen=True)
class Estimate:
    """Estimate of a run."""

    problems: tuple[str, ...]
    """Problems that would stop it, each with the next action."""
    prospect: RunPlan | None
    """Memory and time of each parallel layout; None if they cannot be estimated."""
    largest: int
    """Largest micro-batch that fits, in positions; 0 if none does, and without an estimate."""
    obstacle: str
    """The reason why there is no estimate; empty with one."""
    seen: DataPreview | str | None
    """The result of `look_at_data`."""
    sizes: RunSizes | None
    """Sizes that follow from the data; None without data."""

    def format_command(self, words: list[str], launch_file: Path | None = None) -> str | None:
        """Return the command that trains with the chosen layout; None without an estimate. `words`: the arguments of the training."""
        from overtone.finetune.planning.launch_file import format_launch_command

        return None if self.prospect is None else format_launch_command(self.prospect.best, self.prospect.cluster, launch_file, words)

    def format_lines(self, words: list[str], launch_file: Path | None = None) -> list[str]:
        """Return the report; arguments as for `format_command`."""
        from overtone.finetune.planning.plan_report import format_plan, format_problems

        command = self.format_command(words, launch_file)
        if self.prospect is None or command is None:
            return [f"no estimate of memory and time: {self.obstacle}", *format_problems([*self.problems])]
        return [*format_plan(self.prospect, command, self.seen, self.sizes, [*self.problems])]


def estimate(config: Config, recipe: Recipe, cluster: Cluster) -> Estimate:
    """Estimate memory and time of a run on a cluster, and find what would stop it. Raises `UserError` for an impossible layout."""
    from overtone.finetune.planning.meta_device_estimate import NoEstimateError, estimate_run
    from overtone.finetune.planning.run_plan import look_at_data, plan_run, settle_plan

    foreseen = estimate_run(config, recipe)
    problems = [*startup_errors(config, recipe)]
    try:
        seen = look_at_data(foreseen, recipe)
        foreseen, sizes = settle_plan(foreseen, seen)
        prospect = plan_run(foreseen, cluster)
        found = tuple(dict.fromkeys([*problems, *prospect.problems(seen)]))
        return Estimate(problems=found, prospect=prospect, largest=prospect.largest, obstacle="", seen=seen, sizes=sizes)
    except NoEstimateError as reason:
        return Estimate(problems=tuple(problems), prospect=None, largest=0, obstacle=str(reason), seen=None, sizes=None)


def startup_errors(config: Config, recipe: Recipe) -> Iterator[str]:
    """Yield the messages of the errors with which `train` would stop at startup. Data that is not given yet is none: a plan needs no
    data."""
    best_by = BestBy.parse(config.checkpoint.best_by)
    for check in (
        lambda: check_given_inputs(config),
        lambda: generation_during_training.check(config.sample, best_by, config.recipe, recipe),
    ):
        try:
            check()
        except UserError as problem:
            yield str(problem)


def find_origins(sources: list[ConfigSource]) -> dict[str, str]:
    """Dotted key → the file and line, or the flag, that sets it. Keys with their default are not included."""
    return {key: place for source in choose_sources(sources) for key, place in source.origins.items()}


def format_config(config: Mapping[str, JsonValue], places: dict[str, str]) -> str:
    """Return the config as YAML, with the origin of each value as a comment."""
    lines = [*_lines(config, "", places)]
    width = min(60, max(len(line) for line, _ in lines))
    return "\n".join(f"{line:<{width}}  # {place}" if place else line for line, place in lines)


def _lines(values: Mapping[str, JsonValue], prefix: str, places: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:", None
            yield from _lines(value, f"{key}.", places)
        else:
            text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))
            yield f"{indent}{name}: {text.removesuffix('...' + chr(10)).rstrip()}", places.get(key, "default")


def read_first_batch(config: Config, recipe: Recipe) -> list[str]:
    """Return the samples of the first micro-batch of a new run, as lines."""
    if recipe.show is None:
        raise UserError(f"{SHOW_BATCH}: the recipe {config.recipe} does not define `show`, so its samples cannot be printed")
    from overtone.finetune.distributed import process_group as worlds

    world = worlds.join((), config.run.dir)
    try:
        return list(format_first_batch(config, recipe, world))
    finally:
        worlds.leave()


def format_first_batch(config: Config, recipe: Recipe, world: World) -> Iterator[str]:
    """Yield the lines about dropped rows, then the samples of the first micro-batch of epoch 0. The run reuses the index that is built
    here."""
    from overtone.finetune.data.batching import Loader, Place, count_steps, steps
    from overtone.finetune.data.dataset_opening import DataOpener, check_batching, describe_dropped
    from overtone.finetune.data.mixture import MixedRows
    from overtone.finetune.data.row_measurement import LengthLimit
    from overtone.finetune.data.run_sizes import settle_sizes

    assert recipe.show is not None
    check_batching(config.data, config.train, config.recipe, recipe)
    recipe.prepare(config)
    loaded = recipe.load(config)
    opener = DataOpener(
        cache=config.run.dir / "cache",
        key=data_key(config.recipe, config.options, loaded),
        recipe=recipe,
        folder=find_recipe(config.recipe),
        options=config.options,
        limit=LengthLimit.of(config.data, config.train),
        loaded=loaded,
        world=world,
    )
    rows = opener.open_training(config.data, config.data)
    yield from describe_dropped(rows)
    if isinstance(rows, MixedRows):
        yield from rows.describe(None if config.train.steps else config.train.epochs, recipe.unit)
    count = partial(count_steps, lengths=rows.lengths, epochs=config.train.epochs)
    sizes = settle_sizes(config, len(rows), int(rows.lengths.sum()), recipe.unit, count)
    micro = next(steps(sizes.order, rows.lengths, Place(), epochs=1)).micros[0]
    yield f"\nthe first micro-batch: {len(micro.ids)} of {format_count(len(rows), 'row')}, {micro.tokens:,} {recipe.unit}"
    loader = Loader(rows, recipe, rank=0, size=1)
    for row in micro.ids:
        yield f"\n── {rows.where(row)}"
        yield recipe.show(loader.sample(row), loaded.processor)
    loader.close()
