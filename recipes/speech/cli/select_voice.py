"""Choose the best checkpoint and strength of a run by what they speak: WER, speaker similarity, pace and endings.

overtone select runs/me --data data/me/val.jsonl --asr small
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import selection_record
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.interface import SpeechRecipe
from overtone.recipes.speech.selection import result_rendering, voice_selection
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS, MEASURES
from overtone.recipes.speech.selection.voice_selection import EXPECTED_WEIGHT, PAGE, PICTURE, STRENGTHS, SelectionOptions


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(
        prog="overtone select RUN", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="rows with text, speaker and audio (recordings)")
    parser.add_argument("--text-file", type=Path, metavar="FILE", help="texts to speak instead of those of --data, one per line, or .jsonl")
    parser.add_argument("--speaker", help="speaker of rows and lines without a speaker")
    parser.add_argument("--asr", required=True, metavar="MODEL", help="Whisper model for transcripts, as in eval-voice: small, a .pt file")
    parser.add_argument(
        "--speaker-model",
        metavar="MODEL",
        help="independent speaker encoder, as in eval-voice (default: resemblyzer, if it is installed, else that of the base)",
    )
    parser.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS, metavar="S", help="of the update (default: 0.4 0.7 1)")
    parser.add_argument("--checkpoints", default="all", metavar="all|STEP,STEP", help="default: all that are kept")
    parser.add_argument("--texts", type=int, default=24, metavar="N", help="number of texts to speak (default %(default)s)")
    weights = " ".join(f"{name}={weight:g}" for name, weight in DEFAULT_WEIGHTS.items())
    parser.add_argument(
        "--weights", nargs="+", default=[], metavar="MEASURE=W", help=f"of the measures in the cost (default: {weights}); 0 leaves one out"
    )
    parser.add_argument("--batch", type=int, default=8, help="texts per batch (default %(default)s)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely token instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling, the same for each candidate (default %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="time limit; longer speech is cut off (default %(default)g)")
    return parse_arguments(parser, argv)


def select(recipe: SpeechRecipe, run: Path, argv: list[str]) -> int:
    """Body of the verb: select as the command line says, and print the table. Raises `UserError` for what cannot be compared."""
    args = parse(argv)
    options = SelectionOptions(
        data=args.data,
        asr=args.asr,
        text_file=args.text_file,
        speaker=args.speaker,
        speaker_model=args.speaker_model,
        strengths=tuple(args.strengths),
        checkpoints=args.checkpoints,
        texts=args.texts,
        weights=parse_weights(args.weights, MEASURES),
        batch=args.batch,
        greedy=args.greedy,
        seed=args.seed,
        max_seconds=args.max_seconds,
    )
    result = voice_selection.select_voice(recipe, run, options)
    print_line(result_rendering.render_report(result))
    folder = selection_record.folder_of(run)
    print_line(f"{folder / PAGE}: open it in a browser and listen; {PICTURE} and {selection_record.RECORD} beside it have the figures")
    return 0


def parse_weights(words: Sequence[str], measures: Collection[str]) -> dict[str, float]:
    """Parse words such as `wer=2`. Raises `UserError` for a word without a number; it lists `measures`, which the caller checks."""
    weights = dict[str, float]()
    for word in words:
        name, _, text = word.partition("=")
        try:
            weights[name] = float(text)
        except ValueError:
            raise UserError(f"--weights {word}: {EXPECTED_WEIGHT.format(', '.join(measures))}") from None
    return weights
