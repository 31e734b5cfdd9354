"""`overtone select` of a voice: a planted optimum is found, a tie is called a tie, a killed selection continues, refusals come first."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import overtone
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune import __main__ as verbs
from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.checkpointing.rank_shards import TensorShard
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.storage import files
from overtone.finetune.training import run as training
from overtone.recipes.qwen3_tts.generate_command import QwenVoiceFolder
from overtone.recipes.qwen3_tts.inference import synthesizer
from overtone.recipes.speech.cli import select_voice
from overtone.recipes.speech.evaluation import intelligibility, systems
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.voice_clone import speech_registration
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.data_prep.page import Page
from tests.finetune import tiny
from tests.recipes.voice_clone.conftest import BOOKS, ENTRIES, Corpus, make_export, make_ready, memorize, voice, write_corpus

TEXTS = ("She counted the boats.", "It is never late!", "Where is the harbour?")
BRIEF = ["--greedy", "--max-seconds", "0.4", "--texts", "6", "--strengths", "0.5", "1"]


def make_data(folder: Path) -> list[dict[str, Any]]:
    """Two speakers with three texts each and random codes; each speaker has two clips, which this writes."""
    folder.mkdir(parents=True)
    random, rows = np.random.RandomState(0), list[dict[str, Any]]()
    for speaker, pitch in (("Anna", 233), ("Bert", 110)):
        for number, text in enumerate(TEXTS):
            clip = f"{speaker}-{number % 2}.flac"
            soundfile.write(folder / clip, voice(pitch, 0.7), 24_000)
            codes = random.randint(0, ENTRIES, (8 + len(rows), BOOKS)).tolist()
            rows.append({"audio": clip, "text": text, "speaker": speaker, "language": "english", "audio_codes": codes})
    return rows


def train_run(corpus: Corpus, base: Path, steps: int) -> Path:
    """A run with a checkpoint at every step."""
    settings = {"train.precision": "fp32", "train.steps": str(steps), "checkpoint.every": "1", "checkpoint.keep": "9"}
    config = corpus.config(base, *settings.items(), ("train.global_batch_tokens", "200"), ("train.micro_tokens", "200"))
    assert training.train(join((), corpus.train.parent), config, RECIPE) == "finished"
    leave()
    tiny.let_go(config.run.dir)
    return config.run.dir


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, nano: Path) -> Corpus:
    """A run of two steps beside its data; do not change it."""
    folder = tmp_path_factory.mktemp("a small run") / "data"
    corpus = write_corpus(folder, make_data(folder))
    train_run(corpus, nano, 2)
    return corpus


@pytest.fixture
def run(small: Corpus, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(small.train.parent / "run", tmp_path / "a run")
    return tmp_path / "a run"


@pytest.fixture
def recognizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, np.ndarray]]:
    """A stand-in for Whisper that knows some waves [samples] by heart, and transcribes all others as `noise`."""
    known: dict[str, np.ndarray] = {}

    def transcribe(samples: np.ndarray) -> Transcription:
        equal = [text for text, wave in known.items() if len(wave) == len(samples) and np.corrcoef(wave, samples)[0, 1] > 0.95]
        return Transcription(equal[0].split("|")[1] if equal else "noise")

    monkeypatch.setattr(intelligibility, "check_whisper", lambda _: None)
    monkeypatch.setattr(intelligibility, "digest_whisper", lambda name: f"of {name}")
    monkeypatch.setattr(intelligibility, "load_whisper", lambda _: known)
    monkeypatch.setattr(intelligibility, "require_languages", lambda *_: None)
    monkeypatch.setattr(intelligibility, "choose_language", lambda _, language: language)
    monkeypatch.setattr(intelligibility, "transcribe_clips", lambda _, clips, __: [*map(transcribe, clips)])
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    return known


def choose(run: Path, data: Path, *more: str) -> int:
    return verbs.main(["select", str(run), "--data", str(data), "--asr", "stand-in", *BRIEF, *more])


def record_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "selection" / "selection.json").read_text())
    return found


def test_candidates_are_compared_and_a_killed_selection_continues(
    run: Path, small: Corpus, recognizer: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speak, spoken = systems.speak, list[str]()

    def speak_until_killed(recipe: Any, system: systems.System, *rest: Any) -> Any:
        spoken.append(system.name)
        if len(spoken) == 3:
            raise KeyboardInterrupt
        return speak(recipe, system, *rest)

    monkeypatch.setattr(systems, "speak", speak_until_killed)
    with pytest.raises(KeyboardInterrupt):
        select_voice.select(speech_registration.SPEECH, run, ["--data", str(small.train), "--asr", "stand-in", *BRIEF])
    assert not (run / "selection" / "selection.json").exists()
    (run / "selection" / "export-1").mkdir()
    assert choose(run, small.train) == 0
    names = ["step 1, strength 0.5", "step 2, strength 0.5", "step 1, strength 1", "step 2, strength 1"]
    assert spoken == [*names[:3], *names[2:]], "the first two were measured before"
    shown = capsys.readouterr().out
    assert f"{names[0]} (1 of 4): measured earlier" in shown and f"{names[3]} (4 of 4): speaking" in shown
    found = record_of(run)
    assert {one["name"] for one in found["candidates"]} == {*names} and found["choice"]["step"] in (1, 2)
    assert len(found["texts"]) == 6 and sum(note.startswith("Texts: 6 of 6") for note in found["notes"]) == 1
    assert not list((run / "selection").glob("export-*")), "one model at a time, and none is left"
    page = Page((run / "selection" / "selection.html").read_text())
    assert page.all("audio") and page.all("img") and (run / "selection" / "selection.png").read_bytes().startswith(b"\x89PNG")
    assert choose(run, small.train) == 0 and len(spoken) == 5 and record_of(run) == found, "complete: nothing is spoken again"
    file = next((run / "selection").rglob("measures.json"))
    measures = json.loads(file.read_text())
    for clip in measures["clips"][:2]:
        clip["transcribed_again"] = True
    file.write_text(json.dumps(measures))
    assert choose(run, small.train) == 0
    assert "The WER is by the transcripts of stand-in." in record_of(run)["notes"]
    assert any(note.startswith("All candidates: 2 of 24 first transcripts were unsure") for note in record_of(run)["notes"])
    lock = files.lock_folder(run / "selection")
    assert choose(run, small.train) == 2 and "is in use by a running process" in capsys.readouterr().err
    os.close(lock)
    assert choose(run, small.train, "--seed", "1", "--checkpoints", "1", "--strengths", "1") == 0
    assert len(spoken) == 6 and "is the only candidate" in record_of(run)["choice"]["reason"], "other settings are other measures"


@pytest.mark.slow
@pytest.mark.ci
def test_the_selection_of_a_program_is_that_of_the_verb(
    run: Path, small: Corpus, recognizer: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data": small.train, "asr": "stand-in", "greedy": True, "max_seconds": 0.4, "texts": 6, "checkpoints": [2]}
    found = overtone.select(run, strengths=(0.5, 1), weights={"pace": 0}, **given)  # type: ignore[arg-type]
    assert "step 2, strength 1 (2 of 2): speaking" in capsys.readouterr().out
    record = record_of(run)
    assert {**record["choice"], "manifest": ""} == {"step": 2, "strength": found.strength, "reason": found.reason, "manifest": ""}
    assert found.checkpoint == run / "checkpoints" / "step-00000002" and found.page is not None and found.page.is_file()
    costs = {(one["step"], one["strength"]): one["cost"] for one in record["candidates"]}
    assert {at: values["cost"] for at, values in found.values.items()} == costs and set(costs) == {(2, 0.5), (2, 1.0)}
    assert choose(run, small.train, "--checkpoints", "2", "--weights", "pace=0") == 0
    shown = capsys.readouterr().out
    assert "2 of 2 candidates: measures of an earlier selection" in shown and f"\n{found}\n" in shown
    assert record_of(run) == record, "the same settings and the same choice"
    for more, message in (({"asr": None}, "--asr is missing"), ({"strengths": ()}, "--strengths: give at least one")):
        with pytest.raises(overtone.UserError, match=message):
            overtone.select(run, **{**given, **more})  # type: ignore[arg-type]


def rewrite(path: Path, trained: dict[str, torch.Tensor]) -> None:
    """Replace the weights of a checkpoint, and seal it again."""
    with rank_shards.open_shards(path) as (read, shapes):
        values = {name: trained.get(name, read(name, None)).detach().clone() for name in shapes}
    (shard,) = path.glob("rank-*.safetensors")
    shard.unlink()
    written = rank_shards.write_shard(shard, {name: TensorShard(one, (0,) * one.ndim) for name, one in values.items()})
    manifest = checkpoint.unseal((path / "manifest.json").read_bytes())
    manifest["files"][shard.name] = asdict(written)
    (path / "manifest.json").write_bytes(checkpoint.seal(manifest))


@pytest.mark.slow
@pytest.mark.ci
def test_a_planted_optimum_is_found_and_a_tie_is_called_a_tie(
    nano: Path, tmp_path: Path, recognizer: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 2 has memorized the clips, and step 4 equals it. Step 1 has not learned them yet. Step 3 is step 2 with noise: over-trained."""
    corpus = write_corpus(tmp_path / "data", make_data(tmp_path / "data"))
    ready = make_ready(corpus.config(nano), corpus.rows)
    memorize(ready, 500)
    with synthesizer.open_synthesizer(make_export(ready, "custom_voice", tmp_path / "learned")) as speaking:
        requests = [SpeechRequest(row["text"], row["speaker"].lower(), row["language"]) for row in corpus.rows]
        results = speaking.speak(requests, SpeechSampling(greedy=True, max_seconds=3))
    recognizer |= {f"{row['speaker']}|{row['text']}": one.wave for row, one in zip(corpus.rows, results, strict=True)}
    assert all(one.ended for one in results)

    run = train_run(corpus, nano, 4)
    trained, random = ready.model.state_dict(), torch.Generator().manual_seed(0)
    noisy = {
        name: value + 0.7 * value.std() * torch.randn(value.shape, generator=random) for name, value in trained.items() if value.ndim > 1
    }
    for step, weights in ((2, trained), (3, {**trained, **noisy}), (4, trained)):
        rewrite(run / "checkpoints" / f"step-{step:08d}", weights)
    assert choose(run, corpus.train, "--max-seconds", "2", "--strengths", "0.5", "1") == 0
    found, shown = record_of(run), capsys.readouterr().out
    assert (found["choice"]["step"], found["choice"]["strength"]) == (2, 1.0), shown
    assert "step 2, strength 1 has the lowest cost of 8 candidates" in found["choice"]["reason"] and "give 11 or more" in shown
    assert found["tied"] == ["step 2, strength 1"]
    assert choose(run, corpus.train, "--max-seconds", "2", "--strengths", "1", "--checkpoints", "2,3") == 0
    by_name = {one["name"]: one for one in record_of(run)["candidates"]}
    assert by_name["step 2, strength 1"]["values"]["wer"] == 0 < by_name["step 3, strength 1"]["values"]["wer"]
    assert by_name["step 3, strength 1"]["against_best"]["low"] > 0 and not by_name["step 3, strength 1"]["tied"]
    assert choose(run, corpus.train, "--max-seconds", "2", "--strengths", "1", "--checkpoints", "2,4") == 0
    assert record_of(run)["tied"] == ["step 2, strength 1", "step 4, strength 1"]
    capsys.readouterr()

    assert verbs.main(["export", str(run), "--best", "--to", str(tmp_path / "best")]) == 0
    assert "step 2 at strength 1, as selected: a tie of 2 of 2 candidates" in capsys.readouterr().out
    assert json.loads((tmp_path / "best" / "overtone.json").read_text())["step"] == 2
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    assert verbs.main(["export", str(run), "--best", "--to", str(tmp_path / "again")]) == 2
    assert "step-00000002 is gone; existing steps: 1, 3, 4" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.ci
