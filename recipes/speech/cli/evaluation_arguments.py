"""Arguments of `eval-voice`."""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.recipes.ray_generation import add_engine_options, read_engine
from overtone.recipes.speech.evaluation.evaluation_folder import SEED_TTS_EVAL

ABOUT = """Evaluate a voice: intelligibility, speaker similarity, speaking rate, unended speech; and whether training improved them.

overtone eval-voice --model exports/me --data data/me/val.jsonl --asr small --base BASE_FOLDER --seen data/me/train.jsonl
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="overtone eval-voice --model MODEL",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="texts to speak, with recordings or without")
    parser.add_argument("--checkpoints", metavar="all|STEP,STEP", help="checkpoints of a run (default: its newest)")
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="the model before training, a folder or a hub name, to compare with: an export that names the rows' speakers speaks by name, "
        "another model clones each row's ref_audio",
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
        "--codec",
        metavar="MODEL",
        help="also measure the recordings through the codec of this model, as for `overtone codes --model`: the best that a model of its "
        "codes can reach",
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
    read_engine(args)
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
