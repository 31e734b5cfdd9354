"""`overtone generate` of this recipe: transcripts of recordings of any length, with word times, as `overtone voice` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import MASTER_RATE, RECORDING, AudioError, AudioLimits
from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.segmentation import vad
from overtone.data_prep.transcription import whisper_engine
from overtone.data_prep.transcription.faster_whisper_engine import PREFIX, WEIGHTS
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_content, print_line

from ..cli_arguments import make_generate_parser
from ..exporting.export_plan import read_defaults
from ..exporting.format_conversion import FILE
from ..options import Options

OPTION = "--model"
"""Option that messages name."""


class ModelFailedError(Exception):
    """The model failed on a part of a recording that was decoded."""


@dataclass(frozen=True)
class TimedWord:
    """A word with its time in the recording."""

    text: str
    """With the space before it, in languages that have spaces."""
    start: float
    """Seconds."""
    end: float


@dataclass(frozen=True)
class Transcript:
    """The words of a recording."""

    words: list[TimedWord]
    language: str | None
    """Whisper's name of the language of most words; None without a word."""
    seconds: float
    """Duration of the recording."""

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.words).strip()


def generate(folder: Path, argv: list[str]) -> int:
    """Print the transcript of each file. Raises `UserError` for a file that cannot be decoded, before anything is transcribed."""
    options = parse_arguments(make_generate_parser(), argv)
    if missing := [path for path in options.audio if not path.is_file()]:
        raise UserError(f"--audio {missing[0]}: no such file")
    defaults = read_transcription_defaults(folder)
    model = load_model(folder)
    language = find_language(options.language or defaults.language, model)
    with files.temporary_folder("overtone-transcribe") as temporary, AudioDecoder(temporary) as decoder:
        for path in options.audio:
            try:
                found = transcribe_file(model, decoder, path, path.name, language)
            except ModelFailedError as error:
                raise UserError(str(error)) from error
            if len(options.audio) > 1:
                print_line(f"{path}:")
            if options.words:
                for word in found.words:
                    print_line(f"{word.start:9.2f} {word.end:9.2f}  {word.text.strip()}")
            else:
                print_content(found.text)
    return 0


def read_transcription_defaults(folder: Path) -> Options:
    """The language of a model that transcribes. Raises `UserError` for one that was trained to translate."""
    defaults = read_defaults(folder)
    if defaults.task != "transcribe":
        raise UserError(
            f"{OPTION} {folder}: this model was trained to translate, and `generate` and `serve` only transcribe; use transformers' "
            "pipeline, which reads the task from the folder"
        )
    return defaults


def load_model(folder: Path) -> Any:
    """The model of an export in any format, on a GPU if there is one. Raises `UserError`."""
    name = str(folder)
    if (folder / FILE).is_file():
        name = str(folder / FILE)
    elif (folder / WEIGHTS).is_file():
        name = PREFIX + name
    return whisper_engine.load_whisper(name, choose_device(None), OPTION)


def find_language(given: str | None, model: Any) -> str | None:
    """Whisper's name of a language that is given by its English name or code; None stays None. Raises `UserError` for one that the model
    does not know."""
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if given is None:
        return None
    name = given.strip().lower()
    name = LANGUAGES.get(name, name)
    if name not in TO_LANGUAGE_CODE:
        raise UserError(f"the language {given!r:.60} is not one of Whisper's; give its English name or code")
    if name != "english" and not whisper_engine.is_multilingual(model):
        raise UserError(f"the language is {given!r:.60}, and this model knows English alone; give another model")
    return name


def transcribe_file(
    model: Any,
    decoder: AudioDecoder,
    path: Path,
    name: str,
    language: str | None,
    limits: AudioLimits = RECORDING,
    check: Callable[[], None] = lambda: None,
) -> Transcript:
    """The words of a recording. `name`: what messages call it. `language`: Whisper's name, or None to detect it. `check`: called before and
    after decoding, and after each batch of the model; what it raises ends the work. Raises `UserError` for a file that cannot be decoded,
    and `ModelFailedError`."""
    check()
    try:
        track = decoder.probe(path, limits)
        master, speech = decoder.load(path, track)
    except (AudioError, OSError) as error:
        raise UserError(f"{name!r} cannot be transcribed ({error}); give a recording that other programs play") from error
    check()
    windows = vad.make_windows(vad.find_speech(vad.load_vad(), speech, len(master.samples)), master)
    units = whisper_engine.transcribe_recording(model, speech, windows, language, report=lambda _: check())
    if failed := next((unit for unit in units if unit.error), None):
        raise ModelFailedError(f"{name!r}: the model failed at {failed.start / MASTER_RATE:.1f} s ({failed.error})")
    spoken = [unit.heard.language for unit in units if unit.heard is not None]
    return Transcript(
        words=[TimedWord(unit.text, unit.start / MASTER_RATE, unit.stop / MASTER_RATE) for unit in units],
        language=max(sorted(set(spoken)), key=spoken.count) if spoken else None,
        seconds=len(master.samples) / MASTER_RATE,
    )
