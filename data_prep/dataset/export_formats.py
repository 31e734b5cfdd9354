"""Export formats for voice datasets (LJSpeech, AudioFolder, Qwen3-TTS, our own): one function per format, which fills an empty folder.

All paths in the written files are relative to that folder, so it can be moved.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from overtone.data_prep.audio.stream_reader import is_joined
from overtone.data_prep.audio.waveform import MASTER_RATE, convert_to_int16, encode_pcm_file, read_audio
from overtone.data_prep.audio_codecs.selection import DEFAULT_MODEL
from overtone.data_prep.manifest import AUTO, TRAIN, VAL, ManifestRow
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.synthetic_audio_mark import make_comment_of_copy

AUDIO_FOLDER_READS = (".flac", ".mp3", ".ogg", ".opus", ".wav")
COLUMNS = ("id", "text", "speaker", "language", "duration", "source", "start", "end")
REFERENCE_SECONDS = 6.0
REFERENCE = "ref.wav"


@dataclass(frozen=True)
class ExportItem:
    """One clip to export."""

    name: str
    """Unique file name, without the suffix."""
    place: str
    """Manifest and line number of its row."""
    row: ManifestRow
    """The row without `audio_codes`."""
    codes: NDArray[np.uint16] | None
    """[frames, codebooks]; None if the row has none."""
    clip: Path
    reference: Path | None
    validates: bool
    seconds: float


@dataclass(frozen=True)
class ExportResult:
    """Result of an export."""

    items: list[ExportItem]
    skipped: list[str]
    """Location and reason of each skipped row."""
    how_to: Callable[[Path], str]
    """Function from the path of the export to instructions on how to use it."""


def write_ljspeech(items: list[ExportItem], folder: Path) -> ExportResult:
    """Write `wavs/ID.wav` and metadata.csv with lines `id|text|text` (LJSpeech), or `id|speaker|text` with several speakers (Piper).

    Validation clips are listed in metadata_val.csv. Rows whose text contains `|` cannot be represented and are skipped.
    """
    fit = [item for item in items if "|" not in item.row.text]
    several = len({item.row.speaker for item in fit}) > 1
    for item in fit:
        _write_clip(item.clip, folder / "wavs" / f"{item.name}.wav")
    for name, validates in (("metadata.csv", False), ("metadata_val.csv", True)):
        lines = [_make_fields(item, several) for item in fit if item.validates == validates]
        if lines:
            files.write_in_place(folder / name, "".join(f"{'|'.join(fields)}\n" for fields in lines).encode())
    skipped = [f"{item.place}: the text contains |, the field separator of metadata.csv" for item in items if "|" in item.row.text]
    meaning = "id|speaker|text" if several else "id|text|text"
    how_to = f"metadata.csv has lines {meaning} (validation: metadata_val.csv); wavs/ is {MASTER_RATE} Hz"
    return ExportResult(fit, skipped, lambda _: how_to)


def _make_fields(item: ExportItem, several: bool) -> list[str]:
    text, speaker = " ".join(item.row.text.split()), item.row.speaker or ""
    if several and (not speaker or "|" in speaker):
        raise UserError(
            f"{item.place}: speaker {speaker!r} cannot be written to metadata.csv; use a non-empty name without |, "
            "or export one speaker with --speaker"
        )
    return [item.name, speaker if several else text, text]


def write_audiofolder(items: list[ExportItem], folder: Path) -> ExportResult:
    """Write `train/` and `validation/`, each with a metadata.jsonl, for `datasets.load_dataset("audiofolder", data_dir=…)`.

    https://huggingface.co/docs/datasets/audio_dataset: `file_name` is relative to metadata.jsonl, and all splits have the same columns.
    """
    columns = [column for column in COLUMNS if all(getattr(item.row, column) is not None for item in items)]
    for split, validates in (("train", False), ("validation", True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / split / "metadata.jsonl", _write_audiofolder_clips(beside, columns, folder / split))
    return ExportResult(items, [], lambda to: f'datasets.load_dataset("audiofolder", data_dir="{to}")')


def _write_audiofolder_clips(items: list[ExportItem], columns: list[str], folder: Path) -> Iterator[dict[str, object]]:
    for item in items:
        suffix = item.clip.suffix.lower()
        if suffix in AUDIO_FOLDER_READS:
            files.link_into(item.clip, folder / f"{item.name}{suffix}")
        else:
            suffix = ".wav"
            _write_clip(item.clip, folder / f"{item.name}{suffix}")
        yield {"file_name": f"{item.name}{suffix}", **{column: getattr(item.row, column) for column in columns}}


def write_qwen(items: list[ExportItem], folder: Path) -> ExportResult:
    """Write train.jsonl with audio, text, ref_audio for the official Qwen3-TTS scripts (finetuning/ of QwenLM/Qwen3-TTS).

    These scripts train one voice, resolve paths from the working directory, require 24 kHz for ref_audio, and stack the mel spectrograms
    of all references of a batch, which must therefore have equal length: all rows share one reference clip.
    """
    names = sorted({item.row.speaker for item in items if item.row.speaker})
    if len(names) > 1:
        raise UserError(
            f"the official script trains one voice, but the dataset has {', '.join(names)}; export one at a time with --speaker NAME"
        )
    _write_clip(_choose_reference(items), folder / REFERENCE)
    for item in items:
        _write_clip(item.clip, folder / "wavs" / f"{item.name}.wav")
    for name, validates in ((TRAIN, False), (VAL, True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / name, map(_make_official_row, beside))
    script = f"sft_12hz.py --train_jsonl {TRAIN}"
    if items[0].codes is None:
        script = f"prepare_data.py --input_jsonl {TRAIN} --output_jsonl train_with_codes.jsonl"
    return ExportResult(items, [], lambda to: f"cd {shlex.quote(str(to))} && python …/Qwen3-TTS/finetuning/{script} …")


def write_voice(items: list[ExportItem], folder: Path) -> ExportResult:
    """Write the layout of `overtone voice`: clips/ID.flac from clips anywhere on disk; rows keep all their fields, codes included."""
    clips = {item.clip: f"clips/{item.name}.flac" for item in items}
    foreign = dict.fromkeys(item.reference for item in items if item.reference and item.reference not in clips)
    places = clips | {path: f"refs/{number:04d}.wav" for number, path in enumerate(foreign) if path}
    for path, place in places.items():
        _write_clip(path, folder / place, "WAV" if place.endswith(".wav") else "FLAC")
    for name, validates in ((TRAIN, False), (VAL, True)):
        beside = [item for item in items if item.validates == validates]
        if beside:
            files.write_jsonl(folder / name, (_make_dataset_row(item, places) for item in beside))
    if all(item.codes is not None for item in items):
        return ExportResult(items, [], lambda to: f"next: {overtone_command('check-dataset', to)}")
    speaker = [] if all(item.row.speaker for item in items) else ["--speaker", "NAME"]
    return ExportResult(items, [], lambda to: f"next: {overtone_command('codes', to, '--model', DEFAULT_MODEL, *speaker)}")


def _make_dataset_row(item: ExportItem, places: Mapping[Path, str]) -> dict[str, object]:
    row = item.row.model_dump(mode="json", exclude_none=True) | {"audio": places[item.clip], "split": "val" if item.validates else "train"}
    reference = {"ref_audio": places[item.reference]} if item.reference else {}
    return row | reference | ({} if item.codes is None else {"audio_codes": item.codes.tolist()})


def _make_official_row(item: ExportItem) -> dict[str, object]:
    row = {"audio": f"wavs/{item.name}.wav", "text": item.row.text, "ref_audio": REFERENCE}
    known = {} if item.row.language in ("", AUTO) else {"language": item.row.language}
    return row | known | ({} if item.codes is None else {"audio_codes": item.codes.tolist()})


def _choose_reference(items: list[ExportItem]) -> Path:
    """Return the reference clip that most rows name; otherwise the training clip nearest to six seconds."""
    named = Counter(item.reference for item in items if item.reference)
    if named:
        return named.most_common(1)[0][0]
    trained = [item for item in items if not item.validates] or items
    return min(trained, key=lambda item: (abs(item.seconds - REFERENCE_SECONDS), item.name)).clip


def _write_clip(clip: Path, target: Path, layout: str = "WAV") -> None:
    """Write a clip at 24 kHz, mono, 16 bits. Matching samples are kept bit-exactly; a matching file is hard-linked."""
    input_files.require_regular(clip)
    try:
        info = soundfile.info(clip)
        found = info.format if (info.samplerate, info.channels, info.subtype) == (MASTER_RATE, 1, "PCM_16") else ""
        found = "" if found and is_joined(clip) else found
    except soundfile.LibsndfileError:  # PyAV decodes it
        found = ""
    if found == layout:
        files.link_into(clip, target)
        return
    samples = (
        soundfile.read(clip, dtype="int16")[0] if found in ("FLAC", "WAV") else convert_to_int16(read_audio(clip, MASTER_RATE).samples)
    )
    data = encode_pcm_file(samples, MASTER_RATE, layout, make_comment_of_copy(clip))
    files.write_in_place(files.make_folder(target.parent) / target.name, data)


FORMATS: Mapping[str, Callable[[list[ExportItem], Path], ExportResult]] = {
    "ljspeech": write_ljspeech,
    "audiofolder": write_audiofolder,
    "qwen": write_qwen,
    "voice": write_voice,
}
