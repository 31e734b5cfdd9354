"""Metrics of samples during training: what they need is checked before training; WER, similarity and cost are those of the clips."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.checkpointing.sample_measurement_records import RECORD, folder_of_step
from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_json, read_log
from overtone.finetune.recipe import Answer, PreparedMetrics
from overtone.finetune.training import run as training_run
from overtone.finetune.training.sample_metrics_preparation import prepare_plan
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.speech.evaluation.samples_during_training import make_answer
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult
from overtone.recipes.speech.selection import sample_measurement_during_training
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.finetune import tiny
from tests.recipes.voice_clone.conftest import Corpus, make_rows, voice, write_corpus

PROMPTS = "['She counted the boats.', 'bert|It is late.']"
ON = (("sample.every", "1"), ("sample.prompts", PROMPTS))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "data", make_rows({"Anna": "high.flac", "Bert": "low.flac"}, ("english", "english")))


@pytest.fixture(autouse=True)
def without_resemblyzer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's own encoder is the default then."""
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)


def config_of(corpus: Corpus, nano: Path, *overrides: tuple[str, str]) -> Config:
    return corpus.config(nano, *ON, *overrides)


# --- before training


def test_what_measuring_needs_is_found_and_recorded_without_paths(corpus: Corpus, nano: Path, babbler: Path) -> None:
    config = config_of(corpus, nano, ("sample.asr", str(babbler)), ("checkpoint.best_by", "sample/cost"))
    found = sample_measurement_during_training.prepare(config)
    assert found is not None and {"wer", "cer", "similarity", "endings", "cost", "seconds"} <= {*found.names}
    assert found.settings["languages"] == {"anna": "english", "bert": "english"} and found.bytes == babbler.stat().st_size
    assert found.settings["sampling"] == {"greedy": False, "temperature": None, "seed": 0, "max_seconds": 12.0, "recognizer_seed": 0}
    assert len(found.settings["asr"]["weights"]) == len(found.settings["speaker_model"]["digest"]) == 64
    assert [len(clips) for clips in found.local["references"].values()] == [1, 1], "each has one clip, in two rows"
    sample = config.sample.model_copy(update={"prompts": ("bert|Hi.",)})
    (speaker,) = sample_measurement_during_training.collect_speakers(config.model_copy(update={"sample": sample}))
    assert speaker == "bert", "of the speakers of the prompts"


