"""The layouts in which other programs read a voice dataset: one function each, which fills an empty folder.

All paths inside are relative to that folder, so that it can be moved.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.audio import MASTER_RATE, integers, read
from data_prep.manifest import AUTO, TRAIN, VAL, Row
from finetune import files
from finetune.errors import UserError

AUDIO_FOLDER_READS = (".flac", ".mp3", ".ogg", ".opus", ".wav")
COLUMNS = ("id", "text", "speaker", "language", "duration", "source", "start", "end")
REFERENCE_SECONDS = 6.0
REFERENCE = "ref.wav"


@dataclass(frozen=True)
class Item:
    """One clip to be exported."""

    name: str
    """Of its file, without the suffix; no other item has it."""
    place: str
    """Where its row stands."""
    row: Row
    """Without its codes."""
    codes: NDArray[np.uint16] | None
    """[T][16]."""
    clip: Path
    reference: Path | None
    validates: bool
    seconds: float


@dataclass(frozen=True)
class Exported:
    """What was written."""

    items: list[Item]
    left_out: list[str]
    """Place and reason of each."""
    how_to: str
    """How others read it; `{folder}` is its place."""


def ljspeech(items: list[Item], folder: Path) -> Exported:
    """`wavs/ID.wav` and lines `id|text|text` in metadata.csv, as LJSpeech has them; of several speakers `id|speaker|text`, as Piper does.

    Clips to validate on are in metadata_val.csv. A text with `|` has no place in this layout.
    """
    fit = [item for item in items if "|" not in item.row.text]
    several = len({item.row.speaker for item in fit}) > 1
    for item in fit:
        _write(item.clip, folder / "wavs" / f"{item.name}.wav")
    for name, validates in (("metadata.csv", False), ("metadata_val.csv", True)):
        lines = [_fields(item, several) for item in fit if item.validates == validates]
        if lines:
            files.write_in_place(folder / name, "".join(f"{'|'.join(fields)}\n" for fields in lines).encode())
    left_out = [f"{item.place}: the text holds |, which divides the fields of metadata.csv" for item in items if "|" in item.row.text]
    meaning = "id|speaker|text" if several else "id|text|text"
    return Exported(fit, left_out, f"metadata.csv has lines {meaning} (to validate on: metadata_val.csv); wavs/ is {MASTER_RATE} Hz")


def _fields(item: Item, several: bool) -> list[str]:
    text, speaker = " ".join(item.row.text.split()), item.row.speaker or ""
    if several and (not speaker or "|" in speaker):
        raise UserError(f"{item.place}: speaker {speaker!r} cannot stand in metadata.csv; name it without |, or export one with --speaker")
    return [item.name, speaker if several else text, text]


def audiofolder(items: list[Item], folder: Path) -> Exported:
    """`train/` and `validation/` with a metadata.jsonl each, as `datasets.load_dataset("audiofolder", data_dir=…)` reads them.

    https://huggingface.co/docs/datasets/audio_dataset: `file_name` is relative to its metadata.jsonl, and each split has the same columns.
    """
    columns = [column for column in COLUMNS if all(getattr(item.row, column) is not None for item in items)]
    for split, validates in (("train", False), ("validation", True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / split / "metadata.jsonl", _described(beside, columns, folder / split))
    return Exported(items, [], 'datasets.load_dataset("audiofolder", data_dir="{folder}")')


def _described(items: list[Item], columns: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    for item in items:
        suffix = item.clip.suffix.lower()
        if suffix in AUDIO_FOLDER_READS:
            files.link_into(item.clip, folder / f"{item.name}{suffix}")
        else:
            suffix = ".wav"
            _write(item.clip, folder / f"{item.name}{suffix}")
        yield {"file_name": f"{item.name}{suffix}", **{column: getattr(item.row, column) for column in columns}}


def qwen(items: list[Item], folder: Path) -> Exported:
    """What the official scripts of Qwen3-TTS read (finetuning/ of QwenLM/Qwen3-TTS): train.jsonl with audio, text, ref_audio.

    They train one voice, open paths as they stand (so from inside the folder), insist on 24 kHz for ref_audio, and join the mels of
    all references of a batch, which must therefore be of one length: here it is one clip for all rows.
    """
    names = sorted({item.row.speaker for item in items if item.row.speaker})
    if len(names) > 1:
        raise UserError(f"the official script trains one voice, and here are {', '.join(names)}; export one at a time with --speaker NAME")
    _write(_reference(items), folder / REFERENCE)
    for item in items:
        _write(item.clip, folder / "wavs" / f"{item.name}.wav")
    for name, validates in ((TRAIN, False), (VAL, True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / name, map(_official, beside))
    script = f"sft_12hz.py --train_jsonl {TRAIN}"
    if items[0].codes is None:
        script = f"prepare_data.py --input_jsonl {TRAIN} --output_jsonl train_with_codes.jsonl"
    return Exported(items, [], f"cd {{folder}} && python …/Qwen3-TTS/finetuning/{script} …")


def voice(items: list[Item], folder: Path) -> Exported:
    """What `data_prep voice` makes, from clips that lay anywhere: clips/ID.flac, and rows that keep all that they had, their codes too."""
    clips = {item.clip: f"clips/{item.name}.flac" for item in items}
    foreign = dict.fromkeys(item.reference for item in items if item.reference and item.reference not in clips)
    places = clips | {path: f"refs/{number:04d}.wav" for number, path in enumerate(foreign) if path}
    for path, place in places.items():
        _write(path, folder / place, "WAV" if place.endswith(".wav") else "FLAC")
    for name, validates in ((TRAIN, False), (VAL, True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / name, (_moved(item, places) for item in beside))
    speaker = "" if all(item.row.speaker for item in items) else " --speaker NAME"
    return Exported(items, [], f"next: python -m data_prep codes {{folder}} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base{speaker}")


def _moved(item: Item, places: Mapping[Path, str]) -> dict[str, Any]:
    row = item.row.model_dump(mode="json", exclude_none=True) | {"audio": places[item.clip], "split": "val" if item.validates else "train"}
    reference = {"ref_audio": places[item.reference]} if item.reference else {}
    return row | reference | ({} if item.codes is None else {"audio_codes": item.codes.tolist()})


def _official(item: Item) -> dict[str, Any]:
    row = {"audio": f"wavs/{item.name}.wav", "text": item.row.text, "ref_audio": REFERENCE}
    known = {} if item.row.language in ("", AUTO) else {"language": item.row.language}
    return row | known | ({} if item.codes is None else {"audio_codes": item.codes.tolist()})


def _reference(items: list[Item]) -> Path:
    """The clip that most rows name, or else one to train on of about six seconds."""
    named = Counter(item.reference for item in items if item.reference)
    if named:
        return named.most_common(1)[0][0]
    trained = [item for item in items if not item.validates] or items
    return min(trained, key=lambda item: (abs(item.seconds - REFERENCE_SECONDS), item.name)).clip


def _write(clip: Path, target: Path, layout: str = "WAV") -> None:
    """At 24 kHz, mono, 16 bits. Samples that are so already stay bit by bit, and a file that is so already is linked."""
    import soundfile

    try:
        info = soundfile.info(clip)
        found = info.format if (info.samplerate, info.channels, info.subtype) == (MASTER_RATE, 1, "PCM_16") else ""
    except soundfile.LibsndfileError:  # another decoder reads it
        found = ""
    if found == layout:
        files.link_into(clip, target)
        return
    samples = soundfile.read(clip, dtype="int16")[0] if found in ("FLAC", "WAV") else integers(read(clip, MASTER_RATE).samples)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, MASTER_RATE, format=layout, subtype="PCM_16")
    files.write_in_place(files.make_folder(target.parent) / target.name, buffer.getvalue())


FORMATS: Mapping[str, Callable[[list[Item], Path], Exported]] = {
    "ljspeech": ljspeech,
    "audiofolder": audiofolder,
    "qwen": qwen,
    "voice": voice,
}
