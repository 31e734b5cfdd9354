"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overtone.finetune.config import Config
from overtone.finetune.recipe import Answer, DataPreparation, Inference, MeasuredAnswers, PreparedMetrics, SampleMetrics

from .cli_arguments import make_generate_parser, make_serve_parser


def generate(folder: Path, argv: list[str]) -> int:
    """`generate`: transcripts of audio files."""
    from .inference import file_transcription

    return file_transcription.generate(folder, argv)


def serve(folders: Mapping[str, Path], argv: list[str]) -> int:
    """`serve`: OpenAI's transcription API."""
    from .serving import serve_command

    return serve_command.serve(folders, argv)


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """Transcripts of the rows of data files, during training."""
    from .inference import wer_during_training

    return wer_during_training.sample(folder, prompts)


def prepare_metrics(config: Config) -> PreparedMetrics:
    """Checks the data files whose clips are transcribed during training."""
    from .inference import wer_during_training

    return wer_during_training.prepare(config)


def measure(_: Path, __: list[str], answers: list[Answer], ___: PreparedMetrics) -> MeasuredAnswers:
    """The WER over all clips."""
    from .inference import wer_during_training

    return wer_during_training.measure(answers)


INFERENCE = Inference(
    generate=generate,
    serve=serve,
    sample=sample,
    metrics=SampleMetrics(prepare=prepare_metrics, measure=measure),
    example=("--audio", "recording.wav"),
    help={
        "generate": lambda: make_generate_parser().print_help(),
        "serve": lambda: make_serve_parser().print_help(),
    },
)
DATA = DataPreparation(
    verb="voice",
    row_keys=(frozenset({"audio", "text"}), frozenset({"audio", "segments"})),
    advice="""To make some from recordings with transcripts:
  overtone voice my_recordings/ --out data/me --val-share 0.1
or from recordings alone, whose transcripts you then correct: overtone voice … --whisper small, and overtone review data/me""",
)