def test_the_settings_name_the_retry_of_the_demo_s_whisper(
    corpus: Corpus, nano: Path, babbler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else measures from before and after a change of it would be compared."""
    plain = sample_measurement_during_training.prepare(config_of(corpus, nano, ("sample.asr", str(babbler))))
    assert plain is not None and "retry_below" not in plain.settings["asr"]
    monkeypatch.setattr(sample_measurement_during_training, "check_recognizer", lambda *_: 0)
    demo = sample_measurement_during_training.prepare(config_of(corpus, nano, ("sample.asr", "whisper-demo-en")))
    assert demo is not None and demo.settings["asr"].items() >= intelligibility.describe_retry("whisper-demo-en").items() != set()


def test_nothing_is_measured_unless_it_was_requested(corpus: Corpus, nano: Path) -> None:
    assert sample_measurement_during_training.prepare(config_of(corpus, nano)) is None
    ended = sample_measurement_during_training.prepare(config_of(corpus, nano, ("checkpoint.best_by", "sample/ended max")))
    assert ended is not None and "wer" not in ended.names and "similarity" not in ended.names and not ended.local


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"checkpoint.best_by": "sample/wer"}, "sample/wer needs a recognizer; give sample.asr"),
        ({"sample.asr": "enormous"}, "sample.asr enormous: neither a file nor one of"),
        ({"sample.asr": "tiny.en", "LANGUAGE": "german"}, "german"),
        ({"sample.speaker_model": "resemblyzer"}, "sample.speaker_model resemblyzer: the package is not installed"),
        ({"checkpoint.best_by": "sample/beauty"}, "sample/beauty is not a metric of the samples; these are sample/characters_per_second"),
        ({"checkpoint.best_by": "sample/similarity max", "AUDIO": ""}, "a speaker's rows have no audio to compare with"),
    ],
)
def test_what_is_missing_is_an_error_before_training(
    nano: Path, tmp_path: Path, babbler: Path, overrides: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows({"Anna": "high.flac", "Bert": "low.flac"}, (overrides.pop("LANGUAGE", "english"), "english"))
    if overrides.pop("AUDIO", None) is not None:
        rows = [{**row, "ref_audio": row["audio"], "audio": None} for row in rows]
    if overrides.get("sample.asr") == "tiny.en":

        def refuse(*_: object) -> None:
            raise UserError("this model does not support german")

        monkeypatch.setattr(intelligibility, "require_languages", refuse)
        overrides["sample.asr"] = str(babbler)
    config = config_of(write_corpus(tmp_path / "own", rows), nano, *overrides.items())
    with pytest.raises(UserError, match=message):
        prepare_plan(config, RECIPE)


def test_a_base_without_an_encoder_measures_no_similarity_unless_it_decides(
    corpus: Corpus, nano: Path, babbler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(option: str, name: str) -> None:
        raise sample_measurement_during_training.UnsupportedModelError(f"{option} {name}: no speaker encoder")

    monkeypatch.setattr(sample_measurement_during_training, "open_voice_encoder", refuse)
    found = sample_measurement_during_training.prepare(config_of(corpus, nano, ("sample.asr", str(babbler))))
    assert found is not None and {"wer", "cer"} <= {*found.names} and not {"similarity", "cost"} & {*found.names}
    with pytest.raises(UserError, match="no speaker encoder; give sample.speaker_model, or run: pip install"):
        sample_measurement_during_training.prepare(config_of(corpus, nano, ("checkpoint.best_by", "sample/similarity max")))


# --- the metrics


@pytest.fixture
def recognizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Whisper that hears two of four words of long clips, and nothing in short ones."""
    monkeypatch.setattr(intelligibility, "load_whisper", lambda _: None)
    monkeypatch.setattr(intelligibility, "choose_language", lambda _, language: language)
    heard: Callable[..., Transcription] = lambda _, samples, __: Transcription("counted boats" if len(samples) > 20_000 else "", "failed")  # noqa: E731
    monkeypatch.setattr(intelligibility, "transcribe", heard)


@pytest.mark.usefixtures("recognizer")
def test_errors_are_summed_and_a_clip_without_a_voice_is_no_advantage(corpus: Corpus, nano: Path) -> None:
    config = config_of(corpus, nano, ("checkpoint.best_by", "sample/similarity max"))
    prepared = sample_measurement_during_training.prepare(config)
    assert prepared is not None
    prepared = PreparedMetrics(
        prepared.names, {**prepared.settings, "languages": {"anna": "english", "bert": "english"}}, {**prepared.local, "asr": "stand-in"}
    )
    clips = [SpeechResult(voice(233, 1.0), 24_000, True), SpeechResult(np.zeros(0, np.float32), 24_000, True)]
    requests = [SpeechRequest("She counted the boats.", "anna"), SpeechRequest("It is late.", "bert")]
    answers = [make_answer(request, clip) for request, clip in zip(requests, clips, strict=True)]

    class Folder:
        first_speaker = "anna"

    recipe: Any = type("Stub", (), {"inspect": staticmethod(lambda _: Folder())})
    found = sample_measurement_during_training.measure(recipe, Path("export"), [*config.sample.prompts], answers, prepared)
    assert found.metrics["wer"] == pytest.approx(100 * (2 + 3) / 7), "of all words, not a mean of rates"
    assert found.details[0]["transcript"] == "counted boats" and found.details[1] == {
        **{"speaker": "bert", "text": "It is late.", "transcript": "", "wrong_words": 3, "words": 3, "similarity": 0.0}
    }
    assert found.details[0]["similarity"] > 0.5 and found.metrics["similarity"] == found.details[0]["similarity"] / 2
    losses = found.metrics["wer"] / 100 + 1 - found.metrics["similarity"] + 0.5 * found.metrics["endings"]
    assert found.metrics["cost"] == pytest.approx(losses) and found.metrics["endings"] >= 0.5
    assert np.array_equal(sample_measurement_during_training.decode(Answer("silent")), np.zeros(0, np.float32))


# --- a real run


@pytest.mark.slow
@pytest.mark.ci
def test_a_voice_is_chosen_by_what_an_untrained_whisper_transcribes(
    corpus: Corpus, nano: Path, babbler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real processes for training, generation and measurement; the values mean nothing, but they are there, and they decide."""
    changes = {"sample.asr": str(babbler), "checkpoint.best_by": "sample/cost", "train.steps": "2", "train.precision": "fp32"}
    config = config_of(corpus, nano, *changes.items(), ("train.global_batch_tokens", "200"), ("train.micro_tokens", "200"))
    assert training_run.train(join((), corpus.train.parent), config, RECIPE) == "finished"
    leave()
    events = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "measured"]
    assert [event["step"] for event in events] == [1, 2]
    best = min(events, key=lambda event: (event["sample/cost"], event["step"]))
    assert f"lowest sample/cost {best['sample/cost']:.4f}" in capsys.readouterr().out
    for event in events:
        record: dict[str, Any] = read_json(folder_of_step(config.run.dir, event["step"]) / RECORD)
        assert record["sampling"]["asr"]["name"] == str(babbler) and [one["speaker"] for one in record["texts"]] == ["anna", "bert"]
        assert {"transcript", "similarity", "prompt", "words"} <= record["texts"][0].keys()
        assert event["sample/wer"] >= 0 and -1 <= event["sample/similarity"] <= 1
        assert json.loads((folder_of_step(config.run.dir, event["step"]) / RECORD).read_text())["metrics"] == record["metrics"]
    tiny.let_go(config.run.dir)
