"""The models that this recipe knows, as a table: what differs between makers, and nothing else.

A model writes speech as tokens of its vocabulary. A row of the table says which tokens are around the text, how the codes of a frame become
tokens, and which codec turns them into sound. To support another model, add a row.

Tokens are written by name and looked up in the model's own tokenizer, so a base without them is refused. A base is of the row whose tokens
it has all; an export says in its `voices.json` of which it is; `options.family` overrides both.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from overtone.data_prep.audio_codecs.interface import CodeFormat
from overtone.finetune.checkpointing.checkpoint_metadata import Count
from overtone.finetune.errors import UserError
from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.speech.voices_json_schema import VOICES, read_voices

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
    """Text written before the prompt's text, with {speaker}."""
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
        """Format that the stored codes of a dataset must have."""
        return CodeFormat(self.sample_rate, self.samples_per_frame, len(self.slots), self.codebook_size)

    @property
    def frame_rate(self) -> float:
        """Frames per second of speech."""
        return self.sample_rate / self.samples_per_frame

    @property
    def sampling(self) -> dict[str, float]:
        """The authors' sampling settings, by their names in generation_config.json."""
        return {"temperature": self.temperature, "top_p": self.top_p, "repetition_penalty": self.repetition_penalty}

    @property
    def control_tokens(self) -> list[str]:
        """Names of all tokens but the codes."""
        return [*self.before_text, *self.after_text, self.end_of_speech, *self.after_speech]

    def name_codes(self) -> Iterator[str]:
        """Names of the codes' tokens: all of slot 0, then those of the next."""
        numbers = range(self.first_number, self.first_number + len(self.slots) * self.codebook_size)
        return (self.code_token.replace("{number}", str(number)) for number in numbers)

    def find_missing(self, vocabulary: Container[str]) -> list[str]:
        """Names of its tokens that a vocabulary lacks."""
        return [name for name in (*self.control_tokens, *self.name_codes()) if name not in vocabulary]


ORPHEUS = Family(
    name="Orpheus",
    models=["canopylabs/orpheus-3b-0.1-pretrained", "canopylabs/orpheus-3b-0.1-ft"],
    before_text=["<custom_token_3>"],
    voice_prefix="{speaker}: ",
    after_text=["<|eot_id|>", "<custom_token_4>", "<custom_token_5>", "<custom_token_1>"],
    code_token="<custom_token_{number}>",  # noqa: S106 - of the vocabulary
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

VYVOTTS = ORPHEUS.model_copy(
    update={
        "name": "VyvoTTS",
        "models": ["Vyvo/VyvoTTS-Qwen3-0.6B-PT"],
        "after_text": ["<|im_end|>", "<custom_token_4>", "<custom_token_5>", "<custom_token_1>"],
        "voices": [],
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    }
)
"""Orpheus' layout on Qwen3's tokenizer, which has no beginning-of-text token: the custom tokens are 151,669 and those after it.

By github.com/Vyvo-Labs/VyvoTTS: `vyvotts/configs/inference/qwen3.yaml` (ids), `vyvotts/audio_tokenizer.py` (the sequence of training),
`vyvotts/codec.py` (order of the codes), `vyvotts/inference/base.py` (prompt), `vyvotts/inference/transformers_inference.py` (sampling,
stop), `vyvotts/configs/train/qwen3_ft.yaml` (the model to fine-tune). Its authors' prompt ends two tokens earlier, and their generation
may only choose these two there."""

FAMILIES = (ORPHEUS, VYVOTTS)


def choose_family(model: Path, load_vocabulary: Callable[[], Container[str]], given: str | None) -> Family:
    """The family of a model: the row named `given` (`options.family`); or what its `voices.json` says, as exports have one; or the row
    whose tokens its tokenizer has all. `load_vocabulary` is called in the last case only.

    Raises `UserError` for an unknown name, for an invalid file, and if no row or several fit.
    """
    found = read_voices(model).get("family")
    own = None if found is None else parse_family(found, model / VOICES)
    if own is not None and (given is None or given.lower() == own.name.lower()):
        return own
    if given is not None:
        if named := [family for family in FAMILIES if family.name.lower() == given.lower()]:
            return named[0]
        raise UserError(f"options.family {given!r} is not known; give one of: {', '.join(family.name for family in FAMILIES)}")
    vocabulary = load_vocabulary()
    missing = {family.name: family.find_missing(vocabulary) for family in FAMILIES}
    fitting = [family for family in FAMILIES if not missing[family.name]]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(
            f"{model}: its tokenizer has all tokens of {' and '.join(family.name for family in fitting)}; say which it is with "
            "--options.family"
        )
    lacks = "; ".join(f"of {name}, {len(names):,}, the first {names[0]}" for name, names in missing.items())
    raise UserError(
        f"{model}: its tokenizer lacks tokens of every supported model ({lacks}), so it is no model that speaks in codec tokens; use "
        f"{' or '.join(name for family in FAMILIES for name in family.models)}, or a model trained from one"
    )


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
