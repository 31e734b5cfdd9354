"""The models that this recipe knows, as a table: what differs between makers, and nothing else.

A model writes speech as tokens of its vocabulary. A row of the table says which tokens are around the text, how the codes of a frame become
tokens, and which codec turns them into sound. To support another model, add a row.

Tokens are written by name and looked up in the model's own tokenizer, so a base without them is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from data_prep.audio_codecs.interface import CodeFormat
from finetune.checkpointing.checkpoint_metadata import Count, JsonPart
from finetune.errors import UserError
from recipes.speech.voices_file import VOICES, read_voices

Positive = Annotated[int, Field(ge=1)]


class Family(JsonPart):
    """One row: a kind of model, by how its authors train it and speak with it."""

    model_config = ConfigDict(frozen=True)

    name: str
    models: list[str]
    """Hub names, the one to fine-tune first."""
    before_text: list[str]
    """Tokens before the text. The text itself is tokenized as the tokenizer does by default, with its beginning-of-text token."""
    voice_prefix: str
    """What is written before the text, with {speaker}."""
    after_text: list[str]
    """Tokens after the text. The prompt of generation ends with them."""
    code_token: str
    """Name of the token of a code, with {number}: `first_number` + slot · `codebook_size` + code."""
    first_number: Count
    slots: list[Count]
    """Slot of a frame's tokens → codebook whose code it has, in the codec's own order."""
    end_of_speech: str
    """Token after the last frame, at which generation stops."""
    after_speech: list[str]
    """Tokens after it in training."""
    codec: str
    """Hub name."""
    codebook_size: Positive
    sample_rate: Positive
    samples_per_frame: Positive
    voices: list[str]
    """Speakers that released models know."""
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    repetition_penalty: Annotated[float, Field(gt=0)]

    @property
    def code_format(self) -> CodeFormat:
        """What the stored codes of a dataset must look like."""
        return CodeFormat(self.sample_rate, self.samples_per_frame, len(self.slots), self.codebook_size)

    @property
    def frame_rate(self) -> float:
        """Frames per second of speech."""
        return self.sample_rate / self.samples_per_frame

    def name_code(self, slot: int, code: int) -> str:
        """Name of the token of a code."""
        return self.code_token.replace("{number}", str(self.first_number + slot * self.codebook_size + code))


ORPHEUS = Family(
    name="Orpheus",
    models=["canopylabs/orpheus-3b-0.1-pretrained", "canopylabs/orpheus-3b-0.1-ft"],
    before_text=["<custom_token_3>"],
    voice_prefix="{speaker}: ",
    after_text=["<|eot_id|>", "<custom_token_4>", "<custom_token_5>", "<custom_token_1>"],
    code_token="<custom_token_{number}>",
    first_number=10,
    # SNAC's levels have 1, 2 and 4 codes a frame, here codebooks 0, 1–2 and 3–6. A frame's tokens are in the order of time: each code of a
    # level is followed by the two of the next level that cover the same time.
    slots=[0, 1, 3, 4, 2, 5, 6],
    end_of_speech="<custom_token_2>",
    after_speech=["<custom_token_6>"],
    codec="hubertsiuzdak/snac_24khz",
    codebook_size=4096,
    sample_rate=24_000,
    samples_per_frame=2048,
    voices=["tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"],
    temperature=0.6,
    top_p=0.8,
    repetition_penalty=1.3,
)
"""By github.com/canopyai/Orpheus-TTS: `orpheus_tts/engine_class.py` (prompt, sampling), `orpheus_tts/decoder.py` (codes),
`realtime_streaming_example/main.py` (the token at which it stops), README.md (speakers). The tests
compare with them."""

FAMILIES = (ORPHEUS,)


def read_family(folder: Path) -> Family:
    """The family of a model: what its `voices.json` says, as exports have one, or else the first of the table.

    Whether the model's vocabulary has the tokens is found when they are looked up. Raises `UserError` for an invalid file.
    """
    found = read_voices(folder).get("family")
    return FAMILIES[0] if found is None else parse_family(found, folder / VOICES)


def parse_family(found: Any, path: Path) -> Family:
    """A row of the table in the file `path`. Raises `UserError` if it is not a valid one."""
    try:
        family = Family.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(["family", *map(str, first["loc"])])
        raise UserError(f"{path}: {key}: {first['msg']}; export the model again") from None
    if not family.slots or sorted(family.slots) != list(range(len(family.slots))):
        raise UserError(f"{path}: family.slots {family.slots} must name each codebook once; export the model again")
    return family
