"""Metrics of the samples of a voice during training, for `checkpoint.best_by`, such as `sample/wer`.

They are intelligibility, similarity and endings as in `overtone select`, of the clips of one checkpoint; WER and CER are in %. The
reference clips are the speakers' own, from the training data.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from pydantic import JsonValue, TypeAdapter

from overtone.data_prep import manifest
from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder, UnsupportedModelError
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.encoder_selection import open_voice_encoder
from overtone.data_prep.transcription import whisper_engine
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.config import Config, Model
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.monitoring.run_records import SAMPLED
from overtone.finetune.recipe import Answer, MeasuredAnswers, PreparedMetrics, Row
from overtone.finetune.storage import files
from overtone.finetune.storage.referenced_files import find_file
from overtone.recipes.speech.dataset_speakers import visit_speakers
from overtone.recipes.speech.evaluation import intelligibility, samples_during_training, scoring, speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_items import pick_evenly
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts, Recognizer
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder, SpeakerClipVectors
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest

from .candidate_ranking import DEFAULT_WEIGHTS, ENDINGS, SIMILARITY, WER
from .speech_endings import measure_ending

CER, COST = "cer", "cost"
NUMBERS = ("seconds", "silence", "ended", "characters_per_second")
"""Numbers of each clip (`training_samples.make_answer`); their means are metrics too."""
OF_TRANSCRIPTS = (WER, CER, COST)
REFERENCES = 8
"""Maximum number of reference clips of a speaker; they are picked evenly from the speaker's rows."""
ASR_KEY, ENCODER_KEY = "sample.asr", "sample.speaker_model"
SEED = 0
"""Seed of the recognizer's sampling, where it decodes a failed window again: a repeated measurement gives the same value."""


LANGUAGES, CLIPS = TypeAdapter(dict[str, str]), TypeAdapter(dict[str, list[str]])
"""Read the parts of `PreparedMetrics`: speaker → language, and speaker → paths of its reference clips."""


@dataclass
class _SpeakerRows:
    """The rows of one speaker in the training data."""

    clips: dict[Path, None] = field(default_factory=dict)
    languages: Counter[str] = field(default_factory=Counter)


def prepare(config: Config) -> PreparedMetrics | None:
    """Find recognizer, encoder and reference clips, and load each once. None if neither `sample.asr` nor `sample.speaker_model` is set and
    no metric of samples decides. Raises `UserError`."""
    best_by = BestBy.parse(config.checkpoint.best_by)
    wanted = best_by.metric.removeprefix(SAMPLED) if best_by.is_sampled else None
    asr = config.sample.asr
    if asr is None and config.sample.speaker_model is None and wanted is None:
        return None
    if asr is None and wanted in OF_TRANSCRIPTS:
        raise UserError(f"checkpoint.best_by: {best_by.metric} needs a recognizer; give {ASR_KEY}, for example --{ASR_KEY} small")
    speakers = collect_speakers(config)
    names = [*NUMBERS, ENDINGS]
    settings: dict[str, JsonValue] = {"sampling": {**asdict(samples_during_training.SAMPLING), "recognizer_seed": SEED}}
    local: dict[str, JsonValue] = {}
    size = 0
    if asr is not None:
        languages = {name: rows.languages.most_common(1)[0][0] for name, rows in speakers.items()}
        size = check_recognizer(asr, set(languages.values()))
        described = {**whisper_engine.describe_settings(asr, None, ASR_KEY), **intelligibility.describe_retry(asr)}
        settings |= {"asr": {"name": asr, **described}, "languages": {**languages}}
        local["asr"] = asr
        names += [WER, CER]
    if asr is not None or config.sample.speaker_model is not None or wanted == SIMILARITY:
        chosen = choose_encoder(config.sample.speaker_model, config.model, wanted in (SIMILARITY, COST))
        found = prepare_similarity(chosen, speakers, config.checkpoint.best_by if wanted in (SIMILARITY, COST) else None)
        settings |= found.settings
        local |= found.local
        names += [*found.names, *([COST] if found.names and asr is not None else [])]
    return PreparedMetrics(tuple(names), settings, local, size)


