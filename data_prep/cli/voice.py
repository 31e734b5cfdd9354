"""Turn recordings of speech into clips with transcripts.

  python -m data_prep voice my_recordings/ --out data/me --whisper small --speaker me
  python -m data_prep voice my_recordings/ --out data/me --transcripts --speaker-from folder

Run the same command again at any time: completed work is reused, and the same recordings give byte-identical files. Ctrl-C finishes the
recordings in progress, then stops. Decisions made in `data_prep review` apply to every run.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

from data_prep import manifest
from data_prep.audio_codecs.selection import open_speaker_encoder
from data_prep.clips import review_decisions
from data_prep.clips.quality_rules import PRESETS, make_presets
from data_prep.dataset import duration_summary, writer
from data_prep.parallel import executor
from data_prep.parallel.devices import choose_device
from data_prep.parallel.executor import WorkerOptions
from data_prep.parallel.process_pool import StopSignal, report_stopped
from data_prep.pipeline import clip_selection, rule_removal_table
from data_prep.pipeline.all_recordings import RecordingTask, StoppedError, WorkerSetup, process_recordings
from data_prep.pipeline.clip_selection import SelectionCriteria
from data_prep.pipeline.one_recording import Job
from data_prep.recordings import metadata_csv, remote_recordings, transcript_speakers, user_transcripts
from data_prep.recordings.recording_files import RecordingSource, count_ignored, find_recordings, format_counts
from data_prep.recordings.user_transcripts import FORMS, UserTranscript
from data_prep.segmentation.segment import Lengths
from data_prep.transcription import faster_whisper_engine, whisper_engine
from finetune.errors import UserError, exit_code
from finetune.storage import files, remote


def main(argv: list[str]) -> int:
    """Run the verb. Returns 0 if at least one clip was kept, 130 if interrupted."""
    return exit_code(_run, argv)


def parser() -> argparse.ArgumentParser:
    """The argument parser."""
    options = argparse.ArgumentParser(prog="data_prep voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recordings", type=remote.parse_place, help="folder of recordings, or its URL (s3://…); sub-folders are included")
    options.add_argument(
        "--out", type=Path, required=True, help="output folder for clips/, train.jsonl, val.jsonl, rejects.jsonl, summary.json"
    )
    _add_text_options(options)
    _add_clip_options(options)
    executor.add_options(options, "Whisper")
    return options


def _add_text_options(options: argparse.ArgumentParser) -> None:
    """Options for the source of the text, the speaker and the language."""
    text = options.add_mutually_exclusive_group(required=True)
    text.add_argument(
        "--whisper",
        metavar="NAME",
        help="Whisper model: tiny … large-v3, a .pt file, a hub name, faster-whisper:NAME, or whisper-demo-en",
    )
    text.add_argument("--transcripts", action="store_true", help=f"use the transcripts next to the recordings: {FORMS}")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--speaker", metavar="NAME", help="speaker of all recordings (default: the name of the folder)")
    who.add_argument(
        "--speaker-from",
        choices=["folder", "transcript"],
        help="folder: each sub-folder is named after its speaker; transcript: metadata.csv names the speakers",
    )
    options.add_argument(
        "--speaker-check", metavar="MODEL", help="reject clips of other speakers, using the speaker encoder of a Qwen3-TTS Base model"
    )
    options.add_argument("--language", help="en, english, zh, … (default: detected by Whisper; unspecified with --transcripts)")


def _add_clip_options(options: argparse.ArgumentParser) -> None:
    """Options for the selection and the length of clips."""
    options.add_argument("--preset", choices=list(PRESETS), default="default", help="strictness of the quality rules (default %(default)s)")
    options.add_argument(
        "--dry-run", action="store_true", help="transcribe, then only show what each rule would remove; transcripts are stored and reused"
    )
    options.add_argument(
        "--val-share", type=float, default=0.05, help="validation share of each speaker's speech, 0 to 1 (default %(default)s)"
    )
    options.add_argument("--target", type=float, default=6.0, help="preferred clip duration in seconds (default %(default)s)")
    options.add_argument("--shortest", type=float, default=1.0, help="minimum clip duration in seconds (default %(default)s)")
    options.add_argument("--longest", type=float, default=20.0, help="maximum clip duration in seconds (default %(default)s)")


def _run(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    _check_options(options)
    if isinstance(options.recordings, str):
        options.recordings = remote_recordings.download_recordings(options.recordings, options.out)
    try:
        needed = [options.recordings, options.whisper, options.speaker_check]
        with executor.open_workers(options, options.out, needed) as hands, StopSignal() as stop:
            return _prepare_dataset(options, stop, hands)
    except (StoppedError, KeyboardInterrupt) as error:
        return report_stopped(str(error) or "at once")


def _prepare_dataset(options: argparse.Namespace, stop: StopSignal, hands: WorkerOptions) -> int:
    started = time.monotonic()
    tasks = _list_tasks(options)
    job = _make_job(options)
    least_sure = (job.whisper_settings or {}).get("least_sure")
    standard = SelectionCriteria(make_presets(least_sure)[options.preset], job.lengths, review_decisions.read_decisions(job.out))
    with writer.lock_dataset(job.out):
        _print_ignored(options)
        setup = WorkerSetup(job, job.out / writer.STAGES, options.whisper, hands if options.whisper else replace(hands, device="cpu"))
        recordings, work = process_recordings(tasks, setup, standard, stop)
        _warn_of_stale_decisions(clip_selection.find_stale_decisions(recordings, standard.decisions))
        samples = functools.partial(writer.read_samples, job.out)
        if options.dry_run:
            print(rule_removal_table.format_removals(recordings, options.preset, job.lengths, standard.decisions, samples, least_sure))
            return 0
        judged = clip_selection.judge_clips(recordings, standard, samples)
        summary = writer.write_dataset(job.out, recordings, judged, options.val_share, _describe_settings(options, job, standard))
        run = vars(work) | {"seconds": round(time.monotonic() - started, 1)}
        files.write_json(job.out / manifest.RUN, run)
    print(duration_summary.format_summary(summary))
    return _print_next_steps(summary, job.out)


def _check_options(options: argparse.Namespace) -> None:
    if options.speaker_from == "transcript" and not options.transcripts:
        raise UserError("--speaker-from transcript needs --transcripts: Whisper does not identify speakers")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: expected a share from 0 up to but not including 1")
    executor.check_options(options)
    if not 0 < options.shortest <= options.target <= options.longest:
        raise UserError(
            f"--shortest {options.shortest}, --target {options.target}, --longest {options.longest}: "
            "expected 0 < shortest <= target <= longest"
        )
    if (
        options.whisper and options.engine == "local" and faster_whisper_engine.is_faster_whisper(options.whisper)
    ):  # under ray, each worker looks at its own machine
        faster_whisper_engine.check_device(options.whisper, choose_device(options.device))


def _list_tasks(options: argparse.Namespace) -> list[RecordingTask]:
    """The recordings with their speakers and, with --transcripts, their transcripts."""
    speaker = None if options.speaker_from == "folder" else options.speaker or options.recordings.resolve().name
    if options.speaker is not None and (name := manifest.parse_speaker(options.speaker)) != options.speaker:
        print(f"--speaker {options.speaker}: the rows name this speaker {name!r}, since names of speakers are in lower case", flush=True)
    sources = find_recordings(options.recordings, speaker, skip=options.out)
    if not options.transcripts:
        return [RecordingTask(source, None) for source in sources]
    texts = _read_transcripts(sources)
    if options.speaker_from == "transcript":
        sources = transcript_speakers.assign_speakers(sources, texts)
    elif not options.speaker and not options.speaker_from:
        transcript_speakers.require_one_speaker(texts)
    return [RecordingTask(source, texts[source.name]) for source in sources]


def _read_transcripts(sources: list[RecordingSource]) -> dict[str, UserTranscript | None]:
    """Read all transcripts before any audio work, so that an error in one of them shows up at once."""
    found = user_transcripts.find_transcripts([source.path for source in sources])
    if not any(found.by_recording.values()):
        raise UserError(f"--transcripts: no recording has a transcript next to it; expected {FORMS} (or use --whisper NAME)")
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return {source.name: found.by_recording[source.path] for source in sources}


def _make_job(options: argparse.Namespace) -> Job:
    language = manifest.parse_language(options.language) if options.language else manifest.AUTO
    language_or_none = None if language == manifest.AUTO else language
    whisper_settings = whisper_engine.describe_settings(options.whisper, language_or_none) if options.whisper else None
    encoder = open_speaker_encoder(options.speaker_check, "--speaker-check") if options.speaker_check else None
    return Job(options.out, Lengths(options.target, options.shortest, options.longest), language_or_none, whisper_settings, encoder)


def _describe_settings(options: argparse.Namespace, job: Job, standard: SelectionCriteria) -> dict[str, object]:
    return {
        "text": job.whisper_settings or "transcripts",
        "speaker_check": job.encoder.digest if job.encoder else None,
        "lengths": vars(job.lengths),
        "preset": options.preset,
        "decisions": len(standard.decisions),
        "val_share": options.val_share,
    }


def _print_ignored(options: argparse.Namespace) -> None:
    """Report unused files: the user may have expected one of them to be read as a recording or a transcript."""
    others = count_ignored(options.recordings, options.out)
    for name in (*user_transcripts.SUFFIXES, *metadata_csv.NAMES) if options.transcripts else ():
        del others[f".{name.rpartition('.')[2]}"]
    if others:
        print(f"ignored, not recordings: {format_counts(others)}")


def _warn_of_stale_decisions(stale: list[str]) -> None:
    if stale:
        first = ", ".join(stale[:3])
        print(f"warning: {len(stale)} review decisions refer to clips that no longer exist or have no text: {first}", file=sys.stderr)


def _print_next_steps(summary: duration_summary.Summary, out: Path) -> int:
    reasons = sorted(summary.rejected_by_reason, key=lambda reason: -summary.rejected_by_reason[reason])
    if not summary.clips:
        raise UserError(f"no clip was kept; most frequent reasons: {', '.join(reasons[:3]) or 'none'}; see {out / manifest.REJECTS}")
    if summary.rejected_seconds > summary.kept_seconds:
        print(
            f"warning: more speech was rejected than kept; main reasons: {', '.join(reasons[:3])}; see {out / manifest.REJECTS}",
            file=sys.stderr,
        )
    quoted = shlex.quote(str(out))
    print(f"report: python -m data_prep report {quoted}")
    print(f"next: python -m data_prep codes {quoted} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    return 0
