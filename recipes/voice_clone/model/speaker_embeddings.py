"""One vector for each speaker: the fp32 mean of the base's own speaker encoder over several reference clips.

One vector from one clip would carry that clip's mood; the mean of several is the voice. The vectors are computed once, kept in
`<run.dir>/cache/speakers.safetensors`, and computed again when the data, the reference clips or the encoder change.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.audio_codecs import qwen3_tts_speaker_encoder
from finetune.config import on_disk
from finetune.data.jsonl_dataset import SHOWN_PROBLEMS
from finetune.errors import UserError
from finetune.storage import files, remote

from .sequence_layout import Ids
from .speaker_statistics import Speaker, assign_rows, describe, survey

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from finetune.config import Config

    from ..options import Options

SAMPLE_RATE = 24000
"""Of the speaker encoder, Hz."""
LISTENED_TO = 64
"""Reference clips that a plan decodes; of more it only sees whether they are there."""


@dataclass(frozen=True)
class Known:
    """The speakers of a run, in the order of their vectors."""

    vectors: Tensor
    """[speakers, H] fp32."""
    state: dict[str, Any]
    """JSON: `speakers` (name, row, language, clips, seconds), `data`, `base`."""


def prepare(config: Config[Options]) -> None:
    """Survey the data and compute the speaker vectors, unless the cache already holds exactly these.

    Raises `UserError` with file and line for a row without speaker, codes or reference, and for a speaker who is only in `data.val`.
    """
    from finetune.modeling.loading import resolve_source

    options = config.options
    base = resolve_source(config.model.source, config.model.revision)
    shape = qwen3_tts_speaker_encoder.read_base_config(base)
    surveyed = survey(config, Ids.of(shape))
    references = {speaker.name: speaker.references(options.references) for speaker in surveyed}
    train = on_disk(config.data.train)
    assert train is not None  # `survey` has read it
    remote.fetch_missing(train, (path for paths in references.values() for path in paths))
    key = cache_key(base, references)
    state = describe(config, surveyed, assign_rows(shape, [speaker.name for speaker in surveyed]))
    cached = _read_cache(config)
    if cached is None or cached["key"] != key:
        encoder = qwen3_tts_speaker_encoder.load_encoder(base)
        vectors = [mean_vector(encoder, paths) for paths in references.values()]
    else:
        vectors = list(known(config).vectors)
    if cached is None or cached != {"key": key, "state": state}:
        _write_cache(config, vectors, {"key": key, "state": state})


def known(config: Config) -> Known:
    """What `prepare` left for this run. Raises `UserError` if it did not run."""
    from safetensors.torch import load_file

    cached = _read_cache(config)
    if cached is None:
        raise UserError(f"{_cache_path(config)} is missing or damaged: it is written when training starts; start the training again")
    return Known(load_file(_cache_path(config))["speaker_vectors"], cached["state"])


def cache_key(base: Path, references: dict[str, list[Path]]) -> str:
    """Digest of everything that the vectors depend on: the encoder's weights and, per speaker, the content of the reference clips."""
    total = hashlib.sha256()
    for name, tensor in sorted(qwen3_tts_speaker_encoder.read_encoder_weights(base).items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.float().numpy().tobytes())
    for name, paths in references.items():
        total.update(json.dumps([name, [_digest_of_clip(path) for path in paths]]).encode())
    return total.hexdigest()


def _digest_of_clip(path: Path) -> str:
    try:
        return files.digest(path)
    except OSError as error:
        raise UserError(f"reference clip {path}: {error.strerror}; restore it or remove its rows") from None


def mean_vector(encoder: nn.Module, references: list[Path]) -> Tensor:
    """[H] fp32: the mean over the clips. The mean is taken in fp32, where half precision would round the differences away."""
    import torch

    return torch.stack([torch.from_numpy(qwen3_tts_speaker_encoder.embed_clip(encoder, read_clip(path))) for path in references]).mean(0)


def read_clip(path: Path) -> np.ndarray:
    """A reference clip as the encoder takes it: [n] float32, mono, 24 kHz. Raises `UserError` if it cannot be read or is too short.

    The samples are those that the stock package would load from the file, so that a voice is the same vector in both: the clip's offset
    stays (a mean of 5e-3 of full scale moves the vector by a tenth), and other rates are converted by the resampler that it uses.
    """
    import numpy as np
    import soxr

    from data_prep.audio.waveform import AudioError, read_audio_unchanged

    try:
        audio = read_audio_unchanged(path)
    except (AudioError, OSError) as error:
        raise UserError(f"reference clip {path} is not usable ({error}); make the clips again with `python -m data_prep voice`") from None
    if audio.seconds < qwen3_tts_speaker_encoder.SHORTEST:
        raise UserError(
            f"reference clip {path} lasts {audio.seconds:.2f} s, a voice needs {qwen3_tts_speaker_encoder.SHORTEST} s; "
            "name a longer ref_audio"
        )
    if audio.rate == SAMPLE_RATE:
        return audio.samples
    samples = soxr.resample(audio.samples, audio.rate, SAMPLE_RATE, quality="HQ")
    length = math.ceil(len(audio.samples) * (SAMPLE_RATE / audio.rate))  # by librosa.resample, which rounds up and adds a zero
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def check_references(surveyed: list[Speaker], count: int) -> None:
    """What `prepare` would trip over, before anything is computed. Raises `UserError` that lists the reference clips that are not there,
    or, of the first ones, cannot be heard. Their rate does not matter: they are resampled."""
    problems = []
    for number, path in enumerate(clip for speaker in surveyed for clip in speaker.references(count)):
        try:
            if number < LISTENED_TO:
                read_clip(path)
            else:
                path.stat()
        except UserError as problem:
            problems.append(str(problem))
        except OSError as error:
            problems.append(f"reference clip {path}: {error.strerror}; restore it or remove its rows")
    if problems:
        more = f"\n  … and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise UserError(f"{len(problems)} bad reference clips:\n  " + "\n  ".join(problems[:SHOWN_PROBLEMS]) + more)


def _cache_path(config: Config) -> Path:
    return config.run.dir / "cache" / "speakers.safetensors"


def _read_cache(config: Config) -> dict[str, Any] | None:
    """{"key", "state"} of the cached vectors, which stand in the same file so that one cannot be newer than the other."""
    from safetensors import SafetensorError, safe_open

    path = _cache_path(config)
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["overtone"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(config: Config, vectors: list[Tensor], facts: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save

    data = save({"speaker_vectors": torch.stack(vectors).float().contiguous()}, metadata={"overtone": json.dumps(facts)})
    files.write_bytes(_cache_path(config), data)
