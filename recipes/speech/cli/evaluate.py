"""Evaluate a voice: intelligibility, speaker similarity, speaking rate, unended speech; and whether training improved them.

python -m finetune eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio_codecs.interface import SpeakerEncoder, UnsupportedModelError
from data_prep.audio_codecs.selection import open_speaker_encoder
from finetune.errors import UserError
from finetune.exporting.model_metadata import README, add_metadata
from finetune.storage import files
from finetune.storage.hub_download import commit_of
from finetune.storage.model_resolver import resolve_model
from recipes.speech.evaluation import evaluation_texts, intelligibility, resemblyzer_encoder, result_files, results_page, scoring, systems
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.results import Evaluation
from recipes.speech.evaluation.systems import RECORDINGS, System, Take
from recipes.speech.interface import SpeechRecipe, SpeechSampling

JSON, MARKDOWN, PAGE, CLIPS = "evaluation.json", "evaluation.md", "evaluation.html", "clips"
OWN = re.compile(r"evaluation\.(json|md|html)|clips|export-\d+|\..*")
"""Names of everything that an evaluation writes into its folder, temporary files included."""


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
    plan = make_plan(recipe, model, parse(argv))
    evaluation = run_plan(plan)
    write_documents(evaluation, plan.args.out)
    if plan.args.card:
        write_results_into_card(evaluation, plan)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune eval-voice --model MODEL", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="texts to speak, with recordings or without")
    parser.add_argument("--checkpoints", metavar="all|STEP,STEP", help="checkpoints of a run (default: its newest)")
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="the Base model before training, a folder or a hub name, to compare with; it clones each row's ref_audio",
    )
    parser.add_argument("--seen", type=Path, metavar="TRAIN.jsonl", help="training data; texts are then reported as seen or unseen")
    parser.add_argument("--reference", type=Path, metavar="CLIP", help="reference clip for rows without ref_audio")
    parser.add_argument("--speaker", help="speaker of rows without a speaker")
    parser.add_argument(
        "--asr",
        metavar="MODEL",
        help="Whisper model for transcripts, as in data_prep --whisper: a published name, a .pt file, a hub name",
    )
    parser.add_argument(
        "--speaker-model",
        metavar="MODEL",
        help="independent speaker encoder: an x-vector model of transformers, or resemblyzer (default: resemblyzer, if it is installed)",
    )
    parser.add_argument("--limit", type=int, help="maximum number of texts of each set, evenly spaced (default: all)")
    parser.add_argument("--batch", type=int, default=8, help="texts per batch (default %(default)s)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely token instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default %(default)s)")
    parser.add_argument(
        "--max-seconds", type=float, default=30.0, help="time limit; longer speech is cut off and counted (default %(default)g)"
    )
    parser.add_argument("--card", action="store_true", help="also write the results into the model card (README.md) of the export")
    parser.add_argument(
        "--out", type=Path, default=Path("evaluation"), metavar="FOLDER", help="folder for the report and the clips (default %(default)s)"
    )
    return parser.parse_args(argv)


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


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `UserError` for a number that is too small, and for a reference clip that is missing."""
    for name, least in (("limit", 1), ("batch", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: must be at least {least}")
    if args.max_seconds <= 0:
        raise UserError(f"--max-seconds {args.max_seconds:g}: must be more than 0")
    if args.reference is not None and not args.reference.is_file():
        raise UserError(f"--reference {args.reference}: no such file")


def check_out(out: Path) -> None:
    """Raise `UserError` for a folder with files that no evaluation wrote. Those of an earlier evaluation are replaced."""
    others = [path.name for path in (out.iterdir() if out.is_dir() else [out] if out.exists() else []) if not OWN.fullmatch(path.name)]
    if others:
        raise UserError(f"--out {out}: contains files that are not of an evaluation ({others[0]}); choose another folder")


def check_card(model: Path) -> None:
    """Raise `UserError` for a model without a model card of its own that can get results."""
    if systems.is_run(model):
        raise UserError(f"--card: {model} is a run, which has no model card; export it, and evaluate the export")
    if commit_of(model) is not None:
        raise UserError(f"--card: {model} was downloaded from the hub; give the folder of the export to --model")
    try:
        add_metadata((model / README).read_text(encoding="utf-8"), {})
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"--card: {model / README} cannot be used ({error}); remove --card") from None


def load_items(recipe: SpeechRecipe, speaking: Sequence[System], args: argparse.Namespace) -> list[Item]:
    """The texts. Raises `UserError` for texts that one of the systems cannot speak."""

    def check(item: Item) -> None:
        for system in speaking:
            systems.check_item(recipe, system, item)

    items = evaluation_texts.read_items(args.data, args.speaker, args.reference, check)
    if args.seen is not None:
        items = evaluation_texts.mark_seen(items, evaluation_texts.read_items(args.seen, args.speaker, args.reference, check))
    return evaluation_texts.limit_groups(items, args.limit)


def find_encoder(recipe: SpeechRecipe, speaking: Sequence[System]) -> tuple[SpeakerEncoder | None, list[str]]:
    """The speaker encoder of a base model, or None; and if there is none, a note with the reason. Raises `UserError` if its weights are
    damaged."""
    reasons = []
    for system in reversed(speaking):  # the base of --base is last
        try:
            folder = systems.find_encoder_folder(recipe, system)
        except UserError as error:
            reasons.append(str(error))
            continue
        try:
            return open_speaker_encoder(str(folder), "--base" if system.way == "cloned" else f"base of {system.name}"), []
        except UnsupportedModelError as error:  # but damaged weights end the evaluation, since the user expects this similarity
            reasons.append(str(error))
    return None, [f"Similarity by the model's own encoder was not measured: {reasons[-1]}"]


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
    takes |= {system.name: speak_all(system, plan, clips / systems.slug(system.name)) for system in plan.systems}
    scored = scoring.score_all(takes, models)
    settings = {"model": str(plan.model)} | {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    names = [encoder.name for encoder in encoders]
    notes = [*plan.notes, *scoring.describe_failures(scored, models)]
    return Evaluation(plan.systems, scored, names, scoring.similarity_between_speakers(models), notes, settings)


def speak_all(system: System, plan: Plan, out: Path) -> list[Take]:
    """Speak all texts with one system; prints the progress after each batch."""
    args, takes = plan.args, []
    sampling = SpeechSampling(greedy=args.greedy, seed=args.seed, max_seconds=args.max_seconds)
    with systems.open_export(plan.recipe, system, args.out) as folder:
        for take in systems.speak(plan.recipe, system, folder, plan.items, sampling, args.batch, out):
            takes.append(take)
            if len(takes) % args.batch == 0 or len(takes) == len(plan.items):
                print(f"{system.name}: {len(takes)} of {len(plan.items)} texts spoken", flush=True)
    return takes


def write_results_into_card(evaluation: Evaluation, plan: Plan) -> None:
    """Add the results to the header of the export's README.md; an earlier evaluation's are replaced."""
    card = plan.model / README
    index = result_files.build_model_index(evaluation, plan.args.data.name)
    files.write_text(card, add_metadata(card.read_text(encoding="utf-8"), {"model-index": index}))
    print(f"{card}: has the results in the hub's form (model-index)")


def write_documents(evaluation: Evaluation, out: Path) -> None:
    """Write JSON, Markdown and HTML; print the verdicts."""
    files.write_json(out / JSON, result_files.build_record(evaluation))
    files.write_text(out / MARKDOWN, result_files.render_markdown(evaluation))
    files.write_text(out / PAGE, results_page.render(evaluation))
    for sentence in result_files.verdicts(evaluation):
        print(sentence.replace("**", ""))
    print(f"{out / PAGE}: open it in a browser; {MARKDOWN} and {JSON} in the same folder have the figures")
