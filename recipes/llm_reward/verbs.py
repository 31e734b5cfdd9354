"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.recipe import DataPreparation, Inference

from .cli_arguments import make_generate_parser


def generate(folder: Path, argv: list[str]) -> int:
    """`generate`: rewards of texts and answers, or their classes."""
    from . import row_scoring

    return row_scoring.generate(folder, argv)


INFERENCE = Inference(
    generate=generate,
    example=("--text", "Good day."),
    help={"generate": lambda: make_generate_parser().print_help()},
)
DATA = DataPreparation(
    row_keys=(frozenset({"chosen", "rejected"}), frozenset({"label"})),
    advice="""Each line is a pair of answers to one prompt, each a text or a list of messages:
  {"prompt": "…", "chosen": "…", "rejected": "…"}
or, with --options.objective classification, a text or a chat with its class:
  {"text": "…", "label": "…"}
docs/reward_models.md lists the forms.""",
)
