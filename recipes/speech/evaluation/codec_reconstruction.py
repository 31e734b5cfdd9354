"""Recordings through a codec: the best sound that a model can have which generates the codes of that codec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.audio_codecs.interface import Codec, CodecError
from overtone.data_prep.parallel.devices import choose_device
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.systems import Take


def reconstruct_recordings(recordings: Sequence[Take], codec: Codec, out: Path) -> list[Take]:
    """Encode and decode the recordings, and write each as FLAC at 24 kHz into `out`; those without a sample are left out. Raises
    `UserError` for one that the codec refuses."""
    loaded, reconstructed = codec.load(choose_device(None)), []
    for take in recordings:
        if not len(recording := read_clip(take.path)):
            continue
        samples = soxr.resample(recording, MASTER_RATE, codec.sample_rate, quality="VHQ")
        try:
            wave = loaded.decode(loaded.encode([samples])[0])
        except CodecError as error:
            raise UserError(f"{take.path} cannot be encoded ({error}); remove its row, or --codec") from error
        path = out / f"{take.item.key}.flac"
        files.write_bytes(path, encode_flac(Audio(soxr.resample(wave, codec.sample_rate, MASTER_RATE, quality="VHQ"), MASTER_RATE)))
        reconstructed.append(Take(take.item, path, True))
    return reconstructed
