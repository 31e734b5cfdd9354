"""Words, voice and pace of trained models. Uses the demo base, because random weights do not speak."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import pytest
import soundfile

from overtone.data_prep.__main__ import main as data_prep
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.selection import open_speaker_encoder
from overtone.finetune import train
from overtone.finetune.exporting import export
from overtone.finetune.storage import demo_models, files
from overtone.recipes.qwen3_tts.model import modeling
from overtone.recipes.speech.evaluation import speaker_similarity, systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.voice_clone.demo import pipeline
from overtone.recipes.voice_clone.speech_registration import SPEECH
from workshop.demo_models import recognizers
from workshop.demo_models.corpus import grammar
from workshop.demo_models.corpus.voices import KNOWN_VOICES, speak

pytestmark = pytest.mark.slow
KNOWN = pipeline.find_new_voice() / "known"
VOICES = ("slt", "awb", "ked")
"""The voices that the model speaks best, one of each kind. Its clones of kal16 are closer to awb."""
UNSEEN = list(islice(grammar.generate_sentences(11, "held_out"), 16))
SLT = KNOWN_VOICES[0]
BRIEF = SpeechSampling(max_seconds=10)
needs_flite = pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")


def speak_items(system: systems.System, items: Sequence[Item], out: Path) -> dict[str, Samples]:
    """By the item's key."""
    return {take.item.key: read_clip(take.path) for take in systems.speak(SPEECH, system, system.folder, items, BRIEF, 16, out)}


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Item, Samples]]:
    """Sentences that no training saw, each voice cloned from one of its clips."""
    items = [
        Item(f"{voice}-{number}", text, voice, "english", None, KNOWN / voice / "0.ogg")
        for voice in VOICES
        for number, text in enumerate(UNSEEN[:5])
    ]
    spoken = speak_items(systems.untrained_system(SPEECH, demo_models.folder_of(pipeline.BASE)), items, tmp_path_factory.mktemp("clones"))
    return [(item, spoken[item.key]) for item in items]


def test_the_demo_base_speaks_its_text_and_no_other(clones: list[tuple[Item, Samples]]) -> None:
    measure = recognizers.load_recognizers([pipeline.WHISPER])[pipeline.WHISPER]
    own = [(item.text, wave) for item, wave in clones]
    others = [(clones[(at + 1) % len(clones)][0].text, wave) for at, (_, wave) in enumerate(clones)]
    assert measure(own) < 0.5
    assert measure(others) > 0.8


def test_clones_are_most_similar_to_the_voice_of_their_clip(clones: list[tuple[Item, Samples]]) -> None:
    encoder = speaker_similarity.load_own_encoder(open_speaker_encoder(pipeline.BASE, "--base"))
    clips = {voice: {path: encoder.vector(read_clip(path)) for path in sorted((KNOWN / voice).iterdir())} for voice in VOICES}
    known = speaker_similarity.group_vectors(encoder, clips)
    vectors = {item: encoder.vector(wave) for item, wave in clones}
    likeness = {  # cloned from → like whom → sum of cosines
        cloned: {
            voice: sum(known.similarity(vector, voice) or 0.0 for item, vector in vectors.items() if item.speaker == cloned)
            for voice in VOICES
        }
        for cloned in VOICES
    }
    assert [max(VOICES, key=lambda voice: likeness[cloned][voice]) for cloned in VOICES] == list(VOICES)


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences with codes, of a voice that the base knows: training should not change its pace."""
    folder, rows = tmp_path_factory.mktemp("lessons"), []
    for number, text in enumerate(islice(grammar.generate_sentences(12, "train"), 48)):
        soundfile.write(folder / f"{number}.flac", speak(SLT, text), MASTER_RATE)
        rows.append({"audio": f"{number}.flac", "text": text, "speaker": SLT.name, "language": "english"})
    files.write_jsonl(folder / "train.jsonl", rows)
    assert data_prep(["codes", str(folder / "train.jsonl"), "--model", pipeline.CODEC]) == 0
    return folder


def lengths(lessons: Path, run: Path) -> list[float]:
    """Seconds that the unseen sentences last, all together, after each of three epochs."""
    settings = {"model.source": pipeline.BASE, "data.train": lessons / "train.jsonl", "run.dir": run, "train.epochs": 3, "train.lr": "2e-4"}
    settings |= {"checkpoint.every": 1, "checkpoint.keep": 99}
    words = [str(word) for key, value in settings.items() for word in (f"--{key}", value)]
    assert train.main(["--recipe", "voice_clone", "--config", str(pipeline.HERE / "demo.yaml"), *words]) == 0
    epochs = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = max(event["step"] for event in epochs if event["event"] == "step") // 3
    items = [Item(f"{number}", text, SLT.name, "english") for number, text in enumerate(UNSEEN)]
    found = []
    for epoch in (1, 2, 3):
        made = export.export(run / "checkpoints" / f"step-{epoch * steps:08d}", run / f"epoch-{epoch}")
        system = systems.System(f"epoch {epoch}", made, "named")
        found.append(sum(len(wave) for wave in speak_items(system, items, run / f"said-{epoch}").values()) / MASTER_RATE)
    return found


@needs_flite
def test_training_keeps_the_pace_of_a_voice_and_shifting_labels_twice_does_not(
    lessons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels shifted once too often, as in the authors' script, teach the model to skip frames, so that speech becomes ever faster."""
    real = sum(len(speak(SLT, text)) for text in UNSEEN) / MASTER_RATE
    right = lengths(lessons, tmp_path / "right")
    once = modeling.align_first_codebook
    monkeypatch.setattr(modeling, "align_first_codebook", lambda hidden, labels, rows: once(hidden, labels.roll(-1, 1), rows - 1))
    wrong = lengths(lessons, tmp_path / "wrong")
    assert all(abs(later / earlier - 1) <= 0.02 for earlier, later in pairwise(right))
    assert all(abs(seconds / real - 1) <= 0.04 for seconds in right)
    assert all(seconds < 0.96 * real for seconds in wrong)
