"""Evaluate a voice: intelligibility, speaker similarity, speaking rate, unended speech; and whether training improved them.

overtone eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.model_card_metadata import README, add_metadata
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.terminal import print_line
from overtone.recipes.ray_generation import open_engine
from overtone.recipes.speech.cli import seed_tts_protocol
from overtone.recipes.speech.cli.evaluation_arguments import (
    CLIPS,
    JSON,
    MARKDOWN,
    PAGE,
    check_numbers,
    check_out,
    choose_out,
    find_encoder,
    parse,
)
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, result_rendering, results_page, scoring, systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.results import Evaluation
from overtone.recipes.speech.evaluation.systems import RECORDINGS, System, Take
from overtone.recipes.speech.interface import SpeechRecipe, SpeechSampling

if TYPE_CHECKING:
    from overtone.data_prep.parallel.ray_pool import RayWorkers


@dataclass(frozen=True)
class Plan:
    """An evaluation that was checked and can start."""

    recipe: SpeechRecipe
    model: Path
    systems: list[System]
    items: list[Item]
    encoder: SpeakerEncoder | None
    """Of a base model, to measure similarity; None if there is none."""
    notes: list[str]
    args: argparse.Namespace


def evaluate(recipe: SpeechRecipe, model: Path, argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be evaluated, before any model is loaded."""
    args = parse(argv)
    args.out = choose_out(model, args.out)
    if args.protocol is not None:
        return seed_tts_protocol.evaluate_by_protocol(recipe, model, args)
    plan = make_plan(recipe, model, args)
    evaluation = run_plan(plan)
    write_documents(evaluation, plan.args.out)
    if plan.args.card:
        write_results_into_card(evaluation, plan)
    return 0


def make_plan(recipe: SpeechRecipe, model: Path, args: argparse.Namespace) -> Plan:
    """Check the arguments, the systems and every row. Raises `UserError`."""
    check_numbers(args)
    check_out(args.out)
    if args.card:
        check_card(model)
    speaking = systems.find_systems(recipe, model, args.checkpoints)
    speaking += [systems.untrained_system(recipe, resolve_model("--base", args.base))] if args.base else []
    items = load_items(recipe, speaking, args)
    if args.asr is not None:
        intelligibility.check_whisper(args.asr)
    scoring.check_clips(items)
    encoder, notes = find_encoder(recipe, speaking)
    if args.asr is None:
        notes.append("Intelligibility was not measured: no --asr was given.")
    else:
        notes.append(f"WER and CER are by the transcripts of {intelligibility.describe_recognizer(args.asr)}.")
    if args.speaker_model == resemblyzer_encoder.NAME and resemblyzer_encoder.find_weights() is None:
        raise UserError(f"--speaker-model {args.speaker_model}: it is not installed; run: {resemblyzer_encoder.INSTALL}")
    if args.speaker_model is None and resemblyzer_encoder.find_weights() is not None:
        args.speaker_model = resemblyzer_encoder.NAME
    if args.speaker_model is None:
        notes.append(
            f"Similarity by an independent encoder was not measured: run `{resemblyzer_encoder.INSTALL}` (16 MB), "
            "or give --speaker-model microsoft/wavlm-base-plus-sv."
        )
    return Plan(recipe, model, speaking, items, encoder, [*notes, *describe_gaps(items)], args)


def check_card(model: Path) -> None:
    """Raise `UserError` for a model without a model card of its own that can get results."""
    if systems.is_run(model):
        raise UserError(f"--card: {model} is a run, which has no model card; export it, and evaluate the export")
    if commit_of(model) is not None:
        raise UserError(f"--card: {model} was downloaded from the hub; give the folder of the export to --model")
    try:
        add_metadata(input_files.read_text(model / README), {})
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"--card: {model / README} cannot be used ({error}); remove --card") from None


