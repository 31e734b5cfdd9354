"""Chooses the adapter that reads the codec, or the speaker encoder, of a model, by the model's own config.

To support another speech model, write its adapter (`data_prep/audio_codecs/interface.py` has the protocols) and add it to `CODECS` or
`SPEAKER_ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from overtone.data_prep.audio_codecs import mimi_codec, qwen3_tts_codec, qwen3_tts_speaker_encoder, snac_codec
from overtone.data_prep.audio_codecs.interface import Codec, SpeakerEncoder, UnsupportedModelError
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC, CODEC_FOLDER, VOICE_MODEL
from overtone.data_prep.manifest import LANGUAGES
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, cleaned, shorten

Part = TypeVar("Part")


@dataclass(frozen=True)
class Adapter(Generic[Part]):
    """Recognizes and opens one family of models."""

    name: str
    """Name for messages."""
    config: str
    """Path, in a model's folder, of the JSON file that holds `model_type`."""
    types: frozenset[str]
    """Values of `model_type` that this adapter reads; empty if its configs have none."""
    open: Callable[[str, str, str | None], Part]
    """(command-line option, model, commit on the hub) → the codec or encoder; raises `UserError`."""
    keys: frozenset[str] = frozenset()
    """Keys that identify a config without `model_type`."""
    example: str = ""
    """Name of a released model on the hub, for messages."""

    def reads(self, config: Mapping[str, object]) -> bool:
        """Return whether a config is of this family."""
        kind = config.get("model_type")
        if kind is None:
            return bool(self.keys) and self.keys <= config.keys()
        return isinstance(kind, str) and kind in self.types

    def __str__(self) -> str:
        return f"{self.name} ({self.example})" if self.example else self.name


CODECS: tuple[Adapter[Codec], ...] = (
    Adapter(
        "Qwen3-TTS 12 Hz",
        f"{CODEC_FOLDER}/{CONFIG}",
        frozenset(CODEC.types),
        qwen3_tts_codec.open_qwen_codec,
        example=qwen3_tts_codec.RELEASED_MODEL,
    ),
    Adapter(
        "SNAC in an exported model",
        f"{snac_codec.CODEC_FOLDER}/{CONFIG}",
        frozenset(),
        snac_codec.open_exported_snac_codec,
        snac_codec.REQUIRED_KEYS,
    ),
    Adapter("CSM", CONFIG, frozenset(mimi_codec.CSM.types), mimi_codec.open_csm_codec, example=mimi_codec.RELEASED_MODEL),
    Adapter("Mimi", CONFIG, frozenset(mimi_codec.MIMI.types), mimi_codec.open_mimi_codec, example="kyutai/mimi"),
    Adapter(
        "SNAC, for Orpheus", CONFIG, frozenset(), snac_codec.open_snac_codec, snac_codec.REQUIRED_KEYS, example=snac_codec.RELEASED_MODEL
    ),
)
"""Adapters in the order in which they are tried: those whose config is in a subfolder first, since the model beside it has a config of its
own."""
DEFAULT_MODEL, DEFAULT_FORMAT, DEFAULT_RECIPE = qwen3_tts_codec.RELEASED_MODEL, qwen3_tts_codec.RELEASED_FORMAT, qwen3_tts_codec.RECIPE
"""The model that messages suggest, and the codes that a dataset is assumed to have if it does not say which."""
RECIPES: Mapping[str, frozenset[str]] = {
    qwen3_tts_codec.RECIPE: frozenset(LANGUAGES.values()),
    mimi_codec.RECIPE: frozenset(),
    snac_codec.RECIPE: frozenset(),
}
"""Recipe that trains on codes of these codecs → names of the languages that its model can be given; empty: it takes no language, so a clip
may be in any."""
SPEAKER_ENCODERS: tuple[Adapter[SpeakerEncoder], ...] = (
    Adapter(
        "Qwen3-TTS Base",
        CONFIG,
        frozenset(VOICE_MODEL.types),
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder,
        example=qwen3_tts_codec.RELEASED_MODEL,
    ),
)


def open_codec(model: str, option: str = "--model") -> Codec:
    """Open the codec of a model: a folder, the name of a demo model, or a name on the model hub, of which only the codec is downloaded.

    Errors name the command-line `option`. Raises `UnsupportedModelError`, which lists the supported models, if this is none of them, and
    `UserError` if its files are missing or damaged.
    """
    return _open_part(CODECS, "codec", option, model)


def find_base_model(model: str) -> str | None:
    """Return `model` if it is a local folder or a demo model from which training can start; None for a codec alone, and for names on the
    hub: the released models of a recipe share one codec, so the one that encoded need not be the base.

    Raises `UserError` if its config.json cannot be read.
    """
    if not (Path(model).is_dir() or demo_models.is_demo_model(model)):
        return None
    path = resolve_model("--model", model) / CONFIG
    if not path.is_file():
        return None
    kind = cleaned(path)[0].get("model_type")
    return model if isinstance(kind, str) and kind not in mimi_codec.MIMI.types else None


def open_speaker_encoder(model: str, option: str) -> SpeakerEncoder:
    """Open the speaker encoder of a model, given as for `open_codec`. Raises the same errors."""
    return _open_part(SPEAKER_ENCODERS, "speaker encoder", option, model)


def _open_part(adapters: tuple[Adapter[Part], ...], part: str, option: str, model: str) -> Part:
    """Open the part of a model. Downloads the configs first, so that no weights of an unsupported model are downloaded."""
    names = list(dict.fromkeys(adapter.config for adapter in adapters))
    folder = resolve_model(option, model, names)
    found = [name for name in names if (folder / name).is_file()] or names[:1]
    try:
        configs = {name: cleaned(folder / name) for name in found}
    except UserError as error:
        raise UnsupportedModelError(f"{option} {model}: {error}; {_list_supported(adapters, part)}") from error
    for adapter in adapters:
        if adapter.config in configs and adapter.reads(configs[adapter.config][0]):
            return adapter.open(option, model, commit_of(folder))
    config, dropped = configs[found[0]]
    own_code = "; the folder contains its own code for it, which is never run" if dropped else ""
    raise UnsupportedModelError(
        f"{option} {model}: {folder / found[0]}: model_type {shorten(repr(config.get('model_type')))} is not one whose {part} is supported"
        f"{own_code}; {_list_supported(adapters, part)}"
    )


def _list_supported(adapters: tuple[Adapter[Part], ...], part: str) -> str:
    return f"give a model with a supported {part}: {list_models(adapters)}"


def suggest_other_models() -> str:
    """Return a hint, for messages, on what to give instead of `DEFAULT_MODEL` for the codes of another codec."""
    others = [f"{adapter.example} ({adapter.name})" for adapter in CODECS if adapter.example not in ("", DEFAULT_MODEL)]
    return f"for a model with another codec: --model {' or '.join(others)}"


def list_models(adapters: tuple[Adapter[Part], ...]) -> str:
    """Return the supported models, for messages."""
    return "; ".join(map(str, adapters))
