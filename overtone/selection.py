"""Selections of the best checkpoint and strength of a run from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.evaluation import join_steps
from overtone.finetune.errors import UserError
from overtone.training import TrainingRun, free_memory, locate_run

if TYPE_CHECKING:
    from overtone.recipes.speech.interface import SpeechRecipe
    from overtone.recipes.speech.selection.voice_selection import SelectionOptions


@dataclass(frozen=True)
class CheckpointSelection:
    """The selected checkpoint, which `overtone.export(run, folder, best=True)` exports. `print(selection)` prints all candidates."""

    checkpoint: Path
    """Its folder."""
    step: int
    strength: float
    """As for `overtone.export`."""
    reason: str
    """The reason for the selection, in one sentence."""
    record: Path
    """All figures: `selection.json`."""
    page: Path | None
    """All candidates as a web page with players; None for a run that was selected by its evaluations."""
    values: dict[tuple[int, float], dict[str, float | None]] = field(repr=False)
    """By step and strength of each candidate: its metrics. For a voice `cost` (the lowest is best), `wer`, `similarity`, `pace` and
    `endings`; else the metric of `checkpoint.best_by`."""
    report: str = field(repr=False)
    """Everything, as `overtone select` prints it."""

    def __str__(self) -> str:
        return self.report


def select(
    run: TrainingRun | str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    asr: str | os.PathLike[str] | None = None,
    text_file: str | os.PathLike[str] | None = None,
    speaker: str | None = None,
    speaker_model: str | os.PathLike[str] | None = None,
    strengths: Sequence[float] | None = None,
    checkpoints: Sequence[int] | str | None = None,
    texts: int | None = None,
    weights: Mapping[str, float] | None = None,
    batch: int | None = None,
    greedy: bool | None = None,
    seed: int | None = None,
    max_seconds: float | None = None,
    recipe: str | os.PathLike[str] | None = None,
) -> CheckpointSelection:
    """Choose the best checkpoint of a run, and write the choice into the run, from where `overtone.export` takes it with `best=True`.

    A voice speaks fixed texts with every checkpoint at a few strengths, and the speech is measured; progress is printed, and the same call
    again reuses the measures. Other recipes take the checkpoint with the best evaluation (`checkpoint.best_by`), and only `run` and
    `recipe` are for them.

    Args:
        run: a run, or its folder.
        data: for a voice, a JSONL file of rows with text, speaker and recordings, such as `dataset.val`.
        asr: for a voice, the Whisper model that transcribes the speech.
        text_file: texts to speak instead of those of `data`.
        speaker: speaker of rows and lines without one.
        speaker_model: an independent speaker encoder; by default resemblyzer, if it is installed, or that of the base.
        strengths: of the update; by default 0.4, 0.7 and 1.
        checkpoints: steps, or `"all"` (default).
        texts: number of texts to speak; by default 24.
        weights: of the measures in the cost, such as `{"wer": 2}`; 0 leaves one out.
        batch: texts to speak at a time; by default 8.
        greedy: always take the most likely code instead of sampling.
        seed: of the sampling, the same for each candidate.
        max_seconds: cut speech off here; by default 30.
        recipe: the folder of the recipe, if that is not part of the package.

    Returns:
        The choice, and the figures of all candidates.

    Raises:
        UserError: if there is nothing to choose from, for options that the recipe does not have, rows that cannot be spoken, and a number
            out of range.
        KeyboardInterrupt: after an interrupt.
    """
    from overtone.finetune.cli import select_checkpoint
    from overtone.finetune.recipe import find_recipe, load_inference
    from overtone.finetune.storage.folder_handles import name_paths
    from overtone.recipes.speech.interface import SpeechRecipe

    folder = locate_run(run)
    name_paths(os.fspath(path) for path in (folder, data, text_file) if path is not None)
    name = select_checkpoint.find_recipe_of_run(folder, None if recipe is None else os.fspath(recipe))
    inference = load_inference(find_recipe(name))
    given = {
        "data": data,
        "asr": asr,
        "text-file": text_file,
        "speaker": speaker,
        "speaker-model": speaker_model,
        "strengths": strengths,
        "checkpoints": checkpoints,
        "texts": texts,
        "weights": weights,
        "batch": batch,
        "greedy": greedy,
        "seed": seed,
        "max-seconds": max_seconds,
    }
    if inference.select is None:
        if unused := next((option for option, value in given.items() if value is not None), None):
            raise UserError(f"--{unused}: {select_checkpoint.explain_unused_option(name)}")
        return _select_by_evaluation(folder)
    speech = None if inference.speech is None else inference.speech()
    if not isinstance(speech, SpeechRecipe):
        raise UserError(f"{folder}: its recipe {name} has a selection of its own, which only the command `overtone select` runs")
    if data is None or asr is None:
        missing = "data" if data is None else "asr"
        raise UserError(f"--{missing} is missing: the checkpoints of a voice are compared by what they speak; give data and asr")
    from overtone.recipes.speech.selection.voice_selection import SelectionOptions

    usual = SelectionOptions(Path(data), os.fspath(asr))
    options = SelectionOptions(
        data=usual.data,
        asr=usual.asr,
        text_file=None if text_file is None else Path(text_file),
        speaker=speaker,
        speaker_model=None if speaker_model is None else os.fspath(speaker_model),
        strengths=usual.strengths if strengths is None else tuple(map(float, strengths)),  # 1 and 1.0 have one name
        checkpoints=join_steps(checkpoints) or usual.checkpoints,
        texts=usual.texts if texts is None else texts,
        weights=usual.weights if weights is None else dict(weights),
        batch=usual.batch if batch is None else batch,
        greedy=usual.greedy if greedy is None else greedy,
        seed=usual.seed if seed is None else seed,
        max_seconds=usual.max_seconds if max_seconds is None else float(max_seconds),
    )
    with free_memory():
        return _select_voice(speech, folder, options)


def _select_by_evaluation(run: Path) -> CheckpointSelection:
    from overtone.finetune.checkpointing import checkpoint
    from overtone.finetune.exporting import evaluation_selection, selection_record

    found = evaluation_selection.select_by_evaluation(run)
    return CheckpointSelection(
        checkpoint=checkpoint.folder_of(run) / f"step-{found.choice.step:08d}",
        step=found.choice.step,
        strength=found.choice.strength,
        reason=found.choice.reason,
        record=selection_record.folder_of(run) / selection_record.RECORD,
        page=None,
        values={(step, 1.0): {found.metric: value} for step, value in found.values.items()},
        report=found.render_report(),
    )


def _select_voice(speech: SpeechRecipe, run: Path, options: SelectionOptions) -> CheckpointSelection:
    from overtone.finetune.exporting import selection_record
    from overtone.recipes.speech.selection import result_rendering, voice_selection

    result = voice_selection.select_voice(speech, run, options)
    values = dict[tuple[int, float], dict[str, float | None]]()
    for one in result.decision.rankings:
        candidate = result.candidates[one.name]
        values[candidate.step, candidate.strength] = {"cost": one.cost, **one.values}
    folder = selection_record.folder_of(run)
    return CheckpointSelection(
        checkpoint=result.chosen.checkpoint,
        step=result.chosen.step,
        strength=result.chosen.strength,
        reason=result_rendering.explain_choice(result.decision),
        record=folder / selection_record.RECORD,
        page=folder / voice_selection.PAGE,
        values=values,
        report=result_rendering.render_report(result),
    )
