"""The speaker encoder of `--speaker-check`: the weights in the package resemblyzer, an x-vector model, or that of a base model."""

from __future__ import annotations

from overtone.data_prep.audio_codecs import selection
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.resemblyzer_encoder import ResemblyzerEncoder
from overtone.data_prep.speakers.xvector_encoder import open_xvector_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, cleaned


def open_voice_encoder(option: str, name: str) -> SpeakerEncoder:
    """Open the encoder by its name: `resemblyzer`, a folder, or a name on the model hub.

    Raises `UserError`, in the name of the command-line `option`, for anything else.
    """
    if name == resemblyzer_encoder.NAME:
        found = find_installed_encoder()
        if found is None:
            raise UserError(f"{option} {name}: the package is not installed; run `{resemblyzer_encoder.INSTALL}`")
        return found
    if has_xvector_head(option, name):
        return open_xvector_encoder(option, name)
    return selection.open_speaker_encoder(name, option)


def find_installed_encoder() -> ResemblyzerEncoder | None:
    """Return the encoder of the installed package; None if there is none."""
    weights = resemblyzer_encoder.find_weights()
    return None if weights is None else ResemblyzerEncoder(weights)


def has_xvector_head(option: str, name: str) -> bool:
    """Return whether the model's config names an architecture with an x-vector head. Raises `UserError` if the model is not found."""
    folder = resolve_model(option, name, [CONFIG])
    if not (folder / CONFIG).is_file():
        return False
    architectures = cleaned(folder / CONFIG)[0].get("architectures")
    return isinstance(architectures, list) and any(str(one).endswith("ForXVector") for one in architectures)
