"""A clip and its text as the input and the tokens of Whisper, as openai-whisper lays them out; `collate`.

The decoder reads `<|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>`, which inference gives it, then learns the text and
`<|endoftext|>`. English-only models have neither language nor task. With segments, `<|notimestamps|>` is absent, and the text of each one
stands between its times. The tokens and the log-mel spectrogram come from openai-whisper's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from overtone.data_prep.audio.waveform import SPEECH_RATE, AudioError, Samples, read_audio
from overtone.data_prep.manifest import AUTO
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Row, Sample
from overtone.finetune.storage.referenced_files import find_file
from overtone.recipes.language import collation
from overtone.recipes.speech.dataset_row_checks import check_is_speech, check_text

from ..options import Options

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

SECONDS = 30
"""Length of Whisper's input; shorter clips are followed by silence."""
FRAMES, HOP, WINDOW = 3000, 160, 400
"""Columns of the spectrogram of 30 s; samples between two of them; samples that one covers."""
TIME_STEP = 0.02
"""Seconds between two timestamp tokens."""
TASKS = ("transcribe", "translate")
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose text does not start with a space in Whisper's output, as it has none between words (openai-whisper, tokenizer.py)."""


@dataclass(frozen=True)
class RecognizerProcessor:
    """Properties of the model and settings of the run that `read` needs."""

    multilingual: bool
    languages: int
    """Number of languages with a token."""
    mels: int
    """Mel bands of the input: 80, of the newest large models 128."""
    positions: int
    """The decoder's maximum number of tokens."""
    options: Options


def read(row: Row, processor: RecognizerProcessor, folder: Path) -> Sample:
    """`features` [mels, frames], as `compute_features` returns them; `ids` [S], and `supervised` [S], true for text and end. Raises
    `UserError` for a row that Whisper cannot learn."""
    check_is_speech(row, "whisper")
    samples = read_clip(find_file(folder, read_file_name(row)))
    ids, start = lay_out(row, processor, len(samples) / SPEECH_RATE)
    if len(ids) > processor.positions:
        raise UserError(
            f"the text has {len(ids)} tokens with those of start and end, and the decoder has {processor.positions} positions; split "
            "the clip"
        )
    supervised = torch.arange(len(ids)) >= start
    return {"features": compute_features(samples, processor.mels), "ids": torch.tensor(ids), "supervised": supervised}


def read_file_name(row: Row) -> str:
    """The path of the clip of a row, relative to the data file. Raises `UserError` if there is none."""
    name = row.get("audio")
    if not isinstance(name, str) or not name:
        raise UserError(f'"audio" must be the path of a file, relative to the data file, found {name!r:.60}')
    return name


def read_clip(path: Path) -> Samples:
    """The samples [n] of a file as mono at 16 kHz. Raises `UserError` for one that cannot be read, is silent, or longer than 30 s."""
    try:
        audio = read_audio(path, SPEECH_RATE)
    except AudioError as error:
        raise UserError(f"the clip {path.name!r} cannot be used ({error}); correct the file or remove the row") from error
    if audio.seconds > SECONDS:
        raise UserError(
            f"the clip {path.name!r} has {audio.seconds:.2f} s, and Whisper takes {SECONDS} s; cut it (`overtone voice` makes clips), or "
            "remove the row"
        )
    return audio.samples


