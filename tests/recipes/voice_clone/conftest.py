"""A tiny model, two synthetic voices, and a model that has memorized their clips; built once and shared by all tests here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

from overtone.finetune.config import Config, resolve
from overtone.finetune.modeling.loading import materialise
from overtone.finetune.recipe import Batch, ExportPlan, Loaded, Sample
from overtone.recipes.voice_clone.model import tiny_checkpoint
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.shared_folders import share_folder

TEXTS = ("She counted the boats.", "It is never late!")
BOOKS, ENTRIES = 16, 64

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("tiny") / "nano", "nano")


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("tiny") / "mini", "mini")


def voice(pitch: float, tilt: float, seconds: float = 1.0, rate: int = 24000) -> np.ndarray:
    """A buzz of ten harmonics: pitch in Hz, each harmonic weaker than the one before by `tilt`."""
    time = np.arange(round(seconds * rate)) / rate
    wave = sum(tilt**k * np.sin(2 * np.pi * pitch * (k + 1) * time) for k in range(10))
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


@dataclass(frozen=True)
class Corpus:
    """A folder with clips and a train.jsonl."""

    train: Path
    rows: list[dict[str, Any]]

    def config(self, base: Path, *overrides: tuple[str, str]) -> Config:
        given = {"model.source": base, "data.train": self.train, "run.dir": self.train.parent / "run"}
        chosen = [(key, json.dumps(str(value))) for key, value in given.items()]
        return resolve("voice_clone", RECIPE.Options, [], [*chosen, *overrides])


def write_corpus(folder: Path, rows: list[dict[str, Any]]) -> Corpus:
    """Two clips of sound, `low.flac` and `high.flac`, and the rows as train.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / "low.flac", voice(110, 0.9), 24000)
    soundfile.write(folder / "high.flac", voice(233, 0.5), 24000)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Corpus(folder / "train.jsonl", rows)


def make_rows(
    speakers: dict[str, str], languages: tuple[str, str] = ("english", "auto"), frames: int = 8, seed: int = 0
) -> list[dict[str, Any]]:
    """Every speaker (name → clip) says every text in the language of the text; each row has its own codes and length."""
    random = np.random.RandomState(seed)
    rows = []
    for name, clip in speakers.items():
        for text, language in zip(TEXTS, languages, strict=True):
            codes = random.randint(0, ENTRIES, (frames + len(rows), BOOKS)).tolist()
            rows.append({"audio": clip, "text": text, "speaker": name, "language": language, "audio_codes": codes})
    return rows


@pytest.fixture(scope="session")
def corpus() -> Callable[[Path, list[dict[str, Any]]], Corpus]:
    return write_corpus


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    return make_rows


@dataclass(frozen=True)
class Ready:
    """A recipe's model with its weights in, and its data as samples."""

    config: Config
    loaded: Loaded
    samples: list[Sample]

    @property
    def model(self) -> torch.nn.Module:
        return self.loaded.model

    @property
    def batch(self) -> Batch:
        return RECIPE.collate(self.samples)


def make_ready(config: Config, rows: list[dict[str, Any]]) -> Ready:
    RECIPE.prepare(config)
    loaded = RECIPE.load(config)
    materialise(loaded.model, loaded.base, loaded.buffers, torch.device("cpu"), config.run.seed)
    return Ready(config, loaded, [RECIPE.read(row, loaded.processor, Path()) for row in rows])


@pytest.fixture(scope="session")
def ready() -> Callable[[Config, list[dict[str, Any]]], Ready]:
    return make_ready


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, nano: Path) -> Ready:
    """The untrained nano with four clips; do not change its weights."""
    made = write_corpus(tmp_path_factory.mktemp("fresh"), make_rows({"Anna": "high.flac", "Bert": "low.flac"}))
    return make_ready(made.config(nano), made.rows)


def mean_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    terms = RECIPE.loss(model, batch)
    return torch.stack([term.weight * term.sum / batch.targets[name] for name, term in terms.items()]).sum()


