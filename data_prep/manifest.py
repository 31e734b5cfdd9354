"""JSONL manifests: schema, reading and writing of train.jsonl, val.jsonl and rejects.jsonl. Paths are relative to the file.

Rows are a superset of the official Qwen3-TTS script's ({audio, text, ref_audio[, language]}), whose files can be read too. Unknown keys are
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from overtone.data_prep.language_codes import find_language_name
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.referenced_files import find_file

LANGUAGES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}
"""Code → name of the languages of Qwen3-TTS; rows contain the names."""
AUTO = "auto"
"""Language of rows without a known language."""

TRAIN, VAL, REJECTS, SUMMARY, RUN = "train.jsonl", "val.jsonl", "rejects.jsonl", "summary.json", "run.json"


def locate_shifted_rows(manifest: Path) -> Path:
    """Return the file beside a manifest with its rows and their time-shifted copies: train.jsonl → train.shifted.jsonl."""
    return manifest.with_suffix(f".shifted{manifest.suffix}")


def training_command(dataset: Path, recipe: str, base: str | None = None) -> str:
    """Return the command that trains on a dataset with audio codes, or on one of its files, quoted for a shell; with the time-shifted
    copies if there are some.

    `recipe`: that of the codes' codec. `base`: the base model, if it is not that of the recipe.
    """
    rows = locate_training_rows(dataset)
    source = [] if base is None else ["--model.source", base]
    validation = [] if rows.val is None else ["--data.val", rows.val]
    return overtone_command("train", "--recipe", recipe, *source, "--data.train", rows.train, *validation)


class TrainingRows(NamedTuple):
    """The files of a dataset that a training reads."""

    train: Path
    """Training rows, with the time-shifted copies if there are some."""
    val: Path | None
    """Validation rows; None if there are none."""


def locate_training_rows(dataset: Path) -> TrainingRows:
    """Return the rows of a dataset, or of one of its files."""
    plain, val = dataset / TRAIN if dataset.is_dir() else dataset, dataset / VAL
    copies = locate_shifted_rows(plain)
    return TrainingRows(copies if copies.is_file() else plain, val if val.is_file() and val.stat().st_size else None)


class Quality(BaseModel):
    """Measures of one clip's audio and text. dB: relative to the power of its speech; dBFS: to full scale. None: unknown."""

    model_config = ConfigDict(frozen=True, extra="allow")

    chars_per_second: float
    """Characters of the text per second of speech."""
    speech_share: float
    """Share of the clip that voice activity detection marks as speech."""
    peak_dbfs: float
    clipped_share: float
    """Share of samples at full scale."""
    snr_db: float | None = None
    """Power of the speech relative to the median power of the recording outside speech."""
    background_db: float | None = None
    """Level of the quietest moments in and around the clip."""
    edge_energy_db: tuple[float, float]
    """Level of the first and of the last 30 ms; low if the cut is in silence."""
    longest_pause: float | None = None
    """Longest gap in seconds between two speech regions inside the clip."""
    loudness_lufs: float | None = None
    """Integrated, ITU-R BS.1770."""
    bandwidth_hz: float | None = None
    """Upper end of the recording's spectrum."""
    pitch_hz: float | None = None
    """Median fundamental frequency of the voiced frames."""
    speaker_cos: float | None = None
    """Speaker similarity: cosine between the clip's speaker embedding and its speaker's mean, by the encoder of --speaker-check."""
    other_voice_share: float | None = None
    """Share of the clip's windows of 1.6 s with another voice than most of them, by the encoder of --speaker-check."""
    overlap_share: float | None = None
    """Share of the clip's loud frames in which a second voice speaks at the same time (`data_prep/clips/overlapped_speech.py`)."""
    is_speaker: bool | None = None
    """False if another person speaks most of the clip, in a recording that also holds the speaker."""
    mos_speech: float | None = None
    """Predicted rating, from 1 to 5, of the speech: DNSMOS P.835 SIG. All ratings are of the clip after the gain."""
    mos_background: float | None = None
    """Predicted rating of the background: DNSMOS P.835 BAK."""
    mos_overall: float | None = None
    """Predicted overall rating: DNSMOS P.835 OVRL."""
    mos_p808: float | None = None
    """Predicted overall rating: DNSMOS P.808."""
    peak_spread: float | None = None
    """99.9th over 99th percentile of the magnitude, in the loud parts: near 1 if the peaks were cut off, at whatever level."""
    alignment_score: float | None = None
    """Forced alignment of the text with the clip by the model of --align: nats per frame above the limit of that model; negative if
    the text is not what is spoken."""
    unaligned_words: int | None = None
    """Words that the model of --align cannot check, such as digits."""
    check_wer: float | None = None
    """Word error rate between the text and the transcript of the Whisper of --check-with."""
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    text_complete: bool | None = None
    language_prob: float | None = None
    """Probability of the clip's language, by Whisper."""
    repeated_share: float | None = None
    """Share of words that only repeat the preceding words."""
    outside_speech_share: float | None = None
    """Share of words whose middle, by Whisper's timestamps, is outside detected speech."""
    asr_error: str | None = None
    """Error message if Whisper failed."""


