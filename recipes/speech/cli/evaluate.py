"""Body of `overtone eval-voice`: the evaluation of a voice by its own measures, or by a published protocol."""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.finetune.terminal import print_line
from overtone.recipes.ray_generation import read_engine
from overtone.recipes.speech.cli import seed_tts_protocol
from overtone.recipes.speech.cli.evaluation_arguments import parse
from overtone.recipes.speech.evaluation import result_rendering
from overtone.recipes.speech.evaluation.evaluation_folder import JSON, MARKDOWN, PAGE
from overtone.recipes.speech.evaluation.voice_evaluation import EvaluationOptions, evaluate_voice
from overtone.recipes.speech.interface import SpeechRecipe


def evaluate(recipe: SpeechRecipe, model: Path, argv: list[str]) -> int:
    """Evaluate as the command line says, and print the verdicts. Raises `UserError` for what cannot be evaluated."""
    args = parse(argv)
    if args.protocol is not None:
        return seed_tts_protocol.evaluate_by_protocol(recipe, model, args)
    evaluation, out = evaluate_voice(recipe, model, read_options(args))
    for sentence in result_rendering.verdicts(evaluation):
        print_line(sentence.replace("**", ""))
    if evaluation.judge:
        print_line(evaluation.judge)
    print_line(f"{out / PAGE}: open it in a browser; {MARKDOWN} and {JSON} in the same folder have the figures")
    return 0


def read_options(args: argparse.Namespace) -> EvaluationOptions:
    """The options on the command line, besides those of protocols."""
    return EvaluationOptions(
        data=args.data,
        checkpoints=args.checkpoints,
        base=args.base,
        seen=args.seen,
        reference=args.reference,
        speaker=args.speaker,
        asr=args.asr,
        codec=args.codec,
        speaker_model=args.speaker_model,
        limit=args.limit,
        batch=args.batch,
        greedy=args.greedy,
        seed=args.seed,
        max_seconds=args.max_seconds,
        card=args.card,
        out=args.out,
        engine=read_engine(args),
    )
