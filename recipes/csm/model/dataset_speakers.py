"""The speakers in the dataset, and the number of each in the prompt."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from overtone.data_prep.audio_codecs.mimi_codec import open_csm_codec
from overtone.finetune.config import Config, Data, Model
from overtone.finetune.data.context_rows import EarlierRows
from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage.json_schema import parse_model
from overtone.recipes.recipe_state_file import store_state
from overtone.recipes.speech.dataset_speakers import SpeakerClips, collect_clips
from overtone.recipes.speech.evaluation.evaluation_items import HOW_TO_MAKE_ROWS
from overtone.recipes.speech.training_files import check_dataset_codec, list_training_files
from overtone.recipes.speech.voices_json_content import describe_base, describe_training_data
from overtone.recipes.speech.voices_json_schema import VOICES, read_voices

from ..options import Options, limit_context
from ..state import CsmContext, CsmSpeaker, CsmState, NumberedVoices
from .model_config import FRAME_RATE
from .sequence_layout import CsmTokens, check_frames, locate_clip

MOST_SPEAKERS = 1000
"""Numbers up to 999 are one token of Llama 3's tokenizer, which CSM uses."""


def prepare_speakers(config: Config[Options], base: Path, tokens: CsmTokens) -> None:
    """Find the speakers in the data and store them in the run's cache. Raises `UserError` with file and line for bad rows, and for codes
    of another codec than the base's."""
    check_dataset_codec(config.data, open_csm_codec("model.source", str(base), None))  # first: its message names the codec of the data
    found = collect_speakers(config.data, config.options.speaker, tokens)
    context = measure_context(config.data, config.options) if config.options.context_turns else None
    store_state(config.run.dir, make_recipe_state(config.data, config.model, found, assign_numbers(base, [*found]), context))


def measure_context(data: Data, options: Options) -> CsmContext:
    """Return how many clips of `data.train` have earlier clips before them, for the log and the model card. Raises `UserError` with file
    and line for clips without a place in a recording, and if no clip has any."""
    turns, seconds = Counter[int](), 0.0

    def add_row(earlier: EarlierRows, _: int, row: Row) -> None:
        nonlocal seconds
        before = earlier.find(locate_clip(row))
        turns[len(before)] += 1
        seconds += sum(clip.end - clip.begin for clip in before)

    for train in list_training_files(data):
        visit_rows(train, partial(add_row, EarlierRows.of(train, locate_clip, limit_context(options))), HOW_TO_MAKE_ROWS)
    having = turns.total() - turns[0]
    if not having:
        raise UserError(
            f"options.context_turns: {options.context_turns}, but no clip has an earlier clip of its recording (`source`) within "
            f"options.context_seconds: {options.context_seconds:g}; raise that, or set --options.context_turns 0"
        )
    return CsmContext(turns=max(turns), loss=options.context_loss, clips=having, seconds=round(seconds / having, 2))


def collect_speakers(data: Data, default: str | None, tokens: CsmTokens) -> dict[str, SpeakerClips]:
    """The clips of each speaker of `data.train`, by name. `default`: the speaker of rows without one. Raises `UserError` with file and
    line for bad rows."""
    return collect_clips(data, "csm", default, lambda row: len(check_frames(row.get("audio_codes"), tokens)))


def assign_numbers(base: Path, names: list[str]) -> dict[str, int]:
    """Name → number in the prompt, of `names` and then of other speakers in a base that is an export. That base's speakers keep their
    numbers; the others get the lowest free ones, in order of `names`. Raises `UserError` for more than `MOST_SPEAKERS`."""
    known = read_known_numbers(base)
    free = iter(number for number in range(MOST_SPEAKERS) if number not in known.values())
    numbers = {name: known[name] if name in known else next(free, None) for name in names}
    without = [name for name, number in numbers.items() if number is None]
    if without:
        raise UserError(
            f"{len(names)} speakers, and the prompt has numbers for {MOST_SPEAKERS} (the first speaker without one is {without[0]!r}; the "
            f"base already has {len(known)}): train on fewer, or check that `speaker` in the rows is a person and not a file"
        )
    return {name: number for name, number in numbers.items() if number is not None} | known


def read_known_numbers(base: Path) -> dict[str, int]:
    """The speakers of a base that is an export of this recipe; none for other bases."""
    voices = read_voices(base)
    if not voices:
        return {}
    try:
        return {speaker.name: speaker.id for speaker in parse_model(NumberedVoices, voices).speakers}
    except ValueError as error:
        raise UserError(
            f"{base / VOICES} does not list speakers with their numbers ({error}); export the model again, or remove the file to number "
            "them anew"
        ) from None


def make_recipe_state(
    data: Data, base: Model, found: dict[str, SpeakerClips], numbers: dict[str, int], context: CsmContext | None
) -> CsmState:
    """Return what the export and its model card need. A resumed run must have the same state. Speakers of the base come last, without
    clips: the model still knows them, and another training must not give their numbers to others."""
    voices = []
    for name, number in sorted(numbers.items(), key=lambda each: (each[0] not in found, each[0])):
        clips = found.get(name, SpeakerClips())
        voices.append(CsmSpeaker(name=name, id=number, clips=clips.clips, seconds=round(clips.frames / FRAME_RATE, 2)))
    return CsmState(speakers=voices, data=describe_training_data(data, voices), base=describe_base(base), context=context)