def prepare_similarity(
    chosen: tuple[SpeakerEncoder, str] | None, speakers: Mapping[str, _SpeakerRows], deciding: str | None
) -> PreparedMetrics:
    """The encoder of `choose_encoder` and reference clips; without names if there is no encoder or no clip. `deciding`:
    `checkpoint.best_by` if it needs the similarity, for which a missing clip raises `UserError`."""
    clips = pick_references(speakers)
    if not clips and deciding is not None:
        raise UserError(f"checkpoint.best_by: {deciding}: a speaker's rows have no audio to compare with; add it to them")
    if chosen is None or not clips:
        return PreparedMetrics((), {})
    encoder, name = chosen
    digests: dict[str, JsonValue] = {speaker: [files.digest(path) for path in paths] for speaker, paths in clips.items()}
    settings: dict[str, JsonValue] = {"speaker_model": {"name": name, "digest": encoder.digest}, "references": digests}
    places: dict[str, JsonValue] = {speaker: [*map(str, paths)] for speaker, paths in clips.items()}
    return PreparedMetrics((SIMILARITY,), settings, {"speaker_model": name, "references": places})


def check_recognizer(name: str, languages: set[str]) -> int:
    """Resolve and load the recognizer once; returns the size of its weights in bytes. Raises `UserError`, also for a language that it does
    not support."""
    intelligibility.check_whisper(name, ASR_KEY)
    intelligibility.require_languages(Recognizer(whisper_engine.load_whisper(name, "cpu", ASR_KEY)), languages)
    weights = whisper_engine.fetch_weights(name, ASR_KEY)
    return weights.stat().st_size


def choose_encoder(given: str | None, model: Model, needed: bool) -> tuple[SpeakerEncoder, str] | None:
    """The speaker encoder and its name or folder: the given one, or else resemblyzer, or else that of the base. None if there is none and
    it is neither given nor `needed`; otherwise raises `UserError`."""
    name, option = given, ENCODER_KEY
    if name is None:
        installed = resemblyzer_encoder.find_weights() is not None
        name = resemblyzer_encoder.NAME if installed else str(resolve_source(model.source, model.revision))
        option = "the base" if not installed else option
    try:
        encoder = open_voice_encoder(option, name)
        encoder.load()
    except UnsupportedModelError as error:
        if not needed and given is None:
            return None
        raise UserError(f"{error}; give {ENCODER_KEY}, or run: {resemblyzer_encoder.INSTALL}") from None
    return encoder, name


def collect_speakers(config: Config[Any]) -> dict[str, _SpeakerRows]:
    """Return name → clips and languages, for the speakers of the prompts, or for all speakers if a prompt names none."""
    named = {samples_during_training.parse_prompt(prompt, None).speaker for prompt in config.sample.prompts}
    found: dict[str, _SpeakerRows] = {}

    def add_row(root: Path, name: str, row: Row) -> None:
        if None not in named and name not in named:
            return
        speaker = found.setdefault(name, _SpeakerRows())
        speaker.languages[manifest.parse_language(str(row.get("language") or manifest.AUTO))] += 1
        if row.get("audio") and (path := find_file(root, str(row["audio"]))).is_file():  # rows may have codes alone
            speaker.clips[path.absolute()] = None

    visit_speakers(config.data, config.recipe, config.options.speaker, add_row)
    return dict(sorted(found.items()))


def pick_references(speakers: Mapping[str, _SpeakerRows]) -> dict[str, list[Path]]:
    """At most `REFERENCES` clips of each speaker, all of which can be decoded; empty if a speaker has none. Raises `UserError`."""
    picked = {name: pick_evenly([*rows.clips], REFERENCES) for name, rows in speakers.items()}
    if not all(picked.values()):
        return {}
    for path in {path for paths in picked.values() for path in paths}:
        scoring.read_clip(path)
    return picked


