"""Encode clips batch by batch into a content-addressed store: a clip that any run has encoded is never encoded again.

A key is a digest of the clip's file, the codec's files, and the time shift if there is one; its codes are in
`<store>/<two letters>/<key>.npy`, uint16 [frames, codebooks].
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.stream_reader import AudioError, Samples
from overtone.data_prep.audio.waveform import load_track, probe_recording
from overtone.data_prep.audio_codecs.interface import Codec, CodecError, Codes, LoadedCodec
from overtone.data_prep.parallel.item_distribution import distribute_items
from overtone.data_prep.parallel.process_pool import Failure, StopSignal
from overtone.data_prep.parallel.torch_settings import use_one_thread
from overtone.data_prep.parallel.worker_options import WorkerOptions
from overtone.data_prep.pipeline.progress import Pace, format_progress
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.terminal import print_line

STORE = "codes"
"""Folder of the store inside that of the dataset."""
WORKER_BYTES = 2**30
"""Memory of a worker besides the codec's: torch and the codec's package."""
FORM = 2
"""Version of how a file becomes the samples that are encoded. Increment it when a change alters codes: it is part of every key."""


@dataclass(frozen=True)
class ClipToEncode:
    """A clip to encode."""

    path: Path
    key: str
    """Key of its codes in the store."""
    samples: int
    """Its length at the codec's sample rate, with the shift."""
    shift: int = 0
    """Zeros that are put before it, at the codec's sample rate."""


def make_key(clip_digest: str, codec_digest: str, shift: int = 0) -> str:
    """Return the key of a clip's codes: 64 hexadecimal digits. `shift`: zeros before the clip, at the codec's sample rate."""
    return hashlib.sha256(f"{FORM} {clip_digest} {codec_digest} {shift}".encode()).hexdigest()


def list_time_shifts(count: int, samples_per_frame: int) -> list[int]:
    """Return `count` different shifts in samples, which divide a frame into equal parts: 1/(count + 1) of it, 2/(count + 1), and so on."""
    return [round(number * samples_per_frame / (count + 1)) for number in range(1, count + 1)]


def locate_codes(store: Path, key: str) -> Path:
    """Return the file of a key, whether or not it exists."""
    return store / key[:2] / f"{key}.npy"


def read_codes(store: Path, key: str) -> Codes:
    """Return the codes of a key, [frames, codebooks]. Raises `UserError` for a file that does not contain any."""
    path, problem = locate_codes(store, key), "it is not a table of uint16"
    try:
        with input_files.open_file(path) as file:
            codes = np.load(file, allow_pickle=False)
        if isinstance(codes, np.ndarray) and codes.ndim == 2 and codes.dtype == np.uint16:
            return codes
    except (OSError, ValueError, EOFError) as error:
        problem = one_line(error)
    raise UserError(f"{path} does not contain the codes of a clip ({problem}); delete it, and the same command encodes the clip again")


@dataclass(frozen=True)
class EncodingSetup:
    """Settings of the workers."""

    store: Path
    codec: Codec
    seconds: float
    """Seconds of audio per batch."""
    workers: WorkerOptions


def encode_clips(clips: list[ClipToEncode], setup: EncodingSetup, stop: StopSignal) -> dict[str, str]:
    """Put the codes of all clips into the store; returns the errors by key.

    If `stop` is requested, the batches that are being encoded are the last. The codec is loaded only if there is something to encode.
    """
    failed: dict[str, str] = {}
    rate = setup.codec.sample_rate
    pace, done, encoded, total = Pace(), 0, 0.0, _sum_seconds(clips, rate)
    for batch, errors in _encode_batches(make_batches(clips, setup.seconds, rate), setup, stop):
        failed |= errors
        done, encoded = done + len(batch), encoded + _sum_seconds(batch, rate)
        print_line(f"[{done}/{len(clips)}] clips encoded · {format_progress(encoded, total, pace.compute_speed(encoded), Counter())}")
    return failed


def _encode_batches(
    groups: list[list[ClipToEncode]], setup: EncodingSetup, stop: StopSignal
) -> Iterator[tuple[list[ClipToEncode], dict[str, str]]]:
    """Yield each batch once it is in the store, with its errors by key. A batch that ended its workers is split, since one clip is at
    fault."""
    split: list[list[ClipToEncode]] = []
    memory = WORKER_BYTES + setup.codec.estimate_worker_bytes(setup.seconds)
    for index, result in distribute_items(groups, functools.partial(_open_worker, setup), setup.workers, memory, stop):
        group = groups[index]
        if not isinstance(result, Failure):
            yield group, result
        elif len(group) == 1:
            yield group, {group[0].key: f"encoding it failed again and again: {result.why}"}
        else:
            split += [[clip] for clip in group]
    if split:
        yield from _encode_batches(split, setup, stop)


@contextlib.contextmanager
def _open_worker(setup: EncodingSetup, device: str) -> Iterator[Callable[[list[ClipToEncode]], dict[str, str]]]:
    """Return the function that encodes a batch in a worker. It has one thread, so that sums are rounded in the same way everywhere."""
    with use_one_thread():
        yield functools.partial(_store_batch, setup.codec.load(device), setup.codec.sample_rate, setup.store)


def _store_batch(codec: LoadedCodec, rate: int, store: Path, batch: list[ClipToEncode]) -> dict[str, str]:
    """Put the codes of a batch into the store; returns the errors by key."""
    failed: dict[str, str] = {}
    for clip, codes in zip(batch, _encode_batch(codec, rate, batch), strict=True):
        if isinstance(codes, str):
            failed[clip.key] = codes
        else:
            buffer = io.BytesIO()
            np.save(buffer, codes, allow_pickle=False)
            files.write_bytes(locate_codes(store, clip.key), buffer.getvalue())
    return failed


def make_batches(clips: list[ClipToEncode], seconds: float, rate: int) -> list[list[ClipToEncode]]:
    """Group clips of similar length, so that there is little padding. A batch is at most `seconds` long when padded, or is one clip.

    `rate`: samples per second of the clips' lengths.
    """
    full: list[list[ClipToEncode]] = []
    for clip in sorted(clips, key=lambda clip: (clip.samples, clip.key)):
        room = bool(full) and (len(full[-1]) + 1) * clip.samples <= seconds * rate
        if room:
            full[-1].append(clip)
        else:
            full.append([clip])
    return full


def _encode_batch(codec: LoadedCodec, rate: int, batch: list[ClipToEncode]) -> list[Codes | str]:
    """Return the codes of each clip, or its error. A batch that fails is encoded clip by clip, so that the others keep their codes."""
    try:
        return list(codec.encode([_read_samples(clip, rate) for clip in batch]))
    except (CodecError, RuntimeError, AudioError) as error:
        if len(batch) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [codes for clip in batch for codes in _encode_batch(codec, rate, [clip])]


def _read_samples(clip: ClipToEncode, rate: int) -> Samples:
    """Return the samples [n] at `rate`, after the zeros of the shift. A constant offset, which `overtone voice` removes from recordings, is
    kept here, as the official script does.

    Raises `AudioError`.
    """
    track = probe_recording(clip.path)
    samples = load_track(clip.path, track.model_copy(update={"offset": 0.0}), rate)[0].samples
    return np.pad(samples, (clip.shift, 0)) if clip.shift else samples


def _sum_seconds(clips: list[ClipToEncode], rate: int) -> float:
    return sum(clip.samples for clip in clips) / rate
