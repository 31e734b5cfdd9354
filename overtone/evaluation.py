"""Evaluations of voices from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overtone.finetune.errors import UserError
from overtone.training import TrainingRun, free_memory, locate_run


@dataclass(frozen=True)
class VoiceEvaluation:
    """The results of an evaluation. `print(evaluation)` prints the tables and what is clearly better or worse than the base."""

    folder: Path
    """With all result files, and the clips in `clips`."""
    page: Path
    """The results as a web page with players: `evaluation.html`."""
    figures: dict[str, dict[str, dict[str, float | None]]]
    """By system (the model, its checkpoints, the base, `real recordings`), by set of texts (`all`; with `seen`, `seen` and `unseen`) and by
    metric: `evaluation.figures["me"]["all"]["wer"]`. Units and metrics are those of the tables; a metric without a value is None."""
    verdicts: tuple[str, ...]
    """Sentences: whether the training helped, with 95 % intervals."""
    notes: tuple[str, ...]
    """Notes on what was not measured, and why."""
    record: dict[str, Any] = field(repr=False)
    """The content of `evaluation.json`, with every clip."""
    report: str = field(repr=False)
    """The content of `evaluation.md`."""

    def __str__(self) -> str:
        return self.report


def evaluate(
    model: TrainingRun | str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    asr: str | os.PathLike[str] | None = None,
    codec: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    seen: str | os.PathLike[str] | None = None,
    checkpoints: Sequence[int] | str | None = None,
    speaker: str | None = None,
    reference: str | os.PathLike[str] | None = None,
    speaker_model: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    batch: int = 8,
    greedy: bool = False,
    seed: int = 0,
    max_seconds: float = 30.0,
    card: bool = False,
    out: str | os.PathLike[str] | None = None,
    recipe: str | os.PathLike[str] | None = None,
    strength: float | None = None,
) -> VoiceEvaluation:
    """Measure how good a voice is: intelligibility, speaker similarity, speaking rate, unended speech; and, with a base, whether training
    improved them. Progress is printed. The command `overtone eval-voice` also speaks on a Ray cluster, and measures by published protocols.

    A chat model or an image model is evaluated while it trains: see `data.val` and `TrainingRun.evaluations`.

    Args:
        model: as for `overtone.load_voice`.
        data: a JSONL file of texts to speak, with recordings or without, such as `dataset.val`.
        asr: the Whisper model that transcribes the speech; without one, intelligibility is not measured.
        codec: a model whose codec encodes and decodes the recordings, which are then measured, too: the best that a model of its codes can
            reach.
        base: the model before the training, to compare with. An export that names the speakers of all rows speaks by name; another model
            clones the `ref_audio` of each row.
        seen: the training data; texts are then reported as seen or unseen.
        checkpoints: of a run, the steps to evaluate, or `"all"`; by default the newest.
        speaker: speaker of rows without one.
        reference: a clip to clone for rows without `ref_audio`.
        speaker_model: an independent speaker encoder; by default resemblyzer, if it is installed.
        limit: maximum number of texts of each set, evenly spaced.
        batch: texts to speak at a time.
        greedy: always take the most likely code instead of sampling.
        seed: of the sampling.
        max_seconds: cut speech off here; it is counted as not ended.
        card: also write the results into the model card of an export.
        out: a new folder for the results; by default `evaluation` in the run, or `NAME-evaluation` beside the export, numbered if there are
            some.
        recipe: as for `overtone.load_voice`.
        strength: of a run or a checkpoint, as for `overtone.export`.

    Returns:
        The results.

    Raises:
        UserError: for a model that does not speak, rows that it cannot speak, a number out of range, or a folder with other files.
        KeyboardInterrupt: after an interrupt.
    """
    from overtone.finetune.cli import eval_voice
    from overtone.finetune.recipe import find_recipe, load_inference
    from overtone.finetune.storage.folder_handles import name_paths
    from overtone.recipes.speech.interface import SpeechRecipe

    place = str(locate_run(model)) if isinstance(model, TrainingRun) else os.fspath(model)
    name_paths(os.fspath(path) for path in (place, data, base, seen, reference, out) if path is not None)
    folder, name = eval_voice.find_evaluated(place, None if recipe is None else os.fspath(recipe), [])
    inference = load_inference(find_recipe(name))
    speech = None if inference.speech is None else inference.speech()
    if not isinstance(speech, SpeechRecipe):
        raise UserError(eval_voice.explain_no_evaluation(place, name))
    from overtone.recipes.speech.evaluation import result_rendering
    from overtone.recipes.speech.evaluation.evaluation_folder import PAGE
    from overtone.recipes.speech.evaluation.voice_evaluation import EvaluationOptions, evaluate_voice

    options = EvaluationOptions(
        data=Path(data),
        checkpoints=join_steps(checkpoints),
        base=None if base is None else os.fspath(base),
        seen=None if seen is None else Path(seen),
        reference=None if reference is None else Path(reference),
        speaker=speaker,
        asr=None if asr is None else os.fspath(asr),
        codec=None if codec is None else os.fspath(codec),
        speaker_model=None if speaker_model is None else os.fspath(speaker_model),
        limit=limit,
        batch=batch,
        greedy=greedy,
        seed=seed,
        max_seconds=max_seconds,
        card=card,
        out=None if out is None else Path(out),
    )
    with free_memory():
        found, results = evaluate_voice(speech, eval_voice.export_at_strength(folder, name, strength), options)
    record = result_rendering.build_record(found)
    return VoiceEvaluation(
        folder=results,
        page=results / PAGE,
        figures=record["figures"],
        verdicts=tuple(sentence.replace("**", "") for sentence in result_rendering.verdicts(found)),
        notes=tuple(record["notes"]),
        record=record,
        report=result_rendering.render_markdown(found),
    )


def join_steps(checkpoints: Sequence[int] | str | None) -> str | None:
    """Steps as the options of the command line have them: `all`, or `100,200`."""
    return checkpoints if checkpoints is None or isinstance(checkpoints, str) else ",".join(map(str, checkpoints))