def measure(
    recipe: SpeechRecipe, folder: Path, prompts: Sequence[str], answers: Sequence[Answer], prepared: PreparedMetrics
) -> MeasuredAnswers:
    """WER and CER over all clips, mean similarity, share of bad endings, and their cost. A clip without a voice has similarity 0, and text
    that the recognizer does not return counts as missing, so that neither is an advantage."""
    first = recipe.inspect(folder).first_speaker
    requests = [samples_during_training.parse_prompt(prompt, first) for prompt in prompts]
    waves = [decode(answer) for answer in answers]
    details: list[dict[str, JsonValue]] = [{"speaker": request.speaker, "text": request.text} for request in requests]
    bad = [not measure_ending(wave).is_good(bool(answer.numbers["ended"])) for wave, answer in zip(waves, answers, strict=True)]
    metrics = {ENDINGS: float(np.mean(bad))}
    if "asr" in prepared.local:
        metrics |= transcribe_all(prepared, requests, details, waves)
    if "speaker_model" in prepared.local:
        metrics |= compare_all(prepared, requests, details, waves)
    if WER in metrics and SIMILARITY in metrics:
        weights = DEFAULT_WEIGHTS
        losses = {WER: metrics[WER] / 100, SIMILARITY: 1 - metrics[SIMILARITY], ENDINGS: metrics[ENDINGS]}
        metrics[COST] = sum(weights[name] * loss for name, loss in losses.items())
    return MeasuredAnswers(metrics, details)


def decode(answer: Answer) -> Samples:
    """The samples [n] of an answer at 24 kHz; empty without sound."""
    if not answer.sound:
        return np.zeros(0, np.float32)
    samples, _ = soundfile.read(io.BytesIO(answer.sound), dtype="float32")
    return np.asarray(samples, np.float32)


def transcribe_all(
    prepared: PreparedMetrics, requests: Sequence[SpeechRequest], details: list[dict[str, JsonValue]], waves: Sequence[Samples]
) -> dict[str, float]:
    """WER and CER in % over all clips; adds the transcripts to `details`."""
    model = intelligibility.load_whisper(str(prepared.local["asr"]))
    languages = LANGUAGES.validate_python(prepared.settings["languages"])
    errors = list[ErrorCounts]()
    for request, one, wave in zip(requests, details, waves, strict=True):
        torch.manual_seed(SEED)
        language = intelligibility.choose_language(model, languages[str(request.speaker)])
        one["transcript"] = transcript = intelligibility.transcribe(model, wave, language).text
        counts = intelligibility.count_errors(request.text, transcript, language)
        if counts is not None:
            errors.append(counts)
            one["wrong_words"], one["words"] = counts.wrong_words, counts.words
    words, characters = sum(one.words for one in errors), sum(one.characters for one in errors)
    return {
        WER: 100.0 * sum(one.wrong_words for one in errors) / max(words, 1),
        CER: 100.0 * sum(one.wrong_characters for one in errors) / max(characters, 1),
    }


def compare_all(
    prepared: PreparedMetrics, requests: Sequence[SpeechRequest], details: list[dict[str, JsonValue]], waves: Sequence[Samples]
) -> dict[str, float]:
    """The mean over the clips of the cosine to the mean direction of their speaker's reference clips; adds the cosines to `details`."""
    name = str(prepared.local["speaker_model"])
    encoder = speaker_similarity.load_at_master_rate(name, open_voice_encoder(ENCODER_KEY, name))
    voices = embed_references(encoder, CLIPS.validate_python(prepared.local["references"]))
    cosines = list[float]()
    for request, one, wave in zip(requests, details, waves, strict=True):
        vector = speaker_similarity.embed(encoder, wave)
        found = None if vector is None else voices.similarity(vector, str(request.speaker))
        one[SIMILARITY] = cosine = 0.0 if found is None else found
        cosines.append(cosine)
    return {SIMILARITY: float(np.mean(cosines))}


def embed_references(encoder: SimilarityEncoder, clips: Mapping[str, Sequence[str]]) -> SpeakerClipVectors:
    """The vectors of the reference clips. Raises `UserError` for a speaker whose clips are all too short."""
    vectors = {
        speaker: {
            Path(path): vector for path in paths if (vector := speaker_similarity.embed(encoder, scoring.read_clip(Path(path)))) is not None
        }
        for speaker, paths in clips.items()
    }
    if short := [speaker for speaker, own in vectors.items() if not own]:
        raise UserError(f"all reference clips of {', '.join(short)} are shorter than {encoder.shortest_seconds} s; add longer rows")
    return speaker_similarity.group_vectors(encoder, vectors)