def memorize(ready: Ready, steps: int = 400) -> dict[str, float]:
    """Plain AdamW until the top-1 guess is right for nearly every target; returns the losses and accuracies per target."""
    optimizer = torch.optim.AdamW(ready.model.parameters(), lr=1e-2, betas=(0.9, 0.98), weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(ready.model, ready.batch).backward()
        torch.nn.utils.clip_grad_norm_(ready.model.parameters(), 1.0)
        optimizer.step()
        warm.step()
    with torch.no_grad():
        terms = RECIPE.loss(ready.model, ready.batch)
    return {name: float(term.sum) / ready.batch.targets[name] for name, term in terms.items()}


def apply_plan(plan: ExportPlan, base: Path, model: torch.nn.Module, folder: Path) -> Path:
    """Carry out an export plan for a model that fits into memory."""
    trained = model.state_dict()
    tensors = {name: trained.get(name, value) for name, value in load_file(base / "model.safetensors").items() if plan.keep(name)}
    for name, change in plan.edit.items():
        tensors[name] = change(tensors[name].float())
    folder.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    for name, data in plan.files.items():
        (folder / name).write_bytes(data)
    for name in plan.copy:
        for source in sorted((base / name).rglob("*")) if (base / name).is_dir() else [base / name]:
            if source.is_file():
                (folder / source.relative_to(base)).parent.mkdir(parents=True, exist_ok=True)
                (folder / source.relative_to(base)).write_bytes(source.read_bytes())
    return folder


def make_export(ready: Ready, kind: str, folder: Path) -> Path:
    plan = RECIPE.export(ready.loaded.base, ready.loaded.state, ready.loaded.buffers, kind)
    return apply_plan(plan, ready.loaded.base, ready.model, folder)


@pytest.fixture(scope="session")
def export() -> Callable[[Ready, str, Path], Path]:
    return make_export


@dataclass(frozen=True)
class Learned:
    """A model that has memorized its clips, and its two exports, which all test processes share: copy one to change it."""

    ready: Ready
    rows: list[dict[str, Any]]
    right: dict[str, float]
    custom_voice: Path
    base: Path


def learn(factory: pytest.TempPathFactory, name: str, base: Path, rows: list[dict[str, Any]], steps: int) -> Learned:
    """Memorize the rows and export the model, once for all test processes: the others read its weights."""

    def train(folder: Path) -> None:
        ready = make_ready(write_corpus(folder / "data", rows).config(base), rows)
        right = memorize(ready, steps)
        for kind in RECIPE.formats:
            make_export(ready, kind, folder / kind)
        save_model(ready.model, str(folder / "memorized.safetensors"))
        (folder / "right.json").write_text(json.dumps(right))

    folder = share_folder(factory, name, train)
    ready = make_ready(write_corpus(factory.mktemp(name), rows).config(base), rows)
    load_model(ready.model, folder / "memorized.safetensors")
    return Learned(ready, rows, json.loads((folder / "right.json").read_text()), folder / "custom_voice", folder / "base")


@pytest.fixture(scope="session")
def two_voices(tmp_path_factory: pytest.TempPathFactory, nano: Path) -> Learned:
    """Two speakers and two texts, all four combinations in one language."""
    rows = make_rows({"Anna": "high.flac", "Bert": "low.flac"}, ("english", "english"))
    return learn(tmp_path_factory, "two_voices", nano, rows, 400)


@pytest.fixture(scope="session")
def one_voice(tmp_path_factory: pytest.TempPathFactory, nano: Path) -> Learned:
    """One speaker, two texts, no language in the prompt."""
    return learn(tmp_path_factory, "one_voice", nano, make_rows({"Anna": "high.flac"}, ("auto", "auto")), 300)


def write_babbler(path: Path) -> Path:
    """A Whisper of one layer with random weights."""
    from whisper.model import ModelDimensions, Whisper

    torch.manual_seed(0)
    model = Whisper(ModelDimensions(80, 1500, 64, 1, 1, 51865, 64, 64, 1, 1))
    torch.nn.init.normal_(model.decoder.token_embedding.weight)
    torch.nn.init.normal_(model.decoder.positional_embedding)
    torch.save({"dims": vars(model.dims), "model_state_dict": model.state_dict()}, path)
    return path


@pytest.fixture(scope="session")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("whisper") / "babbler.pt")


def write_speaker_model(folder: Path) -> Path:
    """A speaker verification model of transformers' own classes with random weights."""
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    small = {"conv_dim": (8,) * 7, "tdnn_dim": (16,) * 5, "xvector_output_dim": 16, "num_conv_pos_embeddings": 8}
    WavLMForXVector(WavLMConfig(**sizes, **small, num_conv_pos_embedding_groups=2)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_speaker_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaker_model(tmp_path_factory.mktemp("speakers") / "tiny-sv")
