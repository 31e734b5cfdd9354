"""The speakers in the dataset, and the codec that its codes must be of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overtone.finetune.config import Config, Data
from overtone.recipes.speech.dataset_speakers import SpeakerClips, collect_clips, list_speakers
from overtone.recipes.speech.run_codec import CodecRecord, ExpectedCodec
from overtone.recipes.speech.voices_json_content import describe_base, describe_training_data

from ..state import CodecLmState
from .sequence_layout import check_frames

if TYPE_CHECKING:
    from ..families import Family
    from ..options import Options


def expect_codec(family: Family) -> ExpectedCodec:
    """The codec of the models of a family."""
    return ExpectedCodec(family.name, family.codec, family.code_format)


def collect_speakers(data: Data, default: str | None, family: Family) -> dict[str, SpeakerClips]:
    """All speakers of `data.train` by name. `default`: the speaker of rows without one. Raises `UserError` with file and line for bad rows,
    and for speakers who are only in `data.val`."""
    return collect_clips(data, "codec_lm", default, lambda row: len(check_frames(row.get("audio_codes"), family)))


def make_recipe_state(config: Config[Options], family: Family, speakers: dict[str, SpeakerClips], codec_digest: str) -> CodecLmState:
    """Return what the export and its model card need. A resumed run must have the same state."""
    voices = list_speakers(speakers, family.frame_rate)
    return CodecLmState(
        speakers=voices,
        data=describe_training_data(config.data, voices),
        base=describe_base(config.model),
        family=family,
        supervise=config.options.supervise,
        codec=CodecRecord(source=config.options.codec, digest=codec_digest),
    )