class ManifestRow(BaseModel):
    """One clip of a manifest."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str | None = None
    audio: str = Field(min_length=1)
    """Path of a mono clip; 24 kHz if written by `overtone voice`."""
    text: str = Field(min_length=1)
    speaker: str | None = None
    language: str = AUTO
    """Lower-case English name, or `auto`."""
    duration: float | None = None
    """Seconds."""
    ref_audio: str | None = None
    """Path of another clip of the same speaker."""
    quality: Quality | None = None
    """Measures of the audio before the gain."""
    gain_db: float | None = None
    """Gain applied to the clip, the same for a whole recording."""
    source: str | None = None
    """Path of the recording, relative to the folder of recordings."""
    start: float | None = None
    """Seconds in the source."""
    end: float | None = None
    split: Literal["train", "val"] | None = None
    asr: dict[str, str] | None = None
    """Name and scope of the demo Whisper, if it wrote the text."""
    audio_codes: list[list[int]] | None = None
    """[frames, codebooks] codes of the clip, by the codec that `overtone codes` was given."""
    time_shift: float | None = None
    """Seconds of silence before the clip in `audio_codes`, in a copy that `overtone codes --time-shifts` added; None: the clip itself."""


class Reject(BaseModel):
    """A rejected recording, stretch or clip, with the reasons."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str | None = None
    """Clip id, to which review decisions refer."""
    source: str
    start: float = 0.0
    """Seconds."""
    end: float = 0.0
    stage: Literal["recording", "clip", "codes"]
    reasons: list[str] = Field(min_length=1)
    detail: str | None = None
    text: str | None = None
    speaker: str | None = None
    language: str | None = None
    quality: Quality | None = None
    gain_db: float | None = None
    audio: str | None = None
    """Path of the clip file, if it has text."""


def parse_language(given: str) -> str:
    """Return the language name as stored in rows: `en`, `English` → `english`. Other languages must be given by their full name."""
    name = given.strip().lower()
    if name in LANGUAGES:
        return LANGUAGES[name]
    if name == AUTO or name in LANGUAGES.values() or (len(name) > 3 and name.isalpha()):
        return name
    known = ", ".join(f"{code} ({full})" for code, full in LANGUAGES.items())
    raise UserError(f"--language {given}: unknown; give one of {known}, or another language by its full English name")


def parse_locale(given: str) -> str:
    """Return the language name of a locale or code in a table (`pt-BR`, `JP`, `english`); `auto` for an unknown code."""
    name = given.strip().lower().replace("_", "-").partition("-")[0]
    return find_language_name(given) or (name if len(name) > 3 and name.isalpha() else AUTO)


def parse_speaker(given: str) -> str:
    """Return the speaker name in lower case, as the inference code looks it up."""
    name = " ".join(given.split()).lower()
    if not name:
        raise UserError(f"--speaker {given!r}: expected a non-empty name")
    return name


def read_rows(path: Path, speaker: str | None = None) -> Iterator[ManifestRow]:
    """Yield the rows of a manifest. `speaker`: default for rows without one.

    Raises `UserError` with file and line for invalid JSON, invalid rows, and clips outside the manifest's folder.
    """
    for number, value in read_lines(path):
        row = _parse_row(path, number, value)
        if row.speaker is None and speaker is None:
            raise UserError(f'{path}:{number}: the row names no speaker; add "speaker" to it, or give --speaker NAME for all such rows')
        yield row if row.speaker else row.model_copy(update={"speaker": speaker})


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield (line number, object) of each non-blank line."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; create it with: {overtone_command('voice', 'RECORDINGS', '--out', path.parent)}")
    for number, line in enumerate(input_files.read_lines(path), start=1):
        if line.strip():
            yield number, _parse_object(path, number, line)


def resolve_clip(manifest: Path, row: ManifestRow) -> Path:
    """Return the real path of a row's clip. Raises `UserError` if it is outside the manifest's folder."""
    return find_file(manifest.parent, row.audio)


def write_entries(path: Path, entries: Iterable[ManifestRow | Reject]) -> int:
    """Replace a manifest atomically; returns the number of lines."""
    return files.write_jsonl(path, (entry.model_dump(exclude_none=True) for entry in entries))


def write_rows_unless_same(path: Path, rows: list[ManifestRow]) -> None:
    """Replace a manifest unless it already has these rows; rewriting it would lose their codes, which are expensive. Time-shifted copies of
    other rows are removed."""
    plain = [row.model_dump(mode="json", exclude_none=True) for row in rows]
    known = [{key: field for key, field in row.items() if key != "audio_codes"} for _, row in read_lines(path)] if path.is_file() else None
    if plain != known:
        files.write_jsonl(path, plain)
        files.discard(locate_shifted_rows(path))


def _parse_object(path: Path, number: int, line: bytes) -> dict[str, JsonValue]:
    try:
        value = strict_json.loads(line)
    except ValueError as error:
        raise UserError(
            f"{path}:{number}: not a JSON object in UTF-8 ({strict_json.one_line(error)}); correct or remove the line"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: expected a JSON object, found {type(value).__name__}; correct or remove the line")
    return value


def _parse_row(path: Path, number: int, value: dict[str, JsonValue]) -> ManifestRow:
    try:
        row = ManifestRow.model_validate(value)
        files.resolve_under(path.parent, row.audio)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}:{number}: {'.'.join(map(str, first['loc']))}: {first['msg']}; correct or remove the line") from error
    except UserError as error:
        command = overtone_command("export-dataset", path, "--root", "FOLDER", "--as", "voice", "--to", "NEW")
        raise UserError(f"{path}:{number}: audio: {error}; copy the clips into one folder with: {command}") from error
    return row
