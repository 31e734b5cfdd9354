"""Recordings in, clips with texts out.

  python -m data_prep voice my_recordings/ --out data/me --whisper small --speaker me
  python -m data_prep voice my_recordings/ --out data/me --transcripts --speaker-from folder

Run it again after anything: what is done is not done twice, and the same recordings give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import account, decisions, judge, manifest, speakers, transcribe, transcripts
from data_prep.device import DEVICES, choose_device
from data_prep.manifest import Reject, Row
from data_prep.recording import Job, Models, Recording, prepare, refused
from data_prep.score import PRESETS
from data_prep.segment import Lengths
from data_prep.sources import Source, scan
from data_prep.split import assign
from data_prep.stages import Stages
from data_prep.transcripts import FORMS, Transcript
from finetune import files
from finetune.errors import UserError, exit_code

STAGES = ".stages"


def main(argv: list[str]) -> int:
    """The verb. Returns 0 if there is something to train on."""
    return exit_code(_voice, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recordings", type=Path, help="folder of recordings; sub-folders are read too")
    options.add_argument("--out", type=Path, required=True, help="folder for clips/, train.jsonl, val.jsonl, rejects.jsonl, summary.json")
    text = options.add_mutually_exclusive_group(required=True)
    text.add_argument("--whisper", metavar="NAME", help="let Whisper listen: tiny … large-v3, or the path of a .pt file")
    text.add_argument("--transcripts", action="store_true", help=f"take the transcripts beside the recordings: {FORMS}")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--speaker", metavar="NAME", help="who speaks in all of them (default: the name of the folder)")
    who.add_argument(
        "--speaker-from",
        choices=["folder", "transcript"],
        help="folder: sub-folders are named after speakers; transcript: metadata.csv says",
    )
    options.add_argument("--language", help="en, english, zh, … (default: Whisper detects it; transcripts leave it open)")
    options.add_argument("--preset", choices=list(PRESETS), default="default", help="how strict the rules are (default %(default)s)")
    options.add_argument("--val-share", type=float, default=0.05, help="part of each speaker's time to validate on (default %(default)s)")
    options.add_argument("--target", type=float, default=6.0, help="seconds that a clip should last (default %(default)s)")
    options.add_argument("--shortest", type=float, default=1.0, help="seconds (default %(default)s)")
    options.add_argument("--longest", type=float, default=20.0, help="seconds (default %(default)s)")
    options.add_argument("--device", choices=DEVICES, help="where Whisper runs (default: cuda if there is one)")
    return options


def _voice(argv: list[str]) -> int:
    started = time.monotonic()
    options = parser().parse_args(argv)
    _check(options)
    sources = scan(options.recordings, _speaker(options), skip=options.out)
    texts = _texts(sources) if options.transcripts else None
    if texts and options.speaker_from == "transcript":
        sources = speakers.from_transcripts(sources, texts)
    elif texts and not options.speaker and not options.speaker_from:
        speakers.require_one(texts)
    job = _job(options)
    _clean_up(job.out)
    stages, models = Stages(job.out / STAGES), Models(options.whisper, choose_device(options.device))
    recordings = _prepare_all(sources, texts, job, stages, models)
    summary = _write(recordings, job, options)
    run = {
        "computed": stages.computed,
        "reused": stages.reused,
        "model_loads": models.loads,
        "seconds": round(time.monotonic() - started, 1),
    }
    files.write_json(job.out / manifest.RUN, run)
    print(account.table(summary))
    return _verdict(summary, job.out)


def _check(options: argparse.Namespace) -> None:
    if options.speaker_from == "transcript" and not options.transcripts:
        raise UserError("--speaker-from transcript needs --transcripts: Whisper does not hear who speaks")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: a part of the whole is expected, from 0 up to but not including 1")
    if not 0 < options.shortest <= options.target <= options.longest:
        raise UserError(
            f"--shortest {options.shortest}, --target {options.target}, --longest {options.longest}: they must be above 0 and in this order"
        )


def _speaker(options: argparse.Namespace) -> str | None:
    """None: from the folders."""
    return None if options.speaker_from == "folder" else options.speaker or options.recordings.resolve().name


def _texts(sources: list[Source]) -> dict[str, Transcript | None]:
    """All transcripts before any work, so that a slip in one of them costs no time."""
    found = transcripts.find_all([source.path for source in sources])
    if not any(found.by_recording.values()):
        raise UserError(f"--transcripts: no recording has a transcript beside it; expected {FORMS} (or let --whisper NAME listen)")
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return {source.name: found.by_recording[source.path] for source in sources}


def _job(options: argparse.Namespace) -> Job:
    language = manifest.language_name(options.language) if options.language else manifest.AUTO
    language_or_none = None if language == manifest.AUTO else language
    hearing = transcribe.settings(options.whisper, language_or_none) if options.whisper else None
    return Job(options.out, Lengths(options.target, options.shortest, options.longest), language_or_none, hearing)


def _prepare_all(
    sources: list[Source], texts: dict[str, Transcript | None] | None, job: Job, stages: Stages, models: Models
) -> list[Recording]:
    heard: dict[str, Recording] = {}
    recordings = []
    for number, source in enumerate(sources, start=1):
        twin = heard.get(source.digest)
        if twin is not None:
            recording = refused(source, "duplicate", f"the same bytes as {twin.source.name}", twin.total)
        else:
            recording = heard[source.digest] = prepare(source, texts[source.name] if texts else None, job, stages, models)
        print(f"[{number}/{len(sources)}] {source.name}: {_told(recording)}", flush=True)
        recordings.append(recording)
    return recordings


def _told(recording: Recording) -> str:
    return f"rejected, {recording.refused}: {recording.detail}" if recording.refused else f"{len(recording.clips)} clips"


def _write(recordings: list[Recording], job: Job, options: argparse.Namespace) -> account.Summary:
    standard = judge.Standard(PRESETS[options.preset], job.lengths, decisions.read(job.out))
    judged = judge.judge(recordings, standard)
    rows = sorted(assign(judge.kept(judged), options.val_share), key=_place)
    rejects = sorted(judge.rejected(judged, recordings), key=_place)
    settings: dict[str, object] = {
        "text": job.hearing or "transcripts",
        "lengths": vars(job.lengths),
        "preset": options.preset,
        "reviewed": len(standard.decisions),
        "val_share": options.val_share,
    }
    summary = account.summarise(account.accounts(recordings, rows, rejects), rows, rejects, settings)
    manifest.write(job.out / manifest.REJECTS, rejects)
    manifest.write_unless_same(job.out / manifest.VAL, [row for row in rows if row.split == "val"])
    manifest.write_unless_same(job.out / manifest.TRAIN, [row for row in rows if row.split == "train"])
    files.write_json(job.out / manifest.SUMMARY, summary.model_dump())
    _remove_unnamed(job.out, {one.clip.audio for one in judged if one.clip.audio})
    return summary


def _place(entry: Row | Reject) -> tuple[str, float]:
    return entry.source or "", entry.start or 0.0


def _clean_up(out: Path) -> None:
    """Temporaries of a killed run."""
    for folder in (out, *out.glob("clips/*"), *out.glob(f"{STAGES}/*")):
        files.sweep(folder)


def _remove_unnamed(out: Path, named: set[str]) -> None:
    """Clips that earlier parameters or recordings left: after the manifests, so that none ever names a missing file."""
    for path in out.glob("clips/*/*.flac"):
        if path.relative_to(out).as_posix() not in named:
            files.discard(path)


def _verdict(summary: account.Summary, out: Path) -> int:
    reasons = sorted(summary.rejected_by_reason, key=lambda reason: -summary.rejected_by_reason[reason])
    if not summary.clips:
        raise UserError(f"no clip was kept; most frequent reasons: {', '.join(reasons[:3]) or 'none'}; see {out / manifest.REJECTS}")
    if summary.rejected_seconds > summary.kept_seconds:
        print(f"warning: more was rejected than kept, mostly for {', '.join(reasons[:3])}; see {out / manifest.REJECTS}", file=sys.stderr)
    print(f"next: python -m data_prep codes {out} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
