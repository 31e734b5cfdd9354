"""Make pairs of clips for preference optimization: a voice speaks each text several times, and a judge compares the clips.

overtone pairs exports/me --texts lines.txt --data data/me/val.jsonl --asr small --out data/me_pairs
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.cli.generate import GenerateCommand, make_from_options
from overtone.recipes.speech.cli.select_voice import parse_weights
from overtone.recipes.speech.preferences import pair_dataset
from overtone.recipes.speech.preferences.pair_dataset import PairOptions
from overtone.recipes.speech.preferences.pair_selection import MARGIN, MAX_WER
from overtone.recipes.speech.preferences.reward_weights import RewardWeights
from overtone.recipes.speech.sampling_settings import check_numbers


def parse(command: GenerateCommand, argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments. Raises `UserError` for numbers out of range."""
    parser = argparse.ArgumentParser(
        prog="overtone pairs MODEL", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE", help="texts to speak, one per line, or .jsonl")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="ROWS.jsonl", help="rows with recordings, for similarity and pace of the speakers"
    )
    parser.add_argument("--asr", required=True, metavar="MODEL", help="Whisper model for transcripts, as in eval-voice: small, a .pt file")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder, or one that this verb did not finish")
    parser.add_argument("--speaker", help="speaker of rows and lines without a speaker")
    parser.add_argument(
        "--speaker-model",
        metavar="MODEL",
        help="independent speaker encoder, as in eval-voice (default: resemblyzer, if it is installed, else that of the base)",
    )
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="clips of each text (default %(default)s)")
    parser.add_argument("--margin", type=float, default=MARGIN, help="least difference of the rewards of a pair (default %(default)g)")
    parser.add_argument(
        "--max-wer", type=float, default=MAX_WER, help="largest WER of the better clip, which must also end well (default %(default)g)"
    )
    weights = " ".join(f"{name}={value:g}" for name, value in RewardWeights().model_dump().items())
    parser.add_argument("--weights", nargs="+", default=[], metavar="MEASURE=W", help=f"of the measures in the reward (default: {weights})")
    parser.add_argument(
        "--val-share",
        type=float,
        default=PairOptions.val_share,
        help="share of the texts to validate on, in val.jsonl (default %(default)g)",
    )
    parser.add_argument(
        "--decisions",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="answers of people about the clips of this folder (`serve --blind FOLDER --results FILE`), which replace the judge's",
    )
    parser.add_argument("--batch", type=int, default=8, help="clips per batch (default %(default)s)")
    decoding = parser.add_argument_group("sampling")
    decoding.add_argument("--seed", type=int, default=0, help="each clip's seed is derived from it (default %(default)s)")
    command.scheme.add_options(decoding)
    decoding.add_argument("--max-seconds", type=float, default=30.0, help="time limit; longer speech is cut off (default %(default)g)")
    args = parse_arguments(parser, argv)
    args.greedy = False
    own = {name: value for name in command.scheme.help if (value := getattr(args, name)) is not None}
    check_numbers({"batch": args.batch, "seed": args.seed, "max_seconds": args.max_seconds, **own})
    return args


def make(command: GenerateCommand, model: Path, argv: list[str]) -> int:
    """Body of the verb: make the pairs, and print how many. Raises `UserError` for what cannot be spoken or judged."""
    args = parse(command, argv)
    try:
        weights = RewardWeights(**parse_weights(args.weights, RewardWeights.model_fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "all"
        raise UserError(f"--weights {name}: {first['msg']}; the measures are {', '.join(RewardWeights.model_fields)}") from None
    options = PairOptions(
        texts=args.texts,
        data=args.data,
        asr=args.asr,
        out=args.out,
        sampling=make_from_options(command.Sampling, args),
        speaker=args.speaker,
        speaker_model=args.speaker_model,
        samples=args.samples,
        margin=args.margin,
        max_wer=args.max_wer,
        weights=weights,
        batch=args.batch,
        val_share=args.val_share,
        decisions=args.decisions,
    )
    summary = pair_dataset.make_pairs(command.speech, model, options)
    dropped = summary["dropped"]
    assert isinstance(dropped, dict)
    reasons = "".join(f"; {count} without: {reason}" for reason, count in dropped.items())
    print_line(f"{args.out / pair_dataset.ROWS}: {summary['pairs']} pairs of {summary['texts']} texts{reasons}")
    if isinstance(decisions := summary.get("decisions"), dict):
        print_line(describe_decisions(decisions))
    if summary["val"]:
        print_line(f"{summary['val']} of them are in {args.out / pair_dataset.VAL}, to validate on")
    elif summary["pairs"] and args.val_share:
        print_line(f"no text was selected for the {args.val_share:.0%} to validate on, so there is no {pair_dataset.VAL}")
    if not summary["pairs"]:
        print_line("no pair is clear: give more --samples, a higher --temperature, a lower --margin, or a higher --max-wer")
    return 0


def describe_decisions(found: dict[str, Any]) -> str:
    """A line about people's decisions, as `write_rows` counts them."""
    used, replaced, against, ties = (found.get(name, 0) for name in ("used", "in place of the judge's pair", "against the judge", "ties"))
    dropped = "".join(f"; {format_count(count, 'answer')} dropped: {reason}" for reason, count in found["dropped"].items())
    return (
        f"{format_count(used, 'pair')} decided by people, {replaced} in place of the judge's pair, {against} against its rewards; "
        f"{format_count(ties, 'tie')}{dropped}"
    )
