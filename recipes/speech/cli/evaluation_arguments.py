"""Arguments of `eval-voice`, and the checks that its own evaluation and published protocols share."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from overtone.data_prep.audio_codecs.interface import SpeakerEncoder, UnsupportedModelError
from overtone.data_prep.audio_codecs.selection import open_speaker_encoder
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import commit_of
from overtone.recipes.ray_generation import add_engine_options, check_engine_options
from overtone.recipes.speech.evaluation import systems
from overtone.recipes.speech.evaluation.systems import System
from overtone.recipes.speech.interface import SpeechRecipe

ABOUT = """Evaluate a voice: intelligibility, speaker similarity, speaking rate, unended speech; and whether training improved them.

overtone eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""
SEED_TTS_EVAL = "seed-tts-eval"
JSON, MARKDOWN, PAGE, CLIPS = "evaluation.json", "evaluation.md", "evaluation.html", "clips"
OWN = re.compile(r"(evaluation|seed-tts-eval)\.(json|md|html)|clips|scores|export-\d+|\..*")
"""Names of everything that an evaluation writes into its folder, temporary files included."""


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="overtone eval-voice --model MODEL", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
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
        help="Whisper model for transcripts, as in `overtone voice --whisper`: a published name, a .pt file, a hub name",
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
        "--out",
        type=Path,
        metavar="FOLDER",
        help="new folder for the report and the clips (default: evaluation in the run, MODEL-evaluation beside an exported model, numbered "
        "if there are some)",
    )
    options = add_protocol_arguments(parser)
    add_engine_options(parser)
    args = parse_arguments(parser, argv)
    check_engine_options(args)
    given = [option for option in options if getattr(args, option.dest) != option.default]
    if args.protocol is None and given:
        raise UserError(f"{given[0].option_strings[0]} is an option of a protocol; add --protocol {SEED_TTS_EVAL}, or remove it")
    return args


def add_protocol_arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of published protocols; returns those that have no meaning without `--protocol`."""
    group = parser.add_argument_group("published protocols")
    group.add_argument(
        "--protocol", choices=[SEED_TTS_EVAL], help="measure as papers do; --data is then the protocol's prompts file, such as en/meta.lst"
    )
    return [
        group.add_argument("--protocol-language", choices=["en", "zh"], default="en", help="language of the prompts (default %(default)s)"),
        group.add_argument(
            "--protocol-asr",
            default="openai/whisper-large-v3",
            metavar="MODEL",
            help="Whisper model of transformers for English, a folder or a hub name; none: no word error rate (default %(default)s)",
        ),
        group.add_argument(
            "--protocol-similarity",
            type=Path,
            metavar="FILE",
            help="weights of the similarity model, wavlm_large_finetune.pth; without it, the similarity is not measured",
        ),
        group.add_argument(
            "--protocol-transcripts",
            type=Path,
            metavar="FILE",
            help="lines name|transcript by another recognizer for the clips of an earlier run in --out, which are not spoken again",
        ),
        group.add_argument("--dnsmos", action="store_true", help="also predict ratings by DNSMOS, with the networks of speechmos"),
    ]


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


def choose_out(model: Path, out: Path | None) -> Path:
    """`--out`, or by default the first folder beside the model that holds no complete evaluation, so that none is ever replaced."""
    if out is not None:
        return out
    first = default_out(model)
    names = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in itertools.count(1))
    return next(folder for folder in names if find_result(folder) is None and not find_others(folder))


def default_out(model: Path) -> Path:
    """Inside a run; beside an exported model, which is published as it is; in the working folder for a model of the hub's cache."""
    if commit_of(model) is not None:
        return Path("evaluation")
    if systems.is_run(model):
        run = model.parent.parent if model.parent.name == "checkpoints" else model
        return run / "evaluation"
    return model.absolute().with_name(f"{model.absolute().name}-evaluation")


def check_out(out: Path, with_clips: bool = False) -> None:
    """Raise `UserError` for a folder with files that no evaluation wrote, or with a complete evaluation; one that was killed is continued
    from its beginning. `with_clips`: the clips of a complete evaluation are needed."""
    if others := find_others(out):
        raise UserError(f"--out {out}: contains files that are not of an evaluation ({others[0]}); choose another folder")
    result = find_result(out)
    if result is not None and not with_clips:
        raise UserError(f"--out {out}: contains an evaluation ({result.name}); choose another folder, or remove this one")


def find_others(out: Path) -> list[str]:
    """Names in a folder of files that no evaluation writes."""
    return [path.name for path in (out.iterdir() if out.is_dir() else [out] if out.exists() else []) if not OWN.fullmatch(path.name)]


def find_result(out: Path) -> Path | None:
    """The result of a complete evaluation in a folder; None without one."""
    return next((path for path in (out / JSON, out / f"{SEED_TTS_EVAL}.json") if path.exists()), None)


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