def test_a_selection_that_was_killed_gives_the_same_result(run: Path, small: Corpus, babbler: Path, tmp_path: Path) -> None:
    """With real processes and an untrained Whisper; the kill comes when the first candidate is measured."""
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    words = ["--data", str(small.train), *BRIEF, "--strengths", "1", "--asr", str(babbler)]
    command = [sys.executable, "-m", "finetune", "select"]
    subprocess.run([*command, str(whole), *words], check=True, capture_output=True)
    with subprocess.Popen([*command, str(run), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list((run / "selection").glob("candidates/*/measures.json")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    measured = len(list((run / "selection").glob("candidates/*/measures.json")))
    assert measured and not (run / "selection" / "selection.json").exists()
    again = subprocess.run([*command, str(run), *words], check=True, capture_output=True, text=True)
    assert f"{measured} of 2 candidates: measures of an earlier selection" in again.stdout
    ours, theirs = record_of(run), record_of(whole)
    assert {**ours, "settings": None} == {**theirs, "settings": None}, "only the run's folder differs"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--strengths", "3"), "--strengths 3: give a number from 0 to"),
        (("--strengths", "nan"), "--strengths nan: give a number"),
        (("--texts", "5"), "--texts 5: must be at least 6"),
        (("--batch", "0"), "--batch 0: must be at least 1"),
        (("--max-seconds", "0"), "--max-seconds 0: must be more than 0"),
        (("--weights", "clarity=1"), "--weights clarity=1: give MEASURE=NUMBER with one of wer, similarity, pace, endings"),
        (("--weights", "wer=-1"), "--weights wer=-1: give MEASURE=NUMBER"),
        (("--weights", "wer=0", "similarity=0", "pace=0", "endings=0"), "--weights: all are 0"),
        (("--checkpoints", "7"), "--checkpoints 7: give all, or steps separated by commas; existing steps: 1, 2"),
        (("--asr", "enormous"), "--asr enormous: neither a file nor one of"),
        (("--speaker-model", "resemblyzer"), "--speaker-model resemblyzer: it is not installed"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl: No such file"),
        (("--data", "STRANGER"), "stranger.jsonl:2: speaker 'zed': "),
        (("--data", "SILENT"), "has no clip of anna, bert, or none besides the recording"),
        (("--data", "FEW"), "few.jsonl: 1 different texts are too few to choose by; give 6"),
        (("--text-file", "TEXTS"), "texts.txt:1: who speaks it?"),
        (("--strenghts", "1"), "unknown flag --strenghts; did you mean --strengths?"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    run: Path,
    small: Corpus,
    more: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(QwenVoiceFolder, "open", loaded.append)
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    if "enormous" not in more:
        monkeypatch.setattr(intelligibility, "check_whisper", lambda _: None)
    folder, rows = small.train.parent, small.rows
    files.write_jsonl(folder / "stranger.jsonl", [rows[0], {**rows[1], "speaker": "zed"}])
    files.write_jsonl(folder / "silent.jsonl", [{**row, "audio": None} for row in rows])
    files.write_jsonl(folder / "few.jsonl", [rows[0]] * 7)
    files.write_text(folder / "texts.txt", "Good day.\n" * 6)
    places = {name: str(folder / file) for name, file in (("STRANGER", "stranger.jsonl"), ("SILENT", "silent.jsonl"), ("FEW", "few.jsonl"))}
    places["TEXTS"] = str(folder / "texts.txt")
    assert choose(run, small.train, *(places.get(word, word) for word in more)) == 2
    assert message in capsys.readouterr().err and not loaded and not (run / "selection").exists()


def test_missing_checkpoints_bases_and_recognizers_are_errors(
    run: Path, small: Corpus, recognizer: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.main(["select", str(run), "--data", str(small.train)]) == 2 and "--asr" in capsys.readouterr().err
    for path in checkpoint.list_checkpoints(checkpoint.folder_of(run)):
        base = json.loads((path / "state.json").read_text())["base"]
        tiny.reseal(path, base={**base, "source": str(run / "moved")})
    assert choose(run, small.train) == 2 and f"{run / 'moved'}" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    assert choose(run, small.train) == 2 and "contains no valid checkpoint" in capsys.readouterr().err
    assert not (run / "selection").exists()
