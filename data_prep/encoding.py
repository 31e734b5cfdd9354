"""Clips to codes, batch by batch, into a store by content: what was encoded once, by any run, is never encoded again.

A key is a digest of the clip's file and the tokenizer's files; the codes lie in `<store>/<two letters>/<key>.npy`, [T][16] as uint16.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio import MASTER_RATE, load, probe
from data_prep.codec import CodecError, Codes, encode, load_codec
from data_prep.formats import AudioError, Samples
from data_prep.pool import Stop
from data_prep.progress import figures
from finetune import files

STORE = "codes"
"""Folder of the store in that of the dataset."""
FORM = 1
"""Of how a file becomes the samples that are encoded: raise it when other codes would come out."""


@dataclass(frozen=True)
class Clip:
    """What is encoded."""

    path: Path
    key: str
    samples: int
    """At 24 kHz."""


def key_of(clip_digest: str, codec_digest: str) -> str:
    """Of a clip's codes."""
    return hashlib.sha256(f"{FORM} {clip_digest} {codec_digest}".encode()).hexdigest()


def stored_at(store: Path, key: str) -> Path:
    """The file of a key, whether it is there or not."""
    return store / key[:2] / f"{key}.npy"


def stored(store: Path, key: str) -> Codes:
    """[T][16]."""
    return np.load(stored_at(store, key), allow_pickle=False)


def encode_all(clips: list[Clip], store: Path, codec: Path, device: str, seconds: float, stop: Stop) -> dict[str, str]:
    """Fill the store, `seconds` of sound at a time; returns what went wrong, by key.

    If `stop` is asked for, the batch in hand is the last. The tokenizer is loaded only if there is anything to do.
    """
    failed: dict[str, str] = {}
    if not clips:
        return failed
    tokenizer = load_codec(codec, device)
    started, done, heard, total = time.monotonic(), 0, 0.0, _seconds(clips)
    for batch in batches(clips, seconds):
        if stop.asked:
            break
        for clip, codes in zip(batch, _encode_batch(tokenizer, batch), strict=True):
            if isinstance(codes, str):
                failed[clip.key] = codes
            else:
                files.write_bytes(stored_at(store, clip.key), _npy(codes))
        done, heard = done + len(batch), heard + _seconds(batch)
        print(f"[{done}/{len(clips)}] clips encoded · {figures(heard, total, time.monotonic() - started, Counter())}", flush=True)
    return failed


def batches(clips: list[Clip], seconds: float) -> list[list[Clip]]:
    """Clips of like length together, so that little is padding; each batch is at most `seconds` long when padded, or one clip."""
    full: list[list[Clip]] = []
    for clip in sorted(clips, key=lambda clip: (clip.samples, clip.key)):
        room = bool(full) and (len(full[-1]) + 1) * clip.samples <= seconds * MASTER_RATE
        if room:
            full[-1].append(clip)
        else:
            full.append([clip])
    return full


def _encode_batch(tokenizer: Any, batch: list[Clip]) -> list[Codes | str]:
    """Codes of each clip, or why there are none. A batch that fails is tried clip by clip, so that one clip takes no other with it."""
    try:
        return list(encode(tokenizer, [_samples(clip.path) for clip in batch]))
    except (CodecError, RuntimeError, AudioError) as error:
        if len(batch) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [codes for clip in batch for codes in _encode_batch(tokenizer, [clip])]


def _samples(path: Path) -> Samples:
    """As they stand, at 24 kHz: a constant offset, which `voice` took out of the recording, is kept here, as the official script keeps it.

    Raises `AudioError`.
    """
    track = probe(path)
    return load(path, track.model_copy(update={"offset": 0.0}), MASTER_RATE)[0].samples


def _seconds(clips: list[Clip]) -> float:
    return sum(clip.samples for clip in clips) / MASTER_RATE


def _npy(codes: Codes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, codes, allow_pickle=False)
    return buffer.getvalue()
