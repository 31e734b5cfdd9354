"""Encode the clips of a dataset and add the codes to its rows.

  overtone codes data/me --model Qwen/Qwen3-TTS-12Hz-1.7B-Base
  overtone codes official.jsonl --model Qwen/Qwen3-TTS-12Hz-1.7B-Base --speaker me
  overtone codes data/me --model sesame/csm-1b
  overtone codes data/me --model hubertsiuzdak/snac_24khz
  overtone codes data/me --model Qwen/Qwen3-TTS-12Hz-1.7B-Base --time-shifts 7

Reads datasets of `overtone voice`, and files of the official Qwen3-TTS script whose clips are under the file's folder
(`overtone export-dataset --root` collects others in one folder). Codes are stored by the content of clip and codec, so another run
encodes only what is new. A dataset has the codes of one codec at a time: another --model replaces them in the rows, and keeps them in the
store.

--time-shifts N is for few minutes of speech. It also encodes each training clip N times with silence of a part of a frame before it, which
gives other codes of the same speech, and writes train.shifted.jsonl: the rows of train.jsonl and their copies, to train on.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from overtone.data_prep import manifest
from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio_codecs.interface import Codec, read_code_format
from overtone.data_prep.audio_codecs.selection import CODECS, find_base_model, list_models, open_codec
from overtone.data_prep.dataset import clip_encoding
from overtone.data_prep.dataset.clip_audio_checks import inspect_clips
from overtone.data_prep.dataset.clip_encoding import STORE, ClipToEncode
from overtone.data_prep.dataset.codec_metadata import describe_codec
from overtone.data_prep.dataset.manifest_line_reader import DATASET, find_manifests
from overtone.data_prep.manifest import REJECTS, ManifestRow, Reject
from overtone.data_prep.parallel import worker_options
from overtone.data_prep.parallel.process_pool import StoppedError, StopSignal, report_stopped
from overtone.data_prep.parallel.worker_options import WorkerFlags
from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.storage import demo_models, files
from overtone.finetune.storage.referenced_files import is_renamed
from overtone.finetune.terminal import print_diagnostic, print_line

MOST_TIME_SHIFTS = 63
"""More copies would be shifted by less than the encoders resolve: 30 samples for Qwen3-TTS."""
MODEL = f"a speech model that contains its codec, or a codec: a folder, a name on the model hub, or codec-demo. {list_models(CODECS)}"


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone codes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument("dataset", type=Path, help=DATASET)
    options.add_argument("--model", required=True, help=MODEL)
    options.add_argument("--speaker", metavar="NAME", help="the speaker of rows that name none (files of the official script)")
    worker_options.add_options(options, "the codec")
    options.add_argument(
        "--batch-seconds", type=float, default=60.0, help="seconds of audio to encode at a time; bounds memory (default %(default)s)"
    )
    options.add_argument(
        "--time-shifts",
        type=int,
        default=0,
        metavar="N",
        help="copies of each training clip to encode, shifted by 1/(N+1), 2/(N+1), … of a frame; in train.shifted.jsonl (default 0)",
    )
    return options


@dataclass(frozen=True)
class EncodableRow:
    """A row whose clip can be read."""

    row: ManifestRow
    manifest: Path
    clip: ClipToEncode
    digest: str
    """Digest of the clip's file."""


@dataclass(frozen=True)
class RejectedRow:
    """A row that leaves the dataset, and why."""

    row: ManifestRow
    manifest: Path
    reason: str
    detail: str


@dataclass(frozen=True)
class CodesOptions:
    """Options of the verb `codes`."""

    dataset: Path
    model: str
    speaker: str | None = None
    batch_seconds: float = 60.0
    time_shifts: int = 0
    flags: WorkerFlags = field(default_factory=WorkerFlags)
    """The options of the worker processes."""


