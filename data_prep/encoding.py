"""Clips to codes, batch by batch, into a store by content: what was encoded once, by any run, is never encoded again.

A key is a digest of the clip's file and the tokenizer's files; the codes lie in `<store>/<two letters>/<key>.npy`, [T][16] as uint16.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio import MASTER_RATE, load, probe
from data_prep.codec import CodecError, Codes, encode, load_codec
from data_prep.device import one_thread
from data_prep.formats import AudioError, Samples
from data_prep.pool import Failure, StopSignal
from data_prep.progress import format_progress
from data_prep.workers import WorkerOptions, distribute
from finetune import files

STORE = "codes"
"""Folder of the store in that of the dataset."""
WORKER_BYTES = 2**30
"""Memory of a worker besides the tokenizer's: torch and the package."""
FORM = 2
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


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know."""

    store: Path
    codec: Path
    seconds: float
    """Of sound that is encoded at a time."""
    workers: WorkerOptions


def encode_all(clips: list[Clip], setup: Setup, stop: StopSignal) -> dict[str, str]:
    """Fill the store; returns what went wrong, by key.

    If `stop` is asked for, the batches in hand are the last. The tokenizer is loaded only if there is anything to do.
    """
    failed: dict[str, str] = {}
    started, done, heard, total = time.monotonic(), 0, 0.0, _seconds(clips)
    for batch, problems in _encoded(batches(clips, setup.seconds), setup, stop):
        failed |= problems
        done, heard = done + len(batch), heard + _seconds(batch)
        print(f"[{done}/{len(clips)}] clips encoded · {format_progress(heard, total, time.monotonic() - started, Counter())}", flush=True)
    return failed


def _encoded(groups: list[list[Clip]], setup: Setup, stop: StopSignal) -> Iterator[tuple[list[Clip], dict[str, str]]]:
    """Each batch when it is in the store, and what went wrong in it. One that ended its workers is taken apart: the fault is one clip's."""
    torn: list[list[Clip]] = []
    for index, result in distribute(groups, functools.partial(_encoder, setup), setup.workers, _memory(setup), stop):
        group = groups[index]
        if not isinstance(result, Failure):
            yield group, result
        elif len(group) == 1:
            yield group, {group[0].key: f"encoding it failed again and again: {result.why}"}
        else:
            torn += [[clip] for clip in group]
    if torn:
        yield from _encoded(torn, setup, stop)


def _memory(setup: Setup) -> int:
    """Bytes of a worker: the weights, and about four arrays of 64 channels of 32 bits at 24 kHz, the encoder's widest."""
    weights = sum(path.stat().st_size for path in setup.codec.glob("*.safetensors"))
    return WORKER_BYTES + weights + round(setup.seconds * MASTER_RATE * 64 * 4 * 4)


@contextlib.contextmanager
def _encoder(setup: Setup, device: str) -> Iterator[Callable[[list[Clip]], dict[str, str]]]:
    """What a worker does with a batch: its codes into the store; what went wrong, by key. One thread, for the same sums everywhere."""
    with one_thread():
        yield functools.partial(_store_batch, load_codec(setup.codec, device), setup.store)


def _store_batch(tokenizer: Any, store: Path, batch: list[Clip]) -> dict[str, str]:
    failed: dict[str, str] = {}
    for clip, codes in zip(batch, _encode_batch(tokenizer, batch), strict=True):
        if isinstance(codes, str):
            failed[clip.key] = codes
        else:
            files.write_bytes(stored_at(store, clip.key), _npy(codes))
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
