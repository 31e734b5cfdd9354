"""The verbs of a speech recipe: `generate`, `serve`, `eval-voice`, `select` and samples during training, with their help.

A recipe's `verbs.py` is imported for training and for `--help` too, which need neither audio packages nor torch. So a recipe passes a
function that imports its voices, and a verb calls it when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.recipe import Answer, Inference, MeasuredAnswers, PreparedMetrics, SampleMetrics

if TYPE_CHECKING:
    from overtone.finetune.config import Config
    from overtone.recipes.speech.interface import SpeechRecipe

    from .generate import GenerateCommand


@dataclass(frozen=True)
class SpeechVerbs:
    """The verbs of one recipe."""

    load_command: Callable[[], GenerateCommand]
    """Imports the recipe's `generate` with its `SpeechRecipe`; must not import torch."""

    def generate(self, folder: Path, argv: list[str]) -> int:
        """Body of `overtone generate`."""
        return self.load_command().run(folder, argv)

    def load_speech(self) -> SpeechRecipe:
        """Return the recipe's voices, for use by programs."""
        return self.load_command().speech

    def sample(self, folder: Path, prompts: list[str]) -> list[Answer]:
        """Speak prompts with an export during training."""
        from overtone.recipes.speech.evaluation import samples_during_training

        return samples_during_training.speak_prompts(self.load_command().speech, folder, prompts)

    def prepare_metrics(self, config: Config) -> PreparedMetrics | None:
        """Find and load what the measurement of those clips needs."""
        from overtone.recipes.speech.selection import sample_measurement_during_training

        return sample_measurement_during_training.prepare(config)

    def measure(self, folder: Path, prompts: list[str], answers: list[Answer], prepared: PreparedMetrics) -> MeasuredAnswers:
        """Measure WER, similarity and endings of those clips."""
        from overtone.recipes.speech.selection import sample_measurement_during_training

        return sample_measurement_during_training.measure(self.load_command().speech, folder, prompts, answers, prepared)

    def evaluate(self, model: Path, argv: list[str]) -> int:
        """Body of `overtone eval-voice`."""
        from . import evaluate

        return evaluate.evaluate(self.load_command().speech, model, argv)

    def select(self, run: Path, argv: list[str]) -> int:
        """Body of `overtone select`."""
        from . import select_voice

        return select_voice.select(self.load_command().speech, run, argv)

    def serve(self, folders: Mapping[str, Path], argv: list[str]) -> int:
        """Body of `overtone serve`: a web page, and OpenAI's speech API."""
        from overtone.recipes.speech.serving import serve_command

        return serve_command.serve(self.load_command().speech.inspect, folders, argv)

    def print_generate_help(self) -> None:
        """Print the options of `overtone generate`, and exit as argparse does."""
        self.load_command().parse(["--help"])

    @property
    def inference(self) -> Inference:
        """The value of `Recipe.inference`."""
        example = ("--text", "Hello, this is my voice.")
        return Inference(
            generate=self.generate,
            serve=self.serve,
            sample=self.sample,
            evaluate=self.evaluate,
            select=self.select,
            example=example,
            speech=self.load_speech,
            # Those whose help comes without torch. `eval-voice` and `select` need it, and print their help themselves.
            help={"generate": self.print_generate_help, "serve": print_serve_help},
            metrics=SampleMetrics(self.prepare_metrics, self.measure),
        )


def print_serve_help() -> None:
    """Print the options of `overtone serve`, and exit as argparse does."""
    from overtone.recipes.speech.serving import serve_command

    serve_command.parse(["--help"])