@dataclass(frozen=True)
class AddedCodes:
    """Result of encoding a dataset."""

    folder: Path
    """Folder of the rows."""
    codec: Codec
    clips: int
    seconds: float
    rejected: int
    encoded: int
    """Number of clips and copies that were encoded now; the others were in the store."""


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb."""
    arguments = parse_arguments(parser(), argv)
    options = CodesOptions(
        dataset=arguments.dataset,
        model=arguments.model,
        speaker=arguments.speaker,
        batch_seconds=arguments.batch_seconds,
        time_shifts=arguments.time_shifts,
        flags=worker_options.read_flags(arguments),
    )
    try:
        added = add_codes(options)
    except (StoppedError, KeyboardInterrupt) as error:
        return report_stopped(str(error) or "at once")
    print_line(f"next: {manifest.training_command(arguments.dataset, added.codec.recipe, find_base_model(arguments.model))}")
    return 0


def add_codes(options: CodesOptions) -> AddedCodes:
    """Encode the clips of a dataset, and print how many.

    Raises `UserError` if an option is wrong or no clip can be encoded, and `StoppedError` or `KeyboardInterrupt` after a stop.
    """
    if not options.batch_seconds > 0:
        raise UserError(f"--batch-seconds {options.batch_seconds}: give a number of seconds above 0")
    if not 0 <= options.time_shifts <= MOST_TIME_SHIFTS:
        raise UserError(f"--time-shifts {options.time_shifts}: give a number from 0 to {MOST_TIME_SHIFTS}")
    worker_options.check_options(options.flags)
    manifests = find_manifests(options.dataset)
    folder = manifests[0].parent
    rows = _clean_texts(list(_read_rows(manifests, folder, options.speaker)))
    codec = open_codec(options.model)
    owner = files.lock_folder(folder)
    try:
        files.make_folder(folder / STORE)  # raises for a link, before the first clip is encoded
        with worker_options.open_workers(options.flags, folder, [folder, codec.folder]) as hands, StopSignal() as stop:
            return _add_codes(rows, folder, clip_encoding.EncodingSetup(folder / STORE, codec, options.batch_seconds, hands), options, stop)
    finally:
        os.close(owner)


def _add_codes(
    rows: list[tuple[Path, ManifestRow]], folder: Path, setup: clip_encoding.EncodingSetup, options: CodesOptions, stop: StopSignal
) -> AddedCodes:
    """Encode the clips that are not in the store, then write the rows with their codes."""
    store, digest = setup.store, setup.codec.digest()
    for place in (folder, *store.glob("*")):
        files.remove_unfinished(place)
    read = _read_clips(rows, setup.codec.sample_rate, digest)
    good, rejected = [one for one in read if isinstance(one, EncodableRow)], [one for one in read if isinstance(one, RejectedRow)]
    copies = [copy for one in good for copy in _shift_row(one, options.time_shifts, setup.codec, digest)]
    wanted = [one.clip for one in (*good, *copies)]
    missing = list({clip.key: clip for clip in wanted if not clip_encoding.locate_codes(store, clip.key).is_file()}.values())
    if stop.requested:
        raise StoppedError("no clip was encoded yet")
    failed = clip_encoding.encode_clips(missing, setup, stop)
    left = [clip for clip in missing if clip.key not in failed and not clip_encoding.locate_codes(store, clip.key).is_file()]
    if left:
        raise StoppedError(f"{len(missing) - len(left)} of {len(missing)} clips are encoded")
    rejected += [RejectedRow(one.row, one.manifest, "codec_error", failed[one.clip.key]) for one in good if one.clip.key in failed]
    good = [one for one in good if one.clip.key not in failed]
    if not good:
        first = f"{rejected[0].row.audio}: {rejected[0].reason}: {rejected[0].detail}" if rejected else "the manifests are empty"
        raise UserError(f"no clip of {options.dataset} could be encoded, and nothing was changed; first: {first}")
    _write_manifests(folder, good, rejected)
    for one in (one for one in copies if one.clip.key in failed):
        print_diagnostic(f"not in the copies: {one.row.audio}, shifted by {one.clip.shift} samples: {failed[one.clip.key]}")
    copies = [one for one in copies if one.clip.key not in failed]
    _write_shifted_rows(folder, good, copies)
    return _report_result(options, folder, setup.codec, digest, good, rejected, len(missing) - len(failed), len(copies))


def _read_rows(manifests: list[Path], folder: Path, speaker: str | None) -> Iterator[tuple[Path, ManifestRow]]:
    """Yield every row with its manifest, without codes; rows that an earlier run rejected are included, to be tried again."""
    for path in manifests:
        for row in manifest.read_rows(path, speaker):
            if row.time_shift:
                raise UserError(f"{path}: a row for {row.audio} is a time-shifted copy; give the original clips, and --time-shifts N")
            yield path, row.model_copy(update={"audio_codes": None})
    for reject in _read_rejects(folder):
        if _is_own_reject(reject, manifests):
            yield folder / str(reject["manifest"]), ManifestRow.model_validate(reject["row"])


def _clean_texts(rows: list[tuple[Path, ManifestRow]]) -> list[tuple[Path, ManifestRow]]:
    """Return the rows without invisible characters in their texts, which other programs may have left there; reports how many there
    were."""
    found: Counter[str] = Counter()
    cleaned = []
    for path, row in rows:
        text, kinds = remove_invisible(row.text)
        found += kinds
        cleaned.append((path, row.model_copy(update={"text": text}) if kinds and text.strip() else row))
    if found:
        print_line(f"left out of the texts: {', '.join(f'{count} {kind}' for kind, count in sorted(found.items()))}")
    return cleaned


def _read_rejects(folder: Path) -> list[dict[str, JsonValue]]:
    return [reject for _, reject in manifest.read_lines(folder / REJECTS)] if (folder / REJECTS).is_file() else []


def _is_own_reject(reject: dict[str, JsonValue], manifests: list[Path]) -> bool:
    """Return whether an earlier run of this verb rejected the row from one of these files."""
    return reject.get("stage") == "codes" and reject.get("manifest") in {path.name for path in manifests}


def _read_clips(rows: list[tuple[Path, ManifestRow]], codec_rate: int, codec_digest: str) -> list[EncodableRow | RejectedRow]:
    """Decode every clip once, so that a damaged one does not interrupt the encoding."""
    paths = [manifest.resolve_clip(path, row) for path, row in rows]
    renamed = [row.audio for (path, row), clip in zip(rows, paths, strict=True) if is_renamed(path.parent, row.audio, clip)]
    if renamed:
        print_line(f"{format_count(len(renamed), 'clip')} found in another form of the name, such as {renamed[0]}")
    sounds = inspect_clips(paths)
    read: list[EncodableRow | RejectedRow] = []
    for (path, row), clip in zip(rows, paths, strict=True):
        sound = sounds[clip]
        if isinstance(sound, AudioError):
            read.append(RejectedRow(row, path, sound.reason, sound.detail))
        else:
            key = clip_encoding.make_key(sound.digest, codec_digest)
            read.append(EncodableRow(row, path, ClipToEncode(clip, key, sound.count_samples(codec_rate)), sound.digest))
    return read


def _shift_row(one: EncodableRow, count: int, codec: Codec, codec_digest: str) -> Iterator[EncodableRow]:
    """Yield the time-shifted copies of a training row; none of a validation row."""
    if one.manifest.name == manifest.VAL:
        return
    for shift in clip_encoding.list_time_shifts(count, codec.samples_per_frame):
        key = clip_encoding.make_key(one.digest, codec_digest, shift)
        clip = replace(one.clip, key=key, samples=one.clip.samples + shift, shift=shift)
        row = one.row.model_copy(update={"time_shift": round(shift / codec.sample_rate, 6)})
        yield EncodableRow(row, one.manifest, clip, one.digest)


def _write_shifted_rows(folder: Path, good: list[EncodableRow], copies: list[EncodableRow]) -> None:
    """Write the rows of each manifest and then their copies, beside it. Without copies, remove such a file of an earlier run: its codes may
    be those of another codec."""
    for path in sorted({one.manifest for one in good}):
        own = [one for one in copies if one.manifest == path]
        target = manifest.locate_shifted_rows(path)
        if own:
            manifest.write_entries(target, (_add_stored_codes(folder, one) for one in (*good, *own) if one.manifest == path))
        elif target.is_file():
            files.discard(target)
            print_line(f"{target} is removed: it was of an earlier run with --time-shifts")


def _add_stored_codes(folder: Path, one: EncodableRow) -> ManifestRow:
    return one.row.model_copy(update={"audio_codes": clip_encoding.read_codes(folder / STORE, one.clip.key).tolist()})


def _write_manifests(folder: Path, good: list[EncodableRow], rejected: list[RejectedRow]) -> None:
    """Write the rejects first: a kill in between leaves a row in two files, never in none."""
    manifests = sorted({one.manifest for one in good} | {one.manifest for one in rejected})
    before = _read_rejects(folder)
    kept = [Reject.model_validate(reject) for reject in before if not _is_own_reject(reject, manifests)]
    if rejected or before:
        manifest.write_entries(folder / REJECTS, [*kept, *(_make_reject(one) for one in rejected)])
    for path in manifests:
        manifest.write_entries(path, (_add_stored_codes(folder, one) for one in good if one.manifest == path))


def _make_reject(rejected: RejectedRow) -> Reject:
    """Return a reject that contains the whole row, so that a later run can restore it once its clip can be encoded."""
    return Reject.model_validate(
        {
            "source": rejected.row.source or rejected.row.audio,
            "start": rejected.row.start or 0.0,
            "end": rejected.row.end or 0.0,
            "stage": "codes",
            "reasons": [rejected.reason],
            "detail": rejected.detail,
            "manifest": rejected.manifest.name,
            "row": rejected.row.model_dump(exclude_none=True),
        }
    )


def _report_result(
    options: CodesOptions,
    folder: Path,
    codec: Codec,
    digest: str,
    good: list[EncodableRow],
    rejected: list[RejectedRow],
    encoded: int,
    copies: int,
) -> AddedCodes:
    """Write summary.json and run.json; print the rejected rows and the totals. `encoded`: clips encoded now, `copies` included."""
    code_format = read_code_format(codec)
    frames = sum(code_format.count_frames(one.clip.samples) for one in good)
    seconds = round(frames * codec.samples_per_frame / codec.sample_rate, 2)
    summary = {
        "model": options.model,
        "clips": len(good),
        "frames": frames,
        "seconds": seconds,
        "rejected": len(rejected),
        **({"time_shifts": options.time_shifts} if options.time_shifts else {}),
        **describe_codec(codec, digest),
        **demo_models.warning_entry(options.model),
    }
    files.write_json(folder / STORE / manifest.SUMMARY, summary)
    files.write_json(folder / STORE / manifest.RUN, {"encoded": encoded, "reused": len(good) + copies - encoded})
    for one in rejected:
        print_diagnostic(f"rejected {one.row.audio}: {one.reason}: {one.detail}")
    made = f"{format_count(len(good), 'clip')}, {format_count(frames, 'frame')}, {seconds} s"
    made += f", and {copies:,} time-shifted {'copy' if copies == 1 else 'copies'}" if copies else ""
    print_line(f"{made}; {encoded} encoded now, {len(rejected)} rejected")
    return AddedCodes(folder=folder, codec=codec, clips=len(good), seconds=seconds, rejected=len(rejected), encoded=encoded)