def compute_features(samples: Samples, mels: int) -> Tensor:
    """openai-whisper's log-mel spectrogram [mels, frames] of samples [n] at 16 kHz that are followed by silence, fp32.

    Of the 3,000 columns only those up to the first one of silence alone, which is the value of all later ones: `pad_features`.
    """
    import whisper

    padded = whisper.pad_or_trim(torch.from_numpy(samples), SECONDS * SPEECH_RATE)
    features: Tensor = whisper.log_mel_spectrogram(padded, n_mels=mels)
    return features[:, : 1 - (-(len(samples) + WINDOW // 2) // HOP)].clone()


def pad_features(features: Tensor) -> Tensor:
    """Features [mels, frames] as [mels, 3000], with the last column repeated."""
    return functional.pad(features, (0, FRAMES - features.shape[1]), mode="replicate")


def lay_out(row: Row, processor: RecognizerProcessor, seconds: float) -> tuple[list[int], int]:
    """The tokens of a row whose clip has `seconds`, and how many of them start it and are given at inference. Raises `UserError`."""
    code = choose_language(row.get("language"), processor)
    task = choose_task(row.get("task"), processor)
    tokenizer, written = load_tokenizer(processor, code, task), "en" if task == "translate" else code
    segments = row.get("segments")
    if segments is None:
        start, body = tokenizer.sot_sequence_including_notimestamps, encode_text(check_text(row.get("text")), tokenizer, written)
    else:
        start, body = tokenizer.sot_sequence, encode_segments(segments, row.get("text"), tokenizer, written, seconds)
    return [*start, *body, tokenizer.eot], len(start)


def load_tokenizer(processor: RecognizerProcessor, code: str, task: str) -> Tokenizer:
    """openai-whisper's tokenizer of the model for a language and a task."""
    from whisper.tokenizer import get_tokenizer

    if not processor.multilingual:
        return get_tokenizer(False)
    return get_tokenizer(True, num_languages=processor.languages, language=code, task=task)


def choose_language(given: JsonValue, processor: RecognizerProcessor) -> str:
    """Whisper's code of a row's language, or of `options.language`. Raises `UserError` for one that the model has no token for."""
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    named = given if given not in (None, AUTO) else processor.options.language
    if named is None:
        if not processor.multilingual:
            return "en"
        raise UserError('the row names no language; add "language" to it, or set --options.language for all rows')
    name = str(named).strip().lower()
    code = name if name in LANGUAGES else TO_LANGUAGE_CODE.get(name)
    if not processor.multilingual and code != "en":
        raise UserError(f"the language is {named!r:.60}, and the base knows English alone; choose a base without .en in its name")
    known = [*LANGUAGES][: processor.languages]
    if code is None or (processor.multilingual and code not in known):
        raise UserError(f"the language {named!r:.60} is not one of the {len(known)} of the base; name it by Whisper's English name or code")
    return code


def choose_task(given: JsonValue, processor: RecognizerProcessor) -> str:
    """The task of a row, or `options.task`. Raises `UserError` for one that the model has no token for."""
    task = processor.options.task if given is None else given
    if task not in TASKS:
        raise UserError(f'"task" is {task!r:.60}, expected {" or ".join(TASKS)}')
    if task == "translate" and not processor.multilingual:
        raise UserError("the task is translate, and the base knows English alone; choose a base without .en in its name")
    return str(task)


def encode_text(text: str, tokenizer: Tokenizer, code: str) -> list[int]:
    """The tokens of a text in the language `code`, as Whisper writes it: after a space, except in languages that have none between words.
    Raises `UserError` for a text that has the name of a special token."""
    words = text.strip()
    try:
        return tokenizer.encode(words if code in WITHOUT_SPACES else f" {words}")
    except ValueError:
        raise UserError(f"the text {words[:60]!r} has the name of a token of Whisper, such as <|endoftext|>; remove it") from None


def encode_segments(segments: Any, text: JsonValue, tokenizer: Tokenizer, code: str, seconds: float) -> list[int]:
    """The tokens of segments `{start, end, text}`, in seconds of the clip, each between its two times. Raises `UserError` for times that
    are not in order or not in the clip, and if the segments are not the `text` of the row, which may have one too."""
    if not isinstance(segments, list) or not segments:
        raise UserError('"segments" must be a list of {"start": 0.0, "end": 1.5, "text": "…"}, in seconds; correct or remove it')
    ids, before = list[int](), 0
    for number, segment in enumerate(segments):
        words = check_text(segment.get("text") if isinstance(segment, dict) else None)
        times = [segment.get("start"), segment.get("end")]
        if not all(type(time) in (int, float) and 0 <= time <= seconds + TIME_STEP for time in times):
            raise UserError(f"segments[{number}]: start and end are {times}, expected seconds within the {seconds:.2f} s of the clip")
        first, last = (min(round(time / TIME_STEP), round(SECONDS / TIME_STEP)) for time in times)
        if not before <= first <= last:
            raise UserError(f"segments[{number}]: from {times[0]} to {times[1]} s, which is not in order; sort the segments by time")
        ids += [tokenizer.timestamp_begin + first, *encode_text(words, tokenizer, code), tokenizer.timestamp_begin + last]
        before = last
    joined = "".join("".join(segment["text"].split()) for segment in segments)
    if text is not None and "".join(check_text(text).split()) != joined:
        raise UserError('"text" and "segments" have different words; correct one of them, or remove "text"')
    return ids


def collate(samples: Sequence[Sample]) -> Batch:
    """`features` [B, mels, 3000], and the rows of `recipes.language.collation`, which shifts the labels and ignores the padding."""
    batch = collation.collate([*samples])
    features = torch.stack([pad_features(sample["features"]) for sample in samples])
    return replace(batch, tensors={"features": features, **batch.tensors})
