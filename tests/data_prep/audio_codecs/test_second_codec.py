"""A codec of another rate, frame rate and number of codebooks needs only its adapter: encoding, checks and exports use its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples, read_audio_unchanged
from overtone.data_prep.audio_codecs import interface, selection
from overtone.data_prep.audio_codecs.interface import CodeFormat, Codes, read_code_format
from overtone.data_prep.audio_codecs.selection import Adapter, open_codec
from overtone.data_prep.cli import check, codes, export
from overtone.data_prep.clips.speaker_similarity import LONGEST_SECONDS, embed_clips
from overtone.data_prep.dataset.clip_encoding import STORE
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_resolver import resolve_model

CONFIG = {"model_type": "level_codec", "sampling_rate": 16_000, "frame_rate": 25, "num_codebooks": 4, "codebook_size": 256}
FORMAT = CodeFormat(sample_rate=16_000, samples_per_frame=640, codebooks=4, codebook_size=256)
SECONDS = {"a": 1.0, "b": 1.01, "c": 2.5}
FRAMES = {"a": 25, "b": 26, "c": 63}


@dataclass(frozen=True)
class LevelCodec:
    """Codes are the mean levels of the four quarters of each frame."""

    model: Path
    sample_rate: int
    frame_rate: float
    codebooks: int
    codebook_size: int
    recipe: ClassVar[str] = "csm"

    @property
    def folder(self) -> Path:
        return self.model

    @property
    def samples_per_frame(self) -> int:
        return round(self.sample_rate / self.frame_rate)

    def digest(self) -> str:
        return hashlib.sha256((self.model / "config.json").read_bytes()).hexdigest()

    def estimate_worker_bytes(self, seconds: float) -> int:
        return round(4 * seconds * self.sample_rate)

    def load(self, device: str) -> LoadedLevelCodec:
        assert device == "cpu"
        return LoadedLevelCodec(self)


@dataclass(frozen=True)
class LoadedLevelCodec:
    codec: LevelCodec

    def encode(self, clips: Sequence[Samples]) -> list[Codes]:
        return [self._encode_clip(clip) for clip in clips]

    def _encode_clip(self, clip: Samples) -> Codes:
        frames = read_code_format(self.codec).count_frames(len(clip))
        padded = np.pad(clip, (0, frames * self.codec.samples_per_frame - len(clip)))
        levels = np.abs(padded).reshape(frames, self.codec.codebooks, -1).mean(axis=2)
        return np.minimum(levels * self.codec.codebook_size, self.codec.codebook_size - 1).astype(np.uint16)

    def decode(self, codes: Codes) -> Samples:
        return np.repeat(codes.astype(np.float32).ravel() / self.codec.codebook_size, self.codec.samples_per_frame // self.codec.codebooks)


def open_level_codec(option: str, model: str, commit: str | None) -> LevelCodec:
    folder = resolve_model(option, model, ["config.json"], commit)
    config = json.loads((folder / "config.json").read_text())
    return LevelCodec(folder, config["sampling_rate"], config["frame_rate"], config["num_codebooks"], config["codebook_size"])


@pytest.fixture
def level_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder whose config.json selects the second codec."""
    adapter: Adapter[interface.Codec] = Adapter("level codec", "config.json", frozenset({"level_codec"}), open_level_codec)
    monkeypatch.setattr(selection, "CODECS", (*selection.CODECS, adapter))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Clips at 24 kHz, as `overtone voice` writes them."""
    folder = tmp_path / "data"
    (folder / "clips").mkdir(parents=True)
    for seed, (name, seconds) in enumerate(SECONDS.items()):
        samples = np.random.default_rng(seed).uniform(-0.3, 0.3, round(seconds * MASTER_RATE))
        soundfile.write(folder / "clips" / f"{name}.flac", samples, MASTER_RATE)
    lines = [
        {"id": name, "audio": f"clips/{name}.flac", "text": f"Text {name}.", "speaker": "me", "language": "english"} for name in SECONDS
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def encode_dataset(dataset: Path, model: Path, *more: str) -> int:
    return codes.main([str(dataset), "--model", str(model), "--device", "cpu", "--workers", "0", *more])


def test_a_config_selects_the_second_codec_with_its_own_numbers(level_model: Path, nano: Path) -> None:
    codec = open_codec(str(level_model))
    assert isinstance(codec, LevelCodec) and read_code_format(codec) == FORMAT
    assert (FORMAT.count_frames(640), FORMAT.count_frames(641)) == (1, 2)
    assert read_code_format(open_codec(str(nano))).sample_rate == 24_000, "a Qwen3-TTS model still selects its own adapter"


def test_codes_are_computed_at_the_rate_of_the_codec(dataset: Path, level_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert encode_dataset(dataset, level_model) == 0
    loaded = open_codec(str(level_model)).load("cpu")
    for row in read_rows(dataset / "train.jsonl"):
        found = np.array(row["audio_codes"], np.uint16)
        assert found.shape == (FRAMES[row["id"]], 4)
        (expected,) = loaded.encode([resample(dataset / row["audio"])])
        assert np.array_equal(found, expected)
    summary = json.loads((dataset / STORE / "summary.json").read_text())
    assert summary["frames"] == sum(FRAMES.values()) and summary["seconds"] == round(sum(FRAMES.values()) / 25, 2)
    assert "114 frames, 4.56 s; 3 encoded now" in capsys.readouterr().out


def test_batches_are_limited_in_seconds_at_the_rate_of_the_codec(
    dataset: Path, level_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode_dataset(dataset, level_model, "--batch-seconds", "2.1") == 0
    progress = [line for line in capsys.readouterr().out.splitlines() if "clips encoded" in line]
    assert [line.split()[0] for line in progress] == ["[2/3]", "[3/3]"]  # a and b: twice 1.01 s


@pytest.mark.parametrize("named", [True, False], ids=["with --model", "from the stored format"])
def test_the_row_checks_use_the_numbers_of_the_codec(
    dataset: Path, level_model: Path, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode_dataset(dataset, level_model) == 0
    command = [str(dataset), *(["--model", str(level_model)] if named else [])]
    assert check.main(command) == 0
    assert "note: 3 clips not at 16000 Hz, resampled when used" in capsys.readouterr().out
    rows = read_rows(dataset / "train.jsonl")
    rows[0]["audio_codes"][3].pop()
    rows[1]["audio_codes"].pop()
    rows[2]["audio_codes"][0][0] = 256
    (dataset / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert check.main(command) == 1
    printed = capsys.readouterr().out
    assert "frame 3 has 3 codes, expected 4" in printed
    assert "25 frames for 16160 samples at 16000 Hz, expected 26" in printed
    assert "to 256, expected 0 to 255" in printed


def test_a_dataset_with_codes_of_the_second_codec_is_exported(dataset: Path, level_model: Path, tmp_path: Path) -> None:
    assert encode_dataset(dataset, level_model) == 0
    assert export.main([str(dataset), "--as", "voice", "--to", str(tmp_path / "copy")]) == 0
    before, after = (read_rows(folder / "train.jsonl") for folder in (dataset, tmp_path / "copy"))
    assert [row["audio_codes"] for row in after] == [row["audio_codes"] for row in before]


def test_an_unsupported_model_with_its_own_code_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "auto_map": {"AutoModel": "model.OtherCodec"}}))
    with pytest.raises(
        UserError, match=r"model_type 'other' is not one whose speaker encoder is supported; the folder contains its own code"
    ):
        selection.open_speaker_encoder(str(tmp_path), "--speaker-check")


class RecordingEncoder:
    """A speaker encoder that takes 16 kHz and remembers the lengths of its clips."""

    sample_rate, shortest_seconds, dimensions = 16_000, 1.005, 2

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def embed(self, clip: Samples) -> np.ndarray:
        self.lengths.append(len(clip))
        return np.ones(2, np.float32)


def test_clips_are_embedded_at_the_rate_of_the_speaker_encoder(dataset: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.flac"
    soundfile.write(long, np.random.default_rng(9).uniform(-0.3, 0.3, (LONGEST_SECONDS + 1) * MASTER_RATE), MASTER_RATE)
    encoder = RecordingEncoder()
    vectors = embed_clips(encoder, {name: dataset / "clips" / f"{name}.flac" for name in SECONDS} | {"long": long})
    assert encoder.lengths == [16_160, 40_000, LONGEST_SECONDS * 16_000] and set(vectors) == {"b", "c", "long"}


def resample(path: Path) -> Samples:
    """The clip at 16 kHz, by the resampler that the package uses."""
    import soxr

    audio = read_audio_unchanged(path)
    stream = soxr.ResampleStream(audio.rate, 16_000, 1, dtype="float32", quality="VHQ")
    return stream.resample_chunk(audio.samples, last=True)[: round(audio.seconds * 16_000)]


@pytest.mark.parametrize("stored", ["level", {**asdict(FORMAT), "codebooks": 0}, {"sample_rate": 16_000}])
def test_a_damaged_code_format_is_reported_with_its_file(
    stored: object, dataset: Path, level_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode_dataset(dataset, level_model) == 0
    path = dataset / STORE / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "code_format": stored}))
    capsys.readouterr()
    assert check.main([str(dataset)]) == 2
    assert f"{path}: code_format" in capsys.readouterr().err
