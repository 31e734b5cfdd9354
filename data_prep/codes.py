"""Codes of the speech tokenizer into train.jsonl and val.jsonl.

  python -m data_prep codes data/me --model Qwen/Qwen3-TTS-12Hz-1.7B-Base

Takes what `data_prep voice` made, and files of the official script. Codes are kept by the content of clip and tokenizer: run it again after
anything, and only what is new is encoded.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from data_prep import manifest
from data_prep.audio import MASTER_RATE, load, probe
from data_prep.codec import SAMPLES_PER_FRAME, CodecError, Codes, codec_digest, encode, find_codec, frames_of, load_codec
from data_prep.device import DEVICES, choose_device
from data_prep.formats import AudioError, Samples
from data_prep.manifest import Reject, Row
from finetune import files
from finetune.errors import UserError, exit_code

STORE = "codes"


def main(argv: list[str]) -> int:
    """The verb."""
    return exit_code(_codes, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep codes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="folder with train.jsonl, and val.jsonl if there is one")
    options.add_argument("--model", required=True, help="Qwen3-TTS 12 Hz model: a folder, or a name on the model hub")
    options.add_argument("--speaker", metavar="NAME", help="who speaks in rows that name nobody (files of the official script)")
    options.add_argument("--device", choices=DEVICES, help="default: cuda if there is one")
    options.add_argument("--batch-seconds", type=float, default=60.0, help="sound encoded at a time, bounds memory (default %(default)s)")
    return options


@dataclass(frozen=True)
class Clip:
    """One row on its way."""

    row: Row
    manifest: Path
    path: Path
    key: str
    """Of its codes in the store."""
    samples: int
    """At 24 kHz."""


@dataclass(frozen=True)
class Bad:
    """One row that has to go, and why."""

    row: Row
    manifest: Path
    reason: str
    detail: str


def _codes(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if not options.batch_seconds > 0:
        raise UserError(f"--batch-seconds {options.batch_seconds}: seconds above 0 are expected")
    codec = find_codec(options.model)
    digest = codec_digest(codec)
    store = options.folder / STORE
    for folder in (options.folder, *store.glob("*")):
        files.sweep(folder)
    looked = [_look(row, path, digest) for path, row in _rows(options.folder, options.speaker)]
    clips, bad = [one for one in looked if isinstance(one, Clip)], [one for one in looked if isinstance(one, Bad)]
    missing = list({clip.key: clip for clip in clips if not _stored_at(store, clip.key).is_file()}.values())
    failed = _encode_all(missing, store, codec, options)
    bad += [Bad(clip.row, clip.manifest, "codec_error", failed[clip.key]) for clip in clips if clip.key in failed]
    clips = [clip for clip in clips if clip.key not in failed]
    if not clips:
        raise UserError(f"no clip of {options.folder} could be encoded, and nothing was changed; first: {_first(bad)}")
    _rewrite(options.folder, clips, bad)
    _report(options, clips, bad, digest, encoded=len(missing) - len(failed))
    return 0


def _rows(folder: Path, speaker: str | None) -> Iterator[tuple[Path, Row]]:
    """Every row with the manifest it belongs to, without codes; those that failed last time are tried again."""
    for path in (folder / manifest.TRAIN, folder / manifest.VAL):
        if path.name == manifest.TRAIN or path.is_file():
            for row in manifest.read_rows(path, speaker):
                yield path, row.model_copy(update={"audio_codes": None})
    if (folder / manifest.REJECTS).is_file():
        for _, reject in manifest.read_lines(folder / manifest.REJECTS):
            if reject.get("stage") == "codes":
                yield folder / reject["manifest"], Row.model_validate(reject["row"])


def _look(row: Row, path: Path, digest: str) -> Clip | Bad:
    clip = manifest.clip_path(path, row)
    try:
        samples = _samples(clip)
    except AudioError as error:
        return Bad(row, path, error.reason, error.detail)
    key = hashlib.sha256(samples.tobytes() + digest.encode()).hexdigest()
    return Clip(row, path, clip, key, len(samples))


def _encode_all(missing: list[Clip], store: Path, codec: Path, options: argparse.Namespace) -> dict[str, str]:
    """Fill the store; returns what went wrong by key. The tokenizer is loaded only if something is missing."""
    if not missing:
        return {}
    tokenizer = load_codec(codec, choose_device(options.device))
    failed: dict[str, str] = {}
    done = 0
    for batch in batches(missing, options.batch_seconds):
        for clip, codes in zip(batch, _encode_batch(tokenizer, batch), strict=True):
            if isinstance(codes, str):
                failed[clip.key] = codes
            else:
                files.write_bytes(_stored_at(store, clip.key), _npy(codes))
        done += len(batch)
        print(f"[{done}/{len(missing)}] clips encoded", flush=True)
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


def _encode_batch(tokenizer: object, batch: list[Clip]) -> list[Codes | str]:
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
    if track.warning:
        raise AudioError("truncated", track.warning)
    return load(path, track.model_copy(update={"offset": 0.0}), MASTER_RATE)[0].samples


def _rewrite(folder: Path, clips: list[Clip], bad: list[Bad]) -> None:
    """Rejects first: a kill in between leaves a row in two files, never in none."""
    before = [reject for _, reject in manifest.read_lines(folder / manifest.REJECTS)] if (folder / manifest.REJECTS).is_file() else []
    kept = [Reject.model_validate(reject) for reject in before if reject.get("stage") != "codes"]
    if bad or before:
        manifest.write(folder / manifest.REJECTS, [*kept, *(_reject(one) for one in bad)])
    for path in sorted({clip.manifest for clip in clips} | {one.manifest for one in bad}):
        manifest.write(path, (_with_codes(clip, folder / STORE) for clip in clips if clip.manifest == path))


def _reject(bad: Bad) -> Reject:
    """Holds the whole row, which comes back when its clip does."""
    return Reject.model_validate(
        {
            "source": bad.row.source or bad.row.audio,
            "start": bad.row.start or 0.0,
            "end": bad.row.end or 0.0,
            "stage": "codes",
            "reasons": [bad.reason],
            "detail": bad.detail,
            "manifest": bad.manifest.name,
            "row": bad.row.model_dump(exclude_none=True),
        }
    )


def _with_codes(clip: Clip, store: Path) -> Row:
    codes = np.load(_stored_at(store, clip.key), allow_pickle=False)
    return clip.row.model_copy(update={"audio_codes": codes.tolist()})


def _report(options: argparse.Namespace, clips: list[Clip], bad: list[Bad], digest: str, encoded: int) -> None:
    frames = sum(frames_of(clip.samples) for clip in clips)
    summary = {
        "model": options.model,
        "codec_digest": digest,
        "clips": len(clips),
        "frames": frames,
        "seconds": round(frames * SAMPLES_PER_FRAME / MASTER_RATE, 2),
        "rejected": len(bad),
    }
    files.write_json(options.folder / STORE / manifest.SUMMARY, summary)
    files.write_json(options.folder / STORE / manifest.RUN, {"encoded": encoded, "reused": len(clips) - encoded})
    for one in bad:
        print(f"rejected {one.row.audio}: {one.reason}: {one.detail}", file=sys.stderr)
    print(f"{len(clips)} clips, {frames} frames, {summary['seconds']} s; {encoded} encoded now, {len(bad)} rejected")
    print(f"next: accelerate launch finetune/train.py --recipe voice_clone --data.train {options.folder / manifest.TRAIN}")


def _first(bad: list[Bad]) -> str:
    return f"{bad[0].row.audio}: {bad[0].reason}: {bad[0].detail}" if bad else "the manifests are empty"


def _stored_at(store: Path, key: str) -> Path:
    return store / key[:2] / f"{key}.npy"


def _npy(codes: Codes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, codes, allow_pickle=False)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