def load_items(recipe: SpeechRecipe, speaking: Sequence[System], args: argparse.Namespace) -> list[Item]:
    """The texts. Raises `UserError` for texts that one of the systems cannot speak."""

    def check(item: Item) -> None:
        for system in speaking:
            systems.check_item(recipe, system, item)

    items = evaluation_items.read_items(args.data, args.speaker, args.reference, check)
    if args.seen is not None:
        items = evaluation_items.mark_seen(items, evaluation_items.read_items(args.seen, args.speaker, args.reference, check))
    return evaluation_items.limit_groups(items, args.limit)


def describe_gaps(items: Sequence[Item]) -> list[str]:
    """A note for each metric that cannot be measured with this data."""
    notes = []
    without = sum(item.recording is None for item in items)
    if without:
        notes.append(f"{without} of {len(items)} texts have no recording to compare their duration with.")
    if len({item.speaker for item in items}) == 1:
        notes.append("The data has one speaker, so the similarity between different speakers, the lower end of the scale, is unknown.")
    return notes


def run_plan(plan: Plan) -> Evaluation:
    """Speak all texts with all systems and measure the clips."""
    args, clips = plan.args, plan.args.out / CLIPS
    encoders = scoring.load_encoders(plan.encoder, args.speaker_model)
    models = scoring.load_scoring_models(plan.items, encoders, args.asr)  # first, so that a problem shows before hours of generation
    for leftover in [clips, *args.out.glob("export-*")]:
        if leftover.exists():
            files.discard(leftover)  # of an earlier evaluation, perhaps of other texts, or of one that was killed
    takes = {RECORDINGS: [Take(item, item.recording, True) for item in plan.items if item.recording]}
    with open_engine(args, args.out, [system.folder for system in plan.systems] + [item.reference for item in plan.items]) as remote:
        takes |= {system.name: speak_all(system, plan, clips / systems.slug(system.name), remote) for system in plan.systems}
    scored = scoring.score_all(takes, models)
    settings = {"model": str(plan.model)} | {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    names = [encoder.name for encoder in encoders]
    notes = [*plan.notes, *scoring.describe_failures(scored, models)]
    return Evaluation(plan.systems, scored, names, scoring.similarity_between_speakers(models), notes, settings)


def speak_all(system: System, plan: Plan, out: Path, remote: RayWorkers | None = None) -> list[Take]:
    """Speak all texts with one system; prints the progress after each batch."""
    args, takes = plan.args, []
    sampling = SpeechSampling(greedy=args.greedy, seed=args.seed, max_seconds=args.max_seconds)
    with systems.open_export(plan.recipe, system, args.out) as folder:
        for take in systems.speak(plan.recipe, system, folder, plan.items, sampling, args.batch, out, remote=remote):
            takes.append(take)
            if len(takes) % args.batch == 0 or len(takes) == len(plan.items):
                print_line(f"{system.name}: {len(takes)} of {len(plan.items)} texts spoken")
    return takes


def write_results_into_card(evaluation: Evaluation, plan: Plan) -> None:
    """Add the results to the header of the export's README.md; an earlier evaluation's are replaced."""
    card = plan.model / README
    judge = "" if plan.args.asr is None else f", transcribed by {intelligibility.describe_recognizer(plan.args.asr)}"
    index = result_rendering.build_model_index(evaluation, f"{plan.args.data.name}{judge}")
    files.write_text(card, add_metadata(input_files.read_text(card), {"model-index": index}))
    print_line(f"{card}: has the results in the hub's form (model-index)")


def write_documents(evaluation: Evaluation, out: Path) -> None:
    """Write JSON, Markdown and HTML; print the verdicts."""
    files.write_text(out / MARKDOWN, result_rendering.render_markdown(evaluation))
    files.write_text(out / PAGE, results_page.render(evaluation))
    files.write_json(out / JSON, result_rendering.build_record(evaluation))  # last: it marks the evaluation as complete
    for sentence in result_rendering.verdicts(evaluation):
        print_line(sentence.replace("**", ""))
    print_line(f"{out / PAGE}: open it in a browser; {MARKDOWN} and {JSON} in the same folder have the figures")
