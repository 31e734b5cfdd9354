"""Evaluate a voice: is it intelligible, does it sound like the speaker, does it keep the pace, does it end; and did training help?

python -m finetune eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio_codecs.interface import SpeakerEncoder
from data_prep.audio_codecs.selection import open_speaker_encoder
from finetune.errors import UserError
from finetune.storage import demo_models, files
from recipes.speech.evaluation import evaluation_texts as rows
from recipes.speech.evaluation import intelligibility as hearing
from recipes.speech.evaluation import scoring as listening
from recipes.speech.evaluation import speaker_similarity as likeness
from recipes.speech.evaluation import systems
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.results import Evaluation
from recipes.speech.evaluation.systems import RECORDINGS, System, Take
from recipes.speech.voice import SpeechRecipe, SpeechSampling

JSON, MARKDOWN, PAGE, CLIPS = "evaluation.json", "evaluation.md", "evaluation.html", "clips"
OWN = re.compile(r"evaluation\.(json|md|html)|clips|export-\d+|\..*")
"""Everything that an evaluation leaves in its folder, even if it is killed."""


@dataclass(frozen=True)
class Plan:
    """An evaluation that was checked and can start."""

    recipe: SpeechRecipe
    model: Path
    systems: list[System]
    items: list[Item]
    encoder: SpeakerEncoder | None
    """Of a base model, to measure similarity; None: there is none."""
    notes: list[str]
    args: argparse.Namespace


def evaluate(recipe: SpeechRecipe, model: Path, argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be evaluated, before any model is loaded."""
    plan = make_plan(recipe, model, parse(argv))
    write_documents(run_plan(plan), plan.args.out)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune eval-voice --model FOLDER", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="texts to speak, with recordings or without")
    parser.add_argument("--checkpoints", metavar="all|STEP,STEP", help="checkpoints of a run (default: its newest)")
    parser.add_argument(
        "--base",
        type=demo_models.as_folder,
        metavar="FOLDER",
        help="the Base before training, to compare with: it clones each row's ref_audio",
    )
    parser.add_argument("--seen", type=Path, metavar="TRAIN.jsonl", help="the training data: separates seen texts from unseen ones")
    parser.add_argument("--reference", type=Path, metavar="CLIP", help="reference clip for rows without ref_audio")
    parser.add_argument("--speaker", help="speaker of rows that name none")
    parser.add_argument(
        "--asr", metavar="MODEL", help="Whisper that transcribes: a published name or a .pt file, as in data_prep --whisper"
    )
    parser.add_argument("--speaker-model", metavar="MODEL", help="independent speaker encoder: an x-vector model of transformers")
    parser.add_argument("--limit", type=int, help="most texts of each set, evenly picked (default: all)")
    parser.add_argument("--batch", type=int, default=8, help="texts per batch (default %(default)s)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely token instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="longer speech is cut off, and counted (default %(default)g)")
    parser.add_argument("--out", type=Path, default=Path("evaluation"), metavar="FOLDER", help="folder for the report and the clips")
    return parser.parse_args(argv)


def make_plan(recipe: SpeechRecipe, model: Path, args: argparse.Namespace) -> Plan:
    """Check the arguments, the systems and every row. Raises `UserError`."""
    check_numbers(args)
    check_out(args.out)
    speaking = systems.find_systems(recipe, model, args.checkpoints)
    speaking += [systems.untrained_system(recipe, args.base)] if args.base else []
    items = load_items(recipe, speaking, args)
    if args.asr is not None:
        hearing.check(args.asr)
    listening.check_clips(items)
    encoder, notes = find_encoder(recipe, speaking)
    if args.asr is None:
        notes.append("Intelligibility was not measured: no --asr was given.")
    if args.speaker_model is None:
        notes.append(
            f"{likeness.SPECTRAL} stand in for an independent speaker encoder; give --speaker-model microsoft/wavlm-base-plus-sv for one."
        )
    return Plan(recipe, model, speaking, items, encoder, [*notes, *describe_gaps(items)], args)


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `UserError` for a number that is too small, and for a reference clip that is missing."""
    for name, least in (("limit", 1), ("batch", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: at least {least}")
    if args.max_seconds <= 0:
        raise UserError(f"--max-seconds {args.max_seconds:g}: more than 0")
    if args.reference is not None and not args.reference.is_file():
        raise UserError(f"--reference {args.reference}: no such file")


def check_out(out: Path) -> None:
    """Raise `UserError` for a folder that holds anything but an evaluation, complete or not, which a new one replaces."""
    others = [path.name for path in (out.iterdir() if out.is_dir() else [out] if out.exists() else []) if not OWN.fullmatch(path.name)]
    if others:
        raise UserError(f"--out {out}: exists and is no evaluation ({others[0]} is in it); choose another folder")


def load_items(recipe: SpeechRecipe, speaking: Sequence[System], args: argparse.Namespace) -> list[Item]:
    """The texts. Raises `UserError` for texts that one of the systems cannot speak."""

    def check(item: Item) -> None:
        for system in speaking:
            systems.check_item(recipe, system, item)

    items = rows.read_items(args.data, args.speaker, args.reference, check)
    if args.seen is not None:
        items = rows.mark_seen(items, rows.read_items(args.seen, args.speaker, args.reference, check))
    return rows.limit_groups(items, args.limit)


def find_encoder(recipe: SpeechRecipe, speaking: Sequence[System]) -> tuple[SpeakerEncoder | None, list[str]]:
    """(the speaker encoder of a base model, or None; a note that says why there is none)."""
    reasons = []
    for system in reversed(speaking):  # the base that was given comes last
        try:
            return open_speaker_encoder(str(systems.find_encoder_folder(recipe, system)), "--base"), []
        except UserError as error:
            reasons.append(str(error))
    return None, [f"Similarity by the model's own encoder was not measured: {reasons[-1]}"]


def describe_gaps(items: Sequence[Item]) -> list[str]:
    """A note for everything that the data does not allow to measure."""
    notes = []
    without = sum(item.recording is None for item in items)
    if without:
        notes.append(f"{without} of {len(items)} texts have no recording to compare their duration with.")
    if len({item.speaker for item in items}) == 1:
        notes.append("The data has one speaker, so the similarity of other speakers, the lower end of the scale, is unknown.")
    return notes


def run_plan(plan: Plan) -> Evaluation:
    """Speak all texts with all systems and measure the clips."""
    args, clips = plan.args, plan.args.out / CLIPS
    for leftover in [clips, *args.out.glob("export-*")]:
        if leftover.exists():
            files.discard(leftover)  # of an older evaluation, whose texts may have been others, or of one that was killed
    encoders = listening.load_encoders(plan.encoder, args.speaker_model)
    listeners = listening.load_listeners(plan.items, encoders, args.asr)  # first: a problem should not show after hours of speech
    takes = {RECORDINGS: [Take(item, item.recording, True) for item in plan.items if item.recording]}
    takes |= {system.name: speak_all(system, plan, clips / systems.slug(system.name)) for system in plan.systems}
    scored = listening.score_all(takes, listeners)
    settings = {"model": str(plan.model)} | {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    names = [encoder.name for encoder in encoders]
    notes = [*plan.notes, *listening.describe_failures(scored, listeners)]
    return Evaluation(plan.systems, scored, names, listening.similarity_of_strangers(listeners), notes, settings)


def speak_all(system: System, plan: Plan, out: Path) -> list[Take]:
    """Speak all texts with one system; prints a line of progress after each batch."""
    args, takes = plan.args, []
    sampling = SpeechSampling(greedy=args.greedy, seed=args.seed, max_seconds=args.max_seconds)
    with systems.open_export(plan.recipe, system, args.out) as folder:
        for take in systems.speak(plan.recipe, system, folder, plan.items, sampling, args.batch, out):
            takes.append(take)
            if len(takes) % args.batch == 0 or len(takes) == len(plan.items):
                print(f"{system.name}: {len(takes)} of {len(plan.items)} texts spoken", flush=True)
    return takes


def write_documents(evaluation: Evaluation, out: Path) -> None:
    """Write JSON, Markdown and page; print the verdicts."""
    from recipes.speech.evaluation import result_files, results_page

    files.write_json(out / JSON, result_files.build_record(evaluation))
    files.write_text(out / MARKDOWN, result_files.render_markdown(evaluation))
    files.write_text(out / PAGE, results_page.render(evaluation))
    for sentence in result_files.verdicts(evaluation):
        print(sentence.replace("**", ""))
    print(f"{out / PAGE}: open it in a browser; the figures are in {MARKDOWN} and {JSON} beside it")
