"""The speakers in the dataset, and whether its codes are of the codec with which the export will speak."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.audio_codecs.interface import Codec, CodeFormat, read_code_format
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from overtone.finetune.config import Config, Data
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import CONFIG
from overtone.recipes.speech.dataset_speakers import SpeakerClips, collect_clips
from overtone.recipes.speech.voices_json_content import describe_base, describe_training_data

from ..state import CodecLmState, CodecRecord, SpeakerOfLanguage
from .sequence_layout import check_frames

if TYPE_CHECKING:
    from ..families import Family
    from ..options import Options


def collect_speakers(data: Data, default: str | None, family: Family) -> dict[str, SpeakerClips]:
    """All speakers of `data.train` by name. `default`: the speaker of rows without one. Raises `UserError` with file and line for bad rows,
    and for speakers who are only in `data.val`."""
    return collect_clips(data, "codec_lm", default, lambda row: len(check_frames(row.get("audio_codes"), family)))


def choose_codec(given: str | None, base: Path, family: Family) -> str:
    """The codec of a run: the given one, or that in the base if it is an export, or that of the family's authors."""
    own = (base / CODEC_FOLDER / CONFIG).is_file()
    return given or (str(base) if own else family.codec)


def open_run_codec(given: str | None, base: Path, family: Family, option: str = "--options.codec") -> Codec:
    """The codec as `choose_codec` says. Raises `UserError`, which names `option`, if its codes do not have the family's format."""
    name = choose_codec(given, base, family)
    codec = open_codec(name, option)
    found, wanted = read_code_format(codec), family.code_format
    if found != wanted:
        raise UserError(
            f"{option} {name}: a codec with {describe_format(found)}, and {family.name} reads {describe_format(wanted)}; "
            f"give {family.codec}"
        )
    return codec


def describe_format(codes: CodeFormat) -> str:
    """A format of codes, for messages."""
    frames = f"frames of {codes.samples_per_frame} samples at {codes.sample_rate} Hz"
    return f"{codes.codebooks} codes from 0 to {codes.codebook_size - 1} in {frames}"


def make_recipe_state(config: Config[Options], family: Family, speakers: dict[str, SpeakerClips], codec_digest: str) -> CodecLmState:
    """Return what the export and its model card need. A resumed run must have the same state."""
    voices = [
        SpeakerOfLanguage(
            name=name,
            language=speaker.languages.most_common(1)[0][0],
            clips=speaker.clips,
            seconds=round(speaker.frames / family.frame_rate, 2),
        )
        for name, speaker in speakers.items()
    ]
    return CodecLmState(
        speakers=voices,
        data=describe_training_data(config.data, voices),
        base=describe_base(config.model),
        family=family,
        supervise=config.options.supervise,
        codec=CodecRecord(source=config.options.codec, digest=codec_digest),
    )
