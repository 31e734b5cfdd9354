"""An evaluation of a voice: every text is spoken by the model, its checkpoints or its base, and all clips are measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.audio_codecs.interface import Codec, SpeakerEncoder
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.model_card_metadata import README, add_metadata
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.terminal import print_line
from overtone.recipes.ray_generation import GenerationEngine, open_engine
from overtone.recipes.speech.evaluation import (
    codec_reconstruction,
    evaluation_items,
    intelligibility,
    result_rendering,
    results_page,
    scoring,
    systems,
)
from overtone.recipes.speech.evaluation.evaluation_folder import CLIPS, JSON, MARKDOWN, PAGE, check_out, choose_out
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.results import Evaluation
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC, System, Take
from overtone.recipes.speech.interface import SpeechRecipe, SpeechSampling

if TYPE_CHECKING:
    from overtone.data_prep.parallel.ray_pool import RayWorkers


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation; the fields are the flags of `overtone eval-voice`, whose help describes them."""

    data: Path
    checkpoints: str | None = None
    base: str | None = None
    seen: Path | None = None
    reference: Path | None = None
    speaker: str | None = None
    asr: str | None = None
    codec: str | None = None
    speaker_model: str | None = None
    limit: int | None = None
    batch: int = 8
    greedy: bool = False
    seed: int = 0
    max_seconds: float = 30.0
    card: bool = False
    out: Path | None = None
    engine: GenerationEngine = dataclasses.field(default_factory=GenerationEngine)


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation that was checked and can start."""

    recipe: SpeechRecipe
    model: Path
    systems: list[System]
    items: list[Item]
    encoder: SpeakerEncoder | None
    """Encoder of a base model, to measure similarity; None if there is none."""
    speaker_model: str | None
    """The independent speaker encoder; None: there is none."""
    codec: Codec | None
    """The codec that the recordings are sent through; None: there is none."""
    notes: list[str]
    out: Path
    options: EvaluationOptions


def evaluate_voice(recipe: SpeechRecipe, model: Path, options: EvaluationOptions) -> tuple[Evaluation, Path]:
    """Evaluate a run, a checkpoint or an exported model, and write the result files; returns the results and the folder with the files.

    Raises `UserError` for what cannot be evaluated, before any model is loaded.
    """
    plan = make_plan(recipe, model, options)
    evaluation = run_plan(plan)
    write_documents(evaluation, plan.out)
    if options.card:
        write_results_into_card(evaluation, plan)
    return evaluation, plan.out


def make_plan(recipe: SpeechRecipe, model: Path, options: EvaluationOptions) -> EvaluationPlan:
    """Check the options, the systems and every row. Raises `UserError`."""
    check_numbers(options.limit, options.batch, options.max_seconds, options.reference)
    out = choose_out(model, options.out)
    check_out(out)
    if options.card:
        check_card(model)
    speaking = systems.find_systems(recipe, model, options.checkpoints)
    notes = list[str]()
    if options.base is not None:
        folder = resolve_model("--base", options.base)
        speakers = evaluation_items.list_speakers(filter(None, (options.data, options.seen)), options.speaker)
        base, note = systems.find_base(recipe, folder, speakers, speaking)
        print_line(note)
        speaking, notes = [*speaking, base], [note]
    speaking = systems.number_repeated(speaking)
    items = load_items(recipe, speaking, options)
    for unspoken in evaluation_items.describe_unspoken(items):
        print_line(unspoken)
        notes.append(unspoken)
    if options.asr is not None:
        intelligibility.check_whisper(options.asr)
    scoring.check_clips(items)
    codec = None if options.codec is None else open_codec(options.codec, "--codec")
    if codec is not None and not any(item.recording for item in items):
        raise UserError(f'--codec {options.codec}: no row of {options.data} has a recording ("audio") to encode; remove --codec')
    encoder, unmeasured = systems.find_encoder(recipe, speaking)
    notes += unmeasured
    if options.asr is None:
        notes.append("Intelligibility was not measured: no --asr was given.")
    else:
        notes.append(intelligibility.name_judge(options.asr))
    speaker_model, installed = options.speaker_model, resemblyzer_encoder.find_weights() is not None
    if speaker_model == resemblyzer_encoder.NAME and not installed:
        raise UserError(f"--speaker-model {speaker_model}: it is not installed; run: {resemblyzer_encoder.INSTALL}")
    if speaker_model is None and installed:
        speaker_model = resemblyzer_encoder.NAME
    if speaker_model is None:
        notes.append(
            f"Similarity by an independent encoder was not measured: run `{resemblyzer_encoder.INSTALL}` (16 MB), "
            "or give --speaker-model microsoft/wavlm-base-plus-sv."
        )
    notes += describe_gaps(items)
    return EvaluationPlan(recipe, model, speaking, items, encoder, speaker_model, codec, notes, out, options)


def check_numbers(limit: int | None, batch: int, max_seconds: float, reference: Path | None) -> None:
    """Raises `UserError` for a number that is out of range, and for a reference clip that is missing."""
    for name, value in (("limit", limit), ("batch", batch)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: must be at least 1")
    if not 0 < max_seconds < math.inf:
        raise UserError(f"--max-seconds {max_seconds:g}: must be more than 0 and finite")
    if reference is not None and not reference.is_file():
        raise UserError(f"--reference {reference}: no such file")


def check_card(model: Path) -> None:
    """Raises `UserError` for a model without a model card of its own that can get results."""
    if systems.is_run(model):
        raise UserError(f"--card: {model} is a run, which has no model card; export it, and evaluate the export")
    if commit_of(model) is not None:
        raise UserError(f"--card: {model} was downloaded from the hub; give the folder of the export to --model")
    try:
        add_metadata(input_files.read_text(model / README), {})
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"--card: {model / README} cannot be used ({error}); remove --card") from None


def load_items(recipe: SpeechRecipe, speaking: Sequence[System], options: EvaluationOptions) -> list[Item]:
    """The texts. Raises `UserError` for texts that one of the systems cannot speak."""

    def check(item: Item) -> None:
        for system in speaking:
            systems.check_item(recipe, system, item)

    items = evaluation_items.read_items(options.data, options.speaker, options.reference, check)
    if options.seen is not None:
        items = evaluation_items.mark_seen(items, evaluation_items.read_items(options.seen, options.speaker, options.reference, check))
    return evaluation_items.limit_groups(items, options.limit)


def describe_gaps(items: Sequence[Item]) -> list[str]:
    """A note for each metric that cannot be measured with this data."""
    notes = []
    without = sum(item.recording is None for item in items)
    if without:
        notes.append(f"{without} of {len(items)} texts have no recording to compare their duration with.")
    if len({item.speaker for item in items}) == 1:
        notes.append("The data has one speaker, so the similarity between different speakers, the lower end of the scale, is unknown.")
    return notes


def run_plan(plan: EvaluationPlan) -> Evaluation:
    """Speak all texts with all systems and measure the clips."""
    options, clips = plan.options, plan.out / CLIPS
    encoders = scoring.load_encoders(plan.encoder, plan.speaker_model)
    models = scoring.load_scoring_models(plan.items, encoders, options.asr)  # first, so that a problem shows before hours of generation
    for leftover in [clips, *plan.out.glob("export-*")]:
        if leftover.exists():
            files.discard(leftover)  # of an earlier evaluation, perhaps of other texts, or of one that was killed
    takes = {RECORDINGS: [Take(item, item.recording, True) for item in plan.items if item.recording]}
    if plan.codec is not None:
        coded = codec_reconstruction.reconstruct_recordings(takes[RECORDINGS], plan.codec, clips / systems.slug(THROUGH_CODEC))
        takes[THROUGH_CODEC] = coded
        print_line(f"{THROUGH_CODEC}: {len(coded)} of {len(takes[RECORDINGS])} recordings decoded")
    with open_engine(
        options.engine, plan.out, [system.folder for system in plan.systems] + [item.reference for item in plan.items]
    ) as remote:
        takes |= {system.name: speak_all(system, plan, clips / systems.slug(system.name), remote) for system in plan.systems}
    scored = scoring.score_all(takes, models)
    names = [encoder.name for encoder in encoders]
    notes = [*plan.notes, *scoring.describe_failures(scored, models)]
    return Evaluation(plan.systems, scored, names, scoring.similarity_between_speakers(models), notes, describe_settings(plan))


def describe_settings(plan: EvaluationPlan) -> dict[str, object]:
    """The model and all options, for the result files."""
    used = dataclasses.replace(plan.options, speaker_model=plan.speaker_model, out=plan.out)
    given = {"model": plan.model, **vars(used), **vars(used.engine)}  # the name of the engine in place of the object
    return {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}


def speak_all(system: System, plan: EvaluationPlan, out: Path, remote: RayWorkers | None = None) -> list[Take]:
    """Speak all texts with one system; prints the progress after each batch."""
    options, takes = plan.options, []
    sampling = SpeechSampling(greedy=options.greedy, seed=options.seed, max_seconds=options.max_seconds)
    with systems.open_export(plan.recipe, system, plan.out) as folder:
        for take in systems.speak(plan.recipe, system, folder, plan.items, sampling, options.batch, out, remote=remote):
            takes.append(take)
            if len(takes) % options.batch == 0 or len(takes) == len(plan.items):
                print_line(f"{system.name}: {len(takes)} of {len(plan.items)} texts spoken")
    return takes


def write_results_into_card(evaluation: Evaluation, plan: EvaluationPlan) -> None:
    """Add the results to the header of the export's README.md; an earlier evaluation's are replaced."""
    card = plan.model / README
    judge = "" if plan.options.asr is None else f", transcribed by {intelligibility.describe_recognizer(plan.options.asr)}"
    index = result_rendering.build_model_index(evaluation, f"{plan.options.data.name}{judge}")
    files.write_text(card, add_metadata(input_files.read_text(card), {"model-index": index}))
    print_line(f"{card}: has the results in the hub's form (model-index)")


def write_documents(evaluation: Evaluation, out: Path) -> None:
    """Write JSON, Markdown and HTML."""
    files.write_text(out / MARKDOWN, result_rendering.render_markdown(evaluation))
    files.write_text(out / PAGE, results_page.render(evaluation))
    files.write_json(out / JSON, result_rendering.build_record(evaluation))  # last: it marks the evaluation as complete
