"""The verbs of a speech recipe: `generate`, `serve`, `eval-voice`, `select` and samples during training, with their help.

A recipe's `verbs.py` is imported for training and for `--help` too, which need neither audio packages nor torch. So it passes the name of
its package, and a verb imports the recipe's voices from there when it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.recipe import (
    Answer,
    DataPreparation,
    Inference,
    MeasuredAnswers,
    PreparedMetrics,
    RecipeState,
    ReplicaPlan,
    SampleMetrics,
)

if TYPE_CHECKING:
    from overtone.finetune.config import Config

    from .generate import GenerateCommand


@dataclass(frozen=True)
class SpeechVerbs:
    """The verbs of one recipe."""

    load_command: Callable[[], GenerateCommand]
    """Imports the recipe's `generate` with its `SpeechRecipe`; must not import torch."""
    has_pairs: bool = False
    """True if a recipe learns from pairs of this model's clips."""

    def generate(self, folder: Path, argv: list[str]) -> int:
        """Body of `overtone generate`."""
        return self.load_command().run(folder, argv)

    def sample(self, folder: Path, prompts: list[str]) -> list[Answer]:
        """Speak prompts with an export during training."""
        from overtone.recipes.speech.evaluation import samples_during_training

        return samples_during_training.speak_prompts(self.load_command().speech, folder, prompts)

    def check_prompts(self, prompts: list[str], state: RecipeState) -> None:
        """Check that a prompt has a text, and a speaker whom the run trains."""
        from overtone.recipes.speech.evaluation import samples_during_training

        samples_during_training.check_prompts(prompts, self.load_command().speech.trained_speakers(state.as_json()))

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

    def pairs(self, model: Path, argv: list[str]) -> int:
        """Body of `overtone pairs`."""
        from . import pairs

        return pairs.make(self.load_command(), model, argv)

    def serve(self, folders: Mapping[str, Path], argv: list[str]) -> int:
        """Body of `overtone serve`: a web page, and OpenAI's speech API."""
        from overtone.recipes.speech.serving import serve_command

        return serve_command.serve(self.load_command().speech.inspect, folders, argv)

    def plan_replica(self, folders: Mapping[str, Path], argv: list[str], environment: Mapping[str, str]) -> ReplicaPlan:
        """A replica of that server, for `overtone ray-serve`."""
        from overtone.recipes.speech.serving import serve_command

        return serve_command.plan_replica(self.load_command().speech.inspect, folders, argv, environment)

    @property
    def inference(self) -> Inference:
        """The value of `Recipe.inference`."""
        example = ("--text", "Hello, this is my voice.")
        return Inference(
            generate=self.generate,
            serve=self.serve,
            plan_replica=self.plan_replica,
            sample=self.sample,
            check_prompts=self.check_prompts,
            evaluate=self.evaluate,
            select=self.select,
            pairs=self.pairs if self.has_pairs else None,
            example=example,
            speech=lambda: self.load_command().speech,
            # Those whose help comes without torch. `eval-voice` and `select` need it, and print their help themselves.
            help={"generate": lambda: self.load_command().parse(["--help"]), "serve": print_serve_help, "ray-serve": print_serve_help},
            metrics=SampleMetrics(self.prepare_metrics, self.measure),
        )


def load_command(package: str) -> GenerateCommand:
    """`COMMAND` in the `speech_registration.py` of a recipe's package."""
    command: GenerateCommand = importlib.import_module(f"{package}.speech_registration").COMMAND  # noqa: TID251 - of the calling recipe
    return command


def make_inference(package: str, has_pairs: bool = False) -> Inference:
    """The verbs of the recipe whose `verbs.py` passes its `__package__`. `has_pairs`: as in `SpeechVerbs`."""
    return SpeechVerbs(partial(load_command, package), has_pairs).inference


def describe_voice_data(codec: str, more: str = "") -> DataPreparation:
    """Describe how training data is made with the codes of the model `codec`. `more`: what follows the commands."""
    return DataPreparation(
        verb="voice",
        advice=f"""To make some from recordings:
  overtone voice my_recordings/ --out data/me --whisper small --speaker me
  overtone codes data/me --model {codec}{more}""",
    )


def print_serve_help() -> None:
    """Print the options of `overtone serve`, and exit as argparse does."""
    from overtone.recipes.speech.serving import serve_command

    serve_command.parse(["--help"])
