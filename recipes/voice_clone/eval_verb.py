"""Evaluate a voice: is it understood, does it sound like the speaker, does it keep the pace, does it end; and did training help?

python -m finetune eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune import files, shipped
from finetune.errors import UserError

from . import eval_hearing as hearing
from . import eval_likeness as likeness
from . import eval_listening as listening
from . import eval_rows as rows
from . import eval_systems as systems
from .eval_outcome import Evaluation
from .eval_rows import Item
from .eval_systems import RECORDINGS, System, Take
from .sampling import Sampling

JSON, MARKDOWN, PAGE, CLIPS = "evaluation.json", "evaluation.md", "evaluation.html", "clips"
OWN = re.compile(r"evaluation\.(json|md|html)|clips|export-\d+|\..*")
"""What an evaluation leaves in its folder, at whatever moment it ends."""


@dataclass(frozen=True)
class Plan:
    """What will be done, checked before any model is loaded."""

    model: Path
    systems: list[System]
    items: list[Item]
    encoder: Path | None
    """A base whose own speaker encoder listens."""
    notes: list[str]
    asked: argparse.Namespace


def evaluate(model: Path, argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be evaluated, before any model is loaded."""
    plan = planned(model, parse(argv))
    write(evaluated(plan), plan.asked.out)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune eval-voice --model FOLDER", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="texts to say, with recordings or without")
    parser.add_argument("--checkpoints", metavar="all|STEP,STEP", help="of a run, instead of its newest")
    parser.add_argument("--base", type=shipped.as_folder, metavar="FOLDER", help="the Base before training: it clones each row's ref_audio")
    parser.add_argument("--seen", type=Path, metavar="TRAIN.jsonl", help="the training data: tells known texts from new ones")
    parser.add_argument("--reference", type=Path, metavar="CLIP", help="for rows without ref_audio")
    parser.add_argument("--speaker", help="for rows that name none")
    parser.add_argument("--asr", metavar="MODEL", help="Whisper that listens: a published name or a .pt file, as in data_prep --whisper")
    parser.add_argument("--speaker-model", metavar="MODEL", help="independent speaker encoder: an x-vector model of transformers")
    parser.add_argument("--limit", type=int, help="at most so many texts of each set, evenly picked")
    parser.add_argument("--batch", type=int, default=8, help="texts spoken at a time")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="what lasts longer is cut off, and counted")
    parser.add_argument("--out", type=Path, default=Path("evaluation"), metavar="FOLDER", help="for the report and the clips")
    return parser.parse_args(argv)


def planned(model: Path, asked: argparse.Namespace) -> Plan:
    """Everything that can be refused is refused here."""
    check_numbers(asked)
    check_out(asked.out)
    speaking = systems.find(model, asked.checkpoints) + ([systems.untrained(asked.base)] if asked.base else [])
    items = items_of(speaking, asked)
    if asked.asr is not None:
        hearing.check(asked.asr)
    listening.refuse_unusable(items)
    encoder, notes = encoder_of(speaking)
    if asked.asr is None:
        notes.append("Intelligibility was not measured: no --asr was given.")
    if asked.speaker_model is None:
        notes.append(
            f"{likeness.SPECTRAL} stand in for an independent speaker encoder; give --speaker-model microsoft/wavlm-base-plus-sv for one."
        )
    return Plan(model, speaking, items, encoder, [*notes, *data_notes(items)], asked)


def check_numbers(asked: argparse.Namespace) -> None:
    """Raises `UserError` for a number or a file that makes no sense."""
    for name, least in (("limit", 1), ("batch", 1)):
        value = getattr(asked, name)
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: at least {least}")
    if asked.max_seconds <= 0:
        raise UserError(f"--max-seconds {asked.max_seconds:g}: more than 0")
    if asked.reference is not None and not asked.reference.is_file():
        raise UserError(f"--reference {asked.reference}: no such file")


