"""Uses of an exported model that a recipe offers, and measurement of answers to prompts during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from overtone.finetune.recipe.recipe_state import RecipeState

if TYPE_CHECKING:
    from overtone.finetune.config import Config


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt of `sample.prompts`."""

    text: str
    """The generated text; for a voice, a line about the speech."""
    sound: bytes = b""
    """A FLAC file, if the answer is audio."""
    picture: bytes = b""
    """A PNG of the audio."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Measurements by name; the trackers get their means over the prompts."""


@dataclass(frozen=True)
class PreparedMetrics:
    """Names and settings for measuring the answers to `sample.prompts`. Everything in it can be written as JSON."""

    names: tuple[str, ...]
    """Names of the metrics, the means of `Answer.numbers` included."""
    settings: dict[str, JsonValue]
    """All that the metrics depend on besides prompts and weights: models with their digests, sampling, seed, reference clips. Recorded with
    every measurement; measurements with other settings are not compared."""
    local: dict[str, JsonValue] = field(default_factory=dict)
    """Paths of the models and files on this machine."""
    bytes: int = 0
    """Size of the weights that `measure` loads."""


class MeasuredAnswers(NamedTuple):
    """Result of `SampleMetrics.measure`."""

    metrics: dict[str, float]
    """By name, over all answers."""
    details: list[dict[str, JsonValue]]
    """For each answer, what is recorded beside the metrics, such as its transcript. JSON."""


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics of all answers to `sample.prompts` together, for `checkpoint.best_by: sample/NAME`."""

    prepare: Callable[[Config], PreparedMetrics | None]
    """Called once per launch, on one process, after `Recipe.prepare` and before training: find and check what measuring needs. Raises
    `UserError` if something is missing. None: the config requests no measurement."""
    measure: Callable[[Path, list[str], list[Answer], PreparedMetrics], MeasuredAnswers]
    """(exported folder, prompts, answers, what `prepare` returned) → metrics. Called in the process that has generated the answers."""


@dataclass(frozen=True)
class ReplicaPlan:
    """A server of exported models without a socket of its own, as the options of `serve` describe it."""

    host: str
    """Address on which the proxy listens."""
    port: int
    slots: int
    """Number of requests that a model of a replica answers at once."""
    room: int
    """Number of requests that may wait in a replica for each model."""
    drain_seconds: float
    """Longest time for a replica that ends to complete its requests."""
    files: tuple[Path, ...]
    """Files and folders that a replica reads, on the machine where it runs."""
    secrets: Mapping[str, str] = field(repr=False)
    """The part of the environment that a replica gets: the token, if that is not in a file."""
    open_app: Callable[[], AbstractContextManager[object]]
    """Loads the models. While open: the ASGI app, with the access control, limits and metrics of `serve`."""


@dataclass(frozen=True)
class Inference:
    """Uses of an exported model that a recipe offers."""

    generate: Callable[[Path, list[str]], int]
    """(exported folder, remaining arguments) → exit code, for `overtone generate`."""
    chat: Callable[[Path, list[str]], int] | None = None
    """(exported folder, remaining arguments) → exit code, after a conversation in the terminal. Absent: the model cannot converse."""
    serve: Callable[[Mapping[str, Path], list[str]], int] | None = None
    """(exported folders by what was typed for them, remaining arguments) → exit code, after the server has stopped. Absent: the recipe has
    no server."""
    plan_replica: Callable[[Mapping[str, Path], list[str], Mapping[str, str]], ReplicaPlan] | None = None
    """(exported folders by what was typed for them, arguments of `serve`, environment) → how a process serves them behind the proxy of a
    cluster, for `overtone ray-serve`. Raises `UserError`, before a model is loaded, for what cannot be served. Absent: no server of the
    recipe can be replicated."""
    sample: Callable[[Path, list[str]], list[Answer]] | None = None
    """(exported folder, prompts) → an answer to each prompt, without randomness, for `sample.every`. Called in a process of its own, on
    the GPU if one is visible to it, else on the CPU. Absent: the config's `sample` section is refused."""
    evaluate: Callable[[Path, list[str]], int] | None = None
    """(run, checkpoint or exported folder; remaining arguments) → exit code, for `overtone eval-voice`. Absent: it makes no voice."""
    select: Callable[[Path, list[str]], int] | None = None
    """(run, remaining arguments) → exit code, for `overtone select`: generates with the run's checkpoints, measures the output, and writes
    its choice by `overtone.finetune.exporting.selection_record.write_selection`. Absent: the checkpoints' evaluations decide."""
    pairs: Callable[[Path, list[str]], int] | None = None
    """(run, checkpoint or exported folder; remaining arguments) → exit code, for `overtone pairs`: pairs of the model's own outputs for
    preference optimization. Absent: no recipe learns from pairs of its outputs."""
    example: tuple[str, ...] = ()
    """Arguments of `overtone generate` for the command that a run prints after its last step: a text to start with."""
    speech: Callable[[], object] | None = None
    """Returns the recipe's `SpeechRecipe` (recipes/speech/interface.py), by which programs speak, evaluate and select. Absent: it makes no
    voice."""
    load_text_generator: Callable[[Path], object] | None = None
    """(exported folder) → a `TextGenerator` (recipes/language/text_generator.py), by which programs chat. Absent: the model cannot
    converse."""
    help: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    """Verb → a function that prints the options that this recipe adds to the verb, without importing torch. For other verbs the verb
    itself is called with `--help`."""
    check_prompts: Callable[[list[str], RecipeState], None] | None = None
    """(`sample.prompts`, `Loaded.state`) → raises `UserError` for a prompt that cannot be answered. Called on every rank, after `load`.
    Absent: every text is a prompt."""
    metrics: SampleMetrics | None = None
    """Metrics of what `sample` returns, besides the means of `Answer.numbers`. Absent: there are only these."""
