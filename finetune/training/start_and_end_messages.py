"""Messages that a run prints before its first step (model, data, steps, memory, folder, how to stop and resume) and after its last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overtone.finetune import command_lines
from overtone.finetune.checkpointing import checkpoint, disk_space
from overtone.finetune.checkpointing.retention import BestBy, choose_best_step, describe_keep
from overtone.finetune.config import Model, require_number
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.errors import format_count
from overtone.finetune.monitoring.run_logger import format_duration
from overtone.finetune.monitoring.run_records import FINISHED, FINISHED_EARLY, find_best_evaluation, iterate_events
from overtone.finetune.monitoring.stop_requests import STOP_FILE
from overtone.finetune.recipe import recipe_arguments
from overtone.finetune.training.loop import Progress
from overtone.finetune.training.step import Training

DEFAULT_BEST_BY = BestBy()


def describe_start(training: Training, progress: Progress) -> Iterator[str]:
    """Yield the settings of a run, one line each."""
    config, folder = training.config, checkpoint.folder_of(training.config.run.dir)
    train = config.train
    yield f"  model     {describe_model(config.model)}"
    yield f"  data      {describe_data(training)}"
    if isinstance(training.rows, MixedRows):
        yield from (f"            {line}" for line in training.rows.describe(None if train.steps else train.epochs, training.recipe.unit))
    left = f"{training.total - progress.step:,} left of {training.total:,}" if progress.step else f"{training.total:,}"
    until = "" if train.steps else f" ({train.epochs} epochs)"
    rate = f"learning rate {train.lr:g}, {train.schedule}, {train.warmup:.0%} warm-up"
    yield f"  steps     {left}{until}, of about {training.order.global_batch_tokens:,} {training.recipe.unit} each; {rate}"
    if training.world.device.type == "cuda":
        from overtone.finetune.training.peak_memory_report import describe_memory  # here, since it imports the planner

        yield f"  memory    {describe_memory(training)}"
    size = disk_space.checkpoint_bytes_of(training.model, train.optimizer, training.loaded.blocks)
    yield (
        f"  saved in  {folder}: {describe_interval(config.checkpoint.every)} and after the last, {format_size(size)} each; "
        f"{describe_keep(config.checkpoint.keep)} are kept, and the best"
    )
    yield f"  stop      Ctrl-C, or `{command_lines.join_words(['touch', config.run.dir / STOP_FILE])}`: saves after the current step"
    yield f"  resume    {command_lines.find_own_command() or 'run the same command again'}"


def describe_model(model: Model) -> str:
    """Describe the base, and which part of it is trained."""
    base = f"{model.source}{f' at {model.revision}' if model.revision else ''}"
    if model.lora is None:
        return f"{base}, full fine-tuning"
    kind = " ".join(filter(None, ["4-bit base," if model.quantization else "", "DoRA" if model.lora.dora else "LoRA"]))
    return f"{base}, {kind} of rank {model.lora.rank}, alpha {model.lora.alpha:g}"


def describe_data(training: Training) -> str:
    """Training and validation data."""
    data, rows, unit = training.config.data, training.rows, training.recipe.unit
    name = "mixture" if data.mix else data.train
    trained = f"{name}: {format_count(len(rows), 'row')}, {int(rows.lengths.sum()):,} {unit}"
    if training.val is None and training.sampling.decides:
        return (
            f"{trained}; no validation data, the best step is that with the {BestBy.parse(training.config.checkpoint.best_by).describe()}"
        )
    if training.val is None:
        return f"{trained}; no validation data (--data.val FILE), so no step will be known as the best"
    named = ", ".join(map(str, data.validation_files()))
    return f"{trained}; validation {named}: {format_count(len(training.val), 'row')}, {describe_interval(training.config.eval.every)}"


def describe_interval(every: int | str) -> str:
    return "every step" if every == 1 else f"every {require_number(every):,} steps"


def format_size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def describe_result(training: Training, reason: str, step: int, seconds: float, log_path: Path) -> Iterator[str]:
    """Describe the result after the last step: the checkpoints, the best step, and the next three commands. `reason`: why training ended.
    `seconds`: duration of this launch."""
    config = training.config
    folder = checkpoint.folder_of(config.run.dir)
    saved = sorted(map(checkpoint.step_of, checkpoint.list_checkpoints(folder)))
    planned = "" if step == training.total else f" of {training.total:,}"
    yield f"finished at step {step:,}{planned} after {format_duration(seconds)}{reason.removeprefix(FINISHED_EARLY).removeprefix(FINISHED)}"
    yield f"  checkpoints  {folder}: {'steps' if len(saved) > 1 else 'step'} {', '.join(map(str, saved))}"
    yield f"  loss curve   {config.run.dir / 'loss.png'}; all values: {log_path}"
    best_by = BestBy.parse(config.checkpoint.best_by)
    found = checkpoint.read_metric(folder, best_by)
    best = choose_best_step(found, best_by)
    if best is not None:
        logged = find_best_evaluation(iterate_events(log_path), *best_by)
        yield f"  best step    {describe_best(best, found, logged, require_number(config.checkpoint.every), best_by)}"
    yield "next:"
    yield from (f"  {command}" for command in next_commands(training, None if best in (None, step) else best))


def describe_best(
    best: int, values: dict[int, float], logged: tuple[float, int] | None, every: int, best_by: BestBy = DEFAULT_BEST_BY
) -> str:
    """Return the saved step with the best metric; compared with the last, and with steps that were evaluated but not saved. `logged`: the
    best value of all evaluations, and its step."""
    last = max(values)
    compared = "" if last == best else f" (step {last}: {values[last]:.4f})"
    unsaved = ""
    gain = None if logged is None else best_by.rank(logged[0]) - best_by.rank(values[best])
    if logged is not None and gain is not None and logged[1] == 0 and gain >= 0:
        unsaved = f"; the model before training had {logged[0]:.4f}, so training did not improve it on this data"
    elif logged is not None and gain is not None and gain > 0 and logged[1] not in values:
        unsaved = f"; step {logged[1]} had {logged[0]:.4f}, but checkpoints were saved every {every:,} steps only (checkpoint.every)"
    name = "validation loss" if best_by == DEFAULT_BEST_BY else best_by.describe()
    return f"{best}, {name} {values[best]:.4f}{compared}{unsaved}"


def next_commands(training: Training, step: int | None) -> list[str]:
    """Return three commands, which export, try, and measure the model. `step`: the one to export, if it is not the newest."""
    config, can = training.config, training.recipe.inference
    model = ["--model", command_lines.exported_folder(config.run.dir)]
    recipe = recipe_arguments(config.recipe)
    commands = [command_lines.export_command(config.run.dir, recipe, step)]
    if can.chat is not None:
        commands.append(command_lines.overtone_command("chat", *model, *recipe))
    elif can.serve is not None:
        commands.append(command_lines.overtone_command("serve", *model, *recipe))
    local = [path for path in config.data.validation_files() if isinstance(path, Path)]
    if can.evaluate is not None and local:
        commands.append(command_lines.overtone_command("eval-voice", *model, "--data", local[0], *recipe))
    else:
        commands.append(command_lines.overtone_command("generate", *model, *can.example, *recipe))
    return commands


def describe_stop(run_dir: Path, recipe: str, reason: str, step: int, total: int) -> Iterator[str]:
    """Describe, after a run that ended before its last step, where it resumes, and with which command."""
    saved = checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))
    newest = checkpoint.step_of(saved[0]) if saved else None
    place = "nothing was saved, so it starts from the beginning" if newest is None else f"it resumes from step {newest:,}"
    command = command_lines.find_own_command()
    yield f"{reason} at step {step:,} of {total:,}; {place} with {'the same command' if command is None else 'this command:'}"
    if command is not None:
        yield f"  {command}"
    if newest is not None:
        export = command_lines.export_command(run_dir, recipe_arguments(recipe))
        yield f"to use the model of step {newest:,} as it is: {export}"