def check_out(out: Path) -> None:
    """Raises `UserError` for a folder that holds anything but an evaluation, whole or begun, which a new one replaces."""
    strange = [path.name for path in (out.iterdir() if out.is_dir() else [out] if out.exists() else []) if not OWN.fullmatch(path.name)]
    if strange:
        raise UserError(f"--out {out}: exists and is no evaluation ({strange[0]} is in it); choose another folder")


def items_of(speaking: Sequence[System], asked: argparse.Namespace) -> list[Item]:
    """The texts, each of which every system can say."""

    def check(item: Item) -> None:
        for system in speaking:
            systems.refuse(system, item)

    items = rows.read(asked.data, asked.speaker, asked.reference, check)
    if asked.seen is not None:
        items = rows.divided(items, rows.read(asked.seen, asked.speaker, asked.reference, check))
    return rows.limited(items, asked.limit)


def encoder_of(speaking: Sequence[System]) -> tuple[Path | None, list[str]]:
    """A base with a speaker encoder, and why there is none."""
    from data_prep import speaker_encoder

    reasons = []
    for system in reversed(speaking):  # the base that was given comes last
        try:
            folder = systems.encoder_folder(system)
            speaker_encoder.base_config(folder)
            return folder, []
        except UserError as error:
            reasons.append(str(error))
    return None, [f"Similarity by the model's own encoder was not measured: {reasons[-1]}"]


def data_notes(items: Sequence[Item]) -> list[str]:
    """What the data itself leaves unknown."""
    notes = []
    without = sum(item.recording is None for item in items)
    if without:
        notes.append(f"{without} of {len(items)} texts have no recording: nothing to hold their duration to.")
    if len({item.speaker for item in items}) == 1:
        notes.append("The data has one speaker: how like strangers are is not known, so a similarity has no lower end.")
    return notes


def evaluated(plan: Plan) -> Evaluation:
    """Speak, listen, compare."""
    asked, clips = plan.asked, plan.asked.out / CLIPS
    for left in [clips, *asked.out.glob("export-*")]:
        if left.exists():
            files.discard(left)  # of an older evaluation, whose texts may have been others, or of one that was killed
    encoders = listening.encoders_of(plan.encoder, asked.speaker_model)
    panel = listening.panel(plan.items, encoders, asked.asr)  # before hours of speech, after which a problem would come late
    takes = {RECORDINGS: [Take(item, item.recording, True) for item in plan.items if item.recording]}
    takes |= {system.name: spoken(system, plan, clips / systems.slug(system.name)) for system in plan.systems}
    scored = listening.score_all(takes, panel)
    settings = {"model": str(plan.model)} | {key: str(value) if isinstance(value, Path) else value for key, value in vars(asked).items()}
    names = [encoder.name for encoder in encoders]
    return Evaluation(plan.systems, scored, names, listening.strangers(panel), [*plan.notes, *listening.notes(scored, panel)], settings)


def spoken(system: System, plan: Plan, out: Path) -> list[Take]:
    """All texts said by one system, with a line of progress each time it has said a batch."""
    asked, takes = plan.asked, []
    sampling = Sampling(greedy=asked.greedy, seed=asked.seed, max_seconds=asked.max_seconds)
    with systems.opened(system, asked.out) as folder:
        for take in systems.speak(system, folder, plan.items, sampling, asked.batch, out):
            takes.append(take)
            if len(takes) % asked.batch == 0 or len(takes) == len(plan.items):
                print(f"{system.name}: {len(takes)} of {len(plan.items)} texts spoken", flush=True)
    return takes


def write(evaluation: Evaluation, out: Path) -> None:
    """The three documents, and their verdicts on the console."""
    from . import eval_documents, eval_page

    files.write_json(out / JSON, eval_documents.record(evaluation))
    files.write_text(out / MARKDOWN, eval_documents.markdown(evaluation))
    files.write_text(out / PAGE, eval_page.render(evaluation))
    for sentence in eval_documents.verdicts(evaluation):
        print(sentence.replace("**", ""))
    print(f"{out / PAGE}: open it in a browser; the figures are in {MARKDOWN} and {JSON} beside it")
