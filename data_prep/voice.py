"""Recordings in, clips with texts out.

  python -m data_prep voice my_recordings/ --out data/me --whisper small --speaker me
  python -m data_prep voice my_recordings/ --out data/me --transcripts --speaker-from folder

Run it again after anything: what is done is not done twice, and the same recordings give the same bytes. Ctrl-C finishes the recordings in
hand. Decisions of `data_prep review` hold in every run.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from dataclasses import replace
from pathlib import Path

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import (
    account,
    dataset,
    decisions,
    dry_run,
    elsewhere,
    faster,
    judge,
    manifest,
    speakers,
    table,
    transcribe,
    transcripts,
    workers,
)
from data_prep.codec_choice import open_speaker_encoder
from data_prep.device import choose_device
from data_prep.hearing import Setup, StoppedError, Task, hear_all
from data_prep.judge import Standard
from data_prep.pool import Stop, tell_stopped
from data_prep.recording import Job
from data_prep.score import PRESETS, presets
from data_prep.segment import Lengths
from data_prep.sources import Source, ignored, scan, told
from data_prep.transcripts import FORMS, Transcript
from data_prep.workers import Workers
from finetune import files, remote
from finetune.errors import UserError, exit_code


def main(argv: list[str]) -> int:
    """The verb. Returns 0 if there is something to train on, 130 if it was stopped."""
    return exit_code(_voice, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recordings", type=remote.place, help="folder of recordings, or its URL (s3://…); sub-folders are read too")
    options.add_argument("--out", type=Path, required=True, help="folder for clips/, train.jsonl, val.jsonl, rejects.jsonl, summary.json")
    _ask_what_is_said(options)
    _ask_for_clips(options)
    workers.ask(options, "Whisper")
    return options


def _ask_what_is_said(options: argparse.ArgumentParser) -> None:
    """By whom, and in which language."""
    text = options.add_mutually_exclusive_group(required=True)
    text.add_argument(
        "--whisper", metavar="NAME", help="let Whisper listen: tiny … large-v3, a .pt file, faster-whisper:NAME, or whisper-demo-en"
    )
    text.add_argument("--transcripts", action="store_true", help=f"take the transcripts beside the recordings: {FORMS}")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--speaker", metavar="NAME", help="who speaks in all of them (default: the name of the folder)")
    who.add_argument(
        "--speaker-from",
        choices=["folder", "transcript"],
        help="folder: sub-folders are named after speakers; transcript: metadata.csv says",
    )
    options.add_argument("--speaker-check", metavar="MODEL", help="flag clips of somebody else, by the encoder of a Qwen3-TTS Base model")
    options.add_argument("--language", help="en, english, zh, … (default: Whisper detects it; transcripts leave it open)")


def _ask_for_clips(options: argparse.ArgumentParser) -> None:
    """Which are kept, and how long they are."""
    options.add_argument("--preset", choices=list(PRESETS), default="default", help="how strict the rules are (default %(default)s)")
    options.add_argument("--dry-run", action="store_true", help="hear, then only show what each rule would remove; the hearing is not lost")
    options.add_argument("--val-share", type=float, default=0.05, help="part of each speaker's time to validate on (default %(default)s)")
    options.add_argument("--target", type=float, default=6.0, help="seconds that a clip should last (default %(default)s)")
    options.add_argument("--shortest", type=float, default=1.0, help="seconds (default %(default)s)")
    options.add_argument("--longest", type=float, default=20.0, help="seconds (default %(default)s)")


def _voice(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    _check(options)
    if isinstance(options.recordings, str):
        options.recordings = elsewhere.brought(options.recordings, options.out)
    try:
        needed = [options.recordings, options.whisper, options.speaker_check]
        with workers.found(options, options.out, needed) as hands, Stop() as stop:
            return _prepare(options, stop, hands)
    except (StoppedError, KeyboardInterrupt) as error:
        return tell_stopped(str(error) or "at once")


def _prepare(options: argparse.Namespace, stop: Stop, hands: Workers) -> int:
    started = time.monotonic()
    tasks = _tasks(options)
    job = _job(options)
    least_sure = (job.hearing or {}).get("least_sure")
    standard = Standard(presets(least_sure)[options.preset], job.lengths, decisions.read(job.out))
    with dataset.owned(job.out):
        _tell_of_others(options)
        setup = Setup(job, job.out / dataset.STAGES, options.whisper, hands if options.whisper else replace(hands, device="cpu"))
        recordings, work = hear_all(tasks, setup, standard, stop)
        _warn_of_decisions(judge.without_clip(recordings, standard.decisions))
        samples = functools.partial(dataset.samples, job.out)
        if options.dry_run:
            print(dry_run.table(recordings, options.preset, job.lengths, standard.decisions, samples, least_sure))
            return 0
        judged = judge.judge(recordings, standard, samples)
        summary = dataset.write(job.out, recordings, judged, options.val_share, _settings(options, job, standard))
        run = vars(work) | {"seconds": round(time.monotonic() - started, 1)}
        files.write_json(job.out / manifest.RUN, run)
    print(account.table(summary))
    return _verdict(summary, job.out)


def _check(options: argparse.Namespace) -> None:
    if options.speaker_from == "transcript" and not options.transcripts:
        raise UserError("--speaker-from transcript needs --transcripts: Whisper does not hear who speaks")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: a part of the whole is expected, from 0 up to but not including 1")
    workers.check(options)
    if not 0 < options.shortest <= options.target <= options.longest:
        raise UserError(
            f"--shortest {options.shortest}, --target {options.target}, --longest {options.longest}: they must be above 0 and in this order"
        )
    if options.whisper and options.engine == "local" and faster.runs(options.whisper):  # under ray, each worker looks at its own machine
        faster.check_device(options.whisper, choose_device(options.device))


def _tasks(options: argparse.Namespace) -> list[Task]:
    """The recordings, who speaks in them and what is said."""
    speaker = None if options.speaker_from == "folder" else options.speaker or options.recordings.resolve().name
    sources = scan(options.recordings, speaker, skip=options.out)
    if not options.transcripts:
        return [Task(source, None) for source in sources]
    texts = _texts(sources)
    if options.speaker_from == "transcript":
        sources = speakers.from_transcripts(sources, texts)
    elif not options.speaker and not options.speaker_from:
        speakers.require_one(texts)
    return [Task(source, texts[source.name]) for source in sources]


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
    encoder = open_speaker_encoder(options.speaker_check, "--speaker-check") if options.speaker_check else None
    return Job(options.out, Lengths(options.target, options.shortest, options.longest), language_or_none, hearing, encoder)


def _settings(options: argparse.Namespace, job: Job, standard: Standard) -> dict[str, object]:
    return {
        "text": job.hearing or "transcripts",
        "speaker_check": job.encoder.digest if job.encoder else None,
        "lengths": vars(job.lengths),
        "preset": options.preset,
        "decisions": len(standard.decisions),
        "val_share": options.val_share,
    }


def _tell_of_others(options: argparse.Namespace) -> None:
    """Files that are not used: a person may have taken one of them for a recording, or for a transcript."""
    others = ignored(options.recordings, options.out)
    for name in (*transcripts.SUFFIXES, *table.NAMES) if options.transcripts else ():
        del others[f".{name.rpartition('.')[2]}"]
    if others:
        print(f"not recordings: {told(others)}")


def _warn_of_decisions(lost: list[str]) -> None:
    if lost:
        some = ", ".join(lost[:3])
        print(f"warning: {len(lost)} decisions are about clips that are not there, or hold no words: {some}", file=sys.stderr)


def _verdict(summary: account.Summary, out: Path) -> int:
    reasons = sorted(summary.rejected_by_reason, key=lambda reason: -summary.rejected_by_reason[reason])
    if not summary.clips:
        raise UserError(f"no clip was kept; most frequent reasons: {', '.join(reasons[:3]) or 'none'}; see {out / manifest.REJECTS}")
    if summary.rejected_seconds > summary.kept_seconds:
        print(f"warning: more was rejected than kept, mostly for {', '.join(reasons[:3])}; see {out / manifest.REJECTS}", file=sys.stderr)
    print(f"look and listen: python -m data_prep report {out}")
    print(f"next: python -m data_prep codes {out} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
