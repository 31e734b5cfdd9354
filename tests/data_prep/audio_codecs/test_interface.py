"""The adapters implement their protocols. Their behaviour is tested with each adapter."""

from __future__ import annotations

from dataclasses import fields

import pytest

from overtone.data_prep.audio_codecs import interface
from overtone.data_prep.audio_codecs.mimi_codec import LoadedMimiCodec, MimiCodec
from overtone.data_prep.audio_codecs.qwen3_tts_codec import LoadedQwenCodec, QwenCodec
from overtone.data_prep.audio_codecs.qwen3_tts_speaker_encoder import LoadedQwenSpeakerEncoder, QwenSpeakerEncoder
from overtone.data_prep.audio_codecs.snac_codec import LoadedSnacCodec, SnacCodec


@pytest.mark.parametrize(
    ("adapter", "protocol"),
    [
        (QwenCodec, interface.Codec),
        (LoadedQwenCodec, interface.LoadedCodec),
        (MimiCodec, interface.Codec),
        (LoadedMimiCodec, interface.LoadedCodec),
        (SnacCodec, interface.Codec),
        (LoadedSnacCodec, interface.LoadedCodec),
        (QwenSpeakerEncoder, interface.SpeakerEncoder),
        (LoadedQwenSpeakerEncoder, interface.LoadedSpeakerEncoder),
    ],
)
def test_an_adapter_implements_its_protocol(adapter: type, protocol: type) -> None:
    required = {name for name in vars(protocol) if not name.startswith("_")}
    assert required and required <= {*dir(adapter), *(field.name for field in fields(adapter))}
