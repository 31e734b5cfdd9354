"""Which adapter reads the codec, or the speaker encoder, of a model: chosen by `model_type` in the model's own config.

To support another speech model, write its adapter (`data_prep/audio_codecs/interface.py` has the protocols) and add it to `CODECS` or
`SPEAKER_ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from data_prep.audio_codecs import qwen3_tts, qwen3_tts_speaker_encoder
from data_prep.audio_codecs.interface import Codec, SpeakerEncoder, UnsupportedModelError
from data_prep.audio_codecs.qwen_tts_import import CODEC, CODEC_FOLDER, VOICE_MODEL
from finetune.errors import UserError
from finetune.storage.hub_download import commit_of
from finetune.storage.model_resolver import resolve_model
from finetune.storage.model_security import CONFIG, cleaned, shorten

Part = TypeVar("Part")


@dataclass(frozen=True)
class Adapter(Generic[Part]):
    """How one family of models is recognized and opened."""

    name: str
    """For messages."""
    config: str
    """Path, in a model's folder, of the JSON file that holds `model_type`."""
    types: frozenset[str]
    """Values of `model_type` that this adapter reads."""
    open: Callable[[str, str, str | None], Part]
    """(command-line option, model, commit on the hub) → the codec or encoder; raises `UserError`."""


CODECS: tuple[Adapter[Codec], ...] = (
    Adapter("Qwen3-TTS 12 Hz", f"{CODEC_FOLDER}/{CONFIG}", frozenset(CODEC.types), qwen3_tts.open_qwen_codec),
)
SPEAKER_ENCODERS: tuple[Adapter[SpeakerEncoder], ...] = (
    Adapter("Qwen3-TTS Base", CONFIG, frozenset(VOICE_MODEL.types), qwen3_tts_speaker_encoder.open_qwen_speaker_encoder),
)


def open_codec(model: str, option: str = "--model") -> Codec:
    """The codec of a model: a folder, the name of a demo model, or a name on the model hub, of which only the codec is downloaded.

    Errors name the command-line `option`. Raises `UnsupportedModelError`, which lists the supported models, if this is none of them, and
    `UserError` if its files are missing or damaged.
    """
    return _open_part(CODECS, "codec", option, model)


def open_speaker_encoder(model: str, option: str) -> SpeakerEncoder:
    """The speaker encoder of a model, given as for `open_codec`. Raises the same errors."""
    return _open_part(SPEAKER_ENCODERS, "speaker encoder", option, model)


def _open_part(adapters: tuple[Adapter[Part], ...], part: str, option: str, model: str) -> Part:
    """The configs are downloaded first, so that no weights of an unsupported model are."""
    configs = list(dict.fromkeys(adapter.config for adapter in adapters))
    folder = resolve_model(option, model, configs)
    found = next((name for name in configs if (folder / name).is_file()), configs[0])
    try:
        config, dropped = cleaned(folder / found)
    except UserError as error:
        raise UnsupportedModelError(f"{option} {model}: {error}; {_list_supported(adapters, part)}") from error
    kind = config.get("model_type")
    for adapter in adapters:
        if adapter.config == found and isinstance(kind, str) and kind in adapter.types:
            return adapter.open(option, model, commit_of(folder))
    own_code = "; the folder contains its own code for it, which is never run" if dropped else ""
    raise UnsupportedModelError(
        f"{option} {model}: {folder / found}: model_type {shorten(repr(kind))} is not one whose {part} is supported{own_code}; "
        f"{_list_supported(adapters, part)}"
    )


def _list_supported(adapters: tuple[Adapter[Part], ...], part: str) -> str:
    return f"give a model with a supported {part}: {', '.join(adapter.name for adapter in adapters)}"
