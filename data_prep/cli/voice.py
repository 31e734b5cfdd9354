"""Turn recordings of speech into clips with transcripts.

  overtone voice my_recordings/ --out data/me --whisper small --speaker me
  overtone voice my_recordings/ --out data/me --transcripts --speaker-from folder

Run the same command again at any time: completed work is reused, and the same recordings give byte-identical files. Ctrl-C finishes the
recordings in progress, then stops. Decisions made in `overtone review` apply to every run.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.alignment.clip_alignment import open_aligner
from overtone.data_prep.alignment.pocketsphinx_aligner import NAME as POCKETSPHINX
from overtone.data_prep.audio.channel_selection import AUTO, LEFT, MIX, RIGHT
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.audio_codecs.selection import DEFAULT_MODEL, suggest_other_models
from overtone.data_prep.clips import dnsmos, review_decisions
from overtone.data_prep.clips.quality_rules import KEEP_ALL, PRESETS, make_presets
from overtone.data_prep.dataset import duration_accounting, voice_dataset_writer
from overtone.data_prep.parallel import worker_options
from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.parallel.process_pool import StoppedError, StopSignal, report_stopped
from overtone.data_prep.parallel.worker_options import WorkerFlags, WorkerOptions
from overtone.data_prep.pipeline import clip_selection, rule_removal_table, transcript_examples, transcript_plausibility
from overtone.data_prep.pipeline.all_recordings import (
    CRASHED,
    RecordingTask,
    WorkerSetup,
    describe_crashes,
    process_recordings,
)
from overtone.data_prep.pipeline.clip_selection import JudgedClip, SelectionCriteria
from overtone.data_prep.pipeline.recording_results import Job, PreparedRecording
from overtone.data_prep.pipeline.speech_detection import PEOPLE_ON_CHANNELS
from overtone.data_prep.pipeline.text_verification import TextChecks, describe_texts
from overtone.data_prep.pipeline.user_notices import Notice, print_notices
from overtone.data_prep.pipeline.wrong_text_detection import describe_languages, refuse_wrong_texts
from overtone.data_prep.recordings import (
    named_column_tables,
    remote_recordings,
    speakers_from_transcripts,
    transcript_list_parsers,
    user_transcripts,
)
from overtone.data_prep.recordings.audio_datasets import is_audio_dataset, unpack_dataset
from overtone.data_prep.recordings.recording_files import (
    SOUND_ENDINGS,
    SPLIT,
    RecordingSource,
    count_ignored,
    find_recordings,
    format_counts,
    select_channels,
)
from overtone.data_prep.recordings.removed_text import RemovedKind, format_removals
from overtone.data_prep.recordings.user_transcripts import FORMS, UserTranscript
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.encoder_selection import find_installed_encoder, open_voice_encoder
from overtone.data_prep.speakers.voice_clusters import FEWEST_WINDOWS, LEAST_SECONDS, MOST_VOICES, VoiceCount
from overtone.data_prep.transcription import faster_whisper_engine, whisper_engine
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.argument_parsing import check_choice, parse_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.storage import files, remote
from overtone.finetune.storage.synthetic_audio_mark import find_synthetic_mark
from overtone.finetune.terminal import print_diagnostic, print_line

CHECK_OPTION = "--check-with"
NO_MODEL = "none"
MOST_CONTRADICTED = 0.5
"""Share of rejected texts above which an automatically chosen check is itself doubtful."""
LOST = 3
"""Exit code if a dataset was made, but crashes lost some recordings."""
SPEAKER_SOURCES = ("folder", "transcript")
"""Values of --speaker-from."""
CHANNEL_FORMS = "expected auto, left, right, mix, split, or the number of a channel from 1"
SPEAKER_COUNT = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
"""The value of --speakers."""
SHOWN = 5
"""Files named in a message."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(
        prog="overtone voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    options.add_argument(
        "recordings",
        type=remote.parse_place,
        help="folder of recordings, with its sub-folders; one recording; the URL (s3://…) of either; or a dataset with sound: "
        "a folder that `datasets` saved, a folder of Parquet files, or its name on the hub (owner/name)",
    )
    options.add_argument("--config", action="append", default=[], metavar="NAME", help="configuration of a dataset that has several")
    options.add_argument(
        "--split", action="append", default=[], metavar="NAME", help="split of a dataset that has several; repeat it for more"
    )
    options.add_argument(
        "--out", type=Path, required=True, help="output folder for clips/, train.jsonl, val.jsonl, rejects.jsonl, summary.json"
    )
    _add_text_options(options)
    _add_clip_options(options)
    worker_options.add_options(options, "Whisper and --align")
    return options


@dataclass(frozen=True)
class VoiceOptions:
    """Options of the verb `voice`."""

    recordings: Path | RemoteAddress
    out: Path
    whisper: str | None = None
    transcripts: bool = False
    speaker: str | None = None
    speaker_from: str | None = None
    diarize: bool = False
    speakers: str | None = None
    speaker_check: str | None = None
    align: str | None = None
    check_with: str | None = None
    beams: int | None = None
    language: str | None = None
    channels: str = AUTO
    allow_synthetic: bool = False
    preset: str = "default"
    dry_run: bool = False
    val_share: float = 0.05
    target: float = 6.0
    shortest: float = 1.0
    longest: float = 20.0
    config: Sequence[str] = ()
    split: Sequence[str] = ()
    flags: WorkerFlags = field(default_factory=WorkerFlags)
    """The options of the worker processes."""

    @property
    def root(self) -> Path:
        """The folder or the file of the recordings, which is on this machine once they are downloaded."""
        assert isinstance(self.recordings, Path)
        return self.recordings


@dataclass(frozen=True)
class ChosenChecks:
    """The models that compare the words of a text with the sound."""

    align: str | None
    check_with: str | None
    is_automatic: bool = False
    """True if the checks were chosen automatically, not by an option."""


@dataclass(frozen=True)
class PreparedVoice:
    """Result of preparing recordings."""

    summary: duration_accounting.Summary
    lost: tuple[str, ...]
    """Recordings that crashed the process that read them."""


def _add_text_options(options: argparse.ArgumentParser) -> None:
    """Options for the source of the text, the speaker and the language."""
    text = options.add_mutually_exclusive_group(required=True)
    text.add_argument(
        "--whisper",
        metavar="NAME",
        help="Whisper model: tiny … large-v3 (on a CPU by faster-whisper, if that is installed), a .pt file, a hub name, "
        "faster-whisper:NAME, or whisper-demo-en",
    )
    text.add_argument("--transcripts", action="store_true", help=f"use the transcripts next to the recordings: {FORMS}")
    who = options.add_mutually_exclusive_group()
    who.add_argument("--speaker", metavar="NAME", help="speaker of all recordings (default: the name of the folder or file)")
    who.add_argument(
        "--speaker-from",
        choices=SPEAKER_SOURCES,
        help="folder: each sub-folder is named after its speaker; transcript: the transcripts name them, as in NAME: or a column",
    )
    who.add_argument(
        "--diarize", action="store_true", help="name the speaker of each clip by its voice: speaker_1 speaks most (needs a speaker encoder)"
    )
    options.add_argument(
        "--speakers",
        metavar="N",
        help="with --diarize: the number of people in all recordings, or the fewest and the most: 2-4 (default: found by voice)",
    )
    options.add_argument(
        "--speaker-check",
        metavar="MODEL",
        help="speaker encoder that rejects clips of two voices and of other speakers: resemblyzer (the default if it is installed), an "
        "x-vector model of transformers, or a Qwen3-TTS Base model; none: no check",
    )
    options.add_argument(
        "--align",
        metavar="MODEL",
        help="reject clips whose text is not what is spoken, by forced alignment: pocketsphinx (English), or a Wav2Vec2 model with a CTC "
        "head for the language, by folder or hub name; none: no check (default: with --transcripts and --language en, pocketsphinx or a "
        "Whisper in ~/.cache/whisper checks clips, if it is there)",
    )
    options.add_argument(
        "--check-with", metavar="NAME", help="with --transcripts: reject clips in which this Whisper model transcribes other words"
    )
    options.add_argument(
        "--beams",
        type=int,
        metavar="N",
        help="texts that Whisper follows at the same time: more take longer and make fewer errors (default: 5 with faster-whisper, 1 with "
        "openai-whisper)",
    )
    options.add_argument("--language", help="en, english, zh, … (default: detected by Whisper; unspecified with --transcripts)")


def _add_clip_options(options: argparse.ArgumentParser) -> None:
    """Options for the selection and the length of clips."""
    options.add_argument(
        "--channels",
        type=_parse_channels,
        default=AUTO,
        metavar="auto|left|right|mix|split|NUMBER",
        help="which channels of a recording are used. auto: the mean, or the clean one beside noise, silence or the same sound inverted; "
        "refuses two people on two channels. split: each channel is a speaker, SPEAKER_left and SPEAKER_right (default %(default)s)",
    )
    options.add_argument("--allow-synthetic", action="store_true", help="use recordings whose tags say that they are synthetic speech")
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


@catch_user_errors
def main(argv: list[str]) -> int:
    """Run the verb. Returns 0 if at least one clip was kept, 3 if crashes also lost some recordings, 130 if interrupted."""
    arguments = parse_arguments(parser(), argv)
    try:
        prepared = prepare_voice(read_options(arguments))
    except (StoppedError, KeyboardInterrupt) as error:
        return report_stopped(str(error) or "at once")
    if prepared is None:
        return 0
    print_line(f"report: {overtone_command('report', arguments.out)}")
    print_line(f"next: {overtone_command('codes', arguments.out, '--model', DEFAULT_MODEL)}")
    print_line(f"      {suggest_other_models()}")
    return LOST if prepared.lost else 0


def read_options(arguments: argparse.Namespace) -> VoiceOptions:
    """Return the options on the command line."""
    given = {each.name: getattr(arguments, each.name) for each in fields(VoiceOptions) if each.name != "flags"}
    return VoiceOptions(**given, flags=worker_options.read_flags(arguments))


def prepare_voice(options: VoiceOptions) -> PreparedVoice | None:
    """Make the dataset, and print what is in it; None after a dry run.

    Raises `UserError` if an option is wrong or no clip was kept, and `StoppedError` or `KeyboardInterrupt` after a stop.
    """
    _check_options(options)
    if (options.config or options.split) and not is_audio_dataset(options.recordings):
        raise UserError(f"--config and --split choose parts of a dataset with audio; {options.recordings} is not one")
    if is_audio_dataset(options.recordings):
        unpacked = unpack_dataset(str(options.recordings), options.out, options.config, options.split)
        options = replace(options, recordings=unpacked)
    elif isinstance(options.recordings, RemoteAddress):
        options = replace(options, recordings=remote_recordings.download_recordings(options.recordings, options.out))
    encoder = None if options.speaker_check == "none" else options.speaker_check
    needed = [options.root, options.whisper, options.check_with, encoder, None if options.align == NO_MODEL else options.align]
    with worker_options.open_workers(options.flags, options.out, needed) as hands, StopSignal() as stop:
        return _prepare_dataset(options, stop, hands)


def _prepare_dataset(options: VoiceOptions, stop: StopSignal, hands: WorkerOptions) -> PreparedVoice | None:
    started = time.monotonic()
    options, engine = _choose_engine(options)
    print_notices(engine)
    tasks, checks, notices, removed = _list_tasks(options)
    notices = [*engine, *notices]
    job = _make_job(options, checks)
    least_sure = (job.whisper_settings or {}).get("least_sure")
    rules, decisions = make_presets(least_sure)[options.preset], review_decisions.read_decisions(job.out)
    trusted, voice_count = options.preset == KEEP_ALL, _read_voice_count(options)
    standard = SelectionCriteria(rules, job.lengths, decisions, trusts_texts=trusted, diarize=options.diarize, voices=voice_count)
    with voice_dataset_writer.lock_dataset(job.out):
        _print_ignored(options, [task.source for task in tasks])
        whisper = options.whisper or checks.check_with
        hands = hands if whisper or job.aligner else replace(hands, device="cpu")
        setup = WorkerSetup(job, job.out / voice_dataset_writer.STAGES, whisper, hands, _name_whisper_option(checks))
        recordings, work = process_recordings(tasks, setup, standard, stop)
        doubts = transcript_plausibility.find_doubts(recordings)
        found = [
            *describe_crashes(recordings),
            *_describe_stale_decisions(clip_selection.find_stale_decisions(recordings, standard.decisions)),
            *(Notice(text=one.warning, recordings=(one.source.name,)) for one in recordings if one.warning),
            *_describe_people_on_channels([one.source.name for one in recordings if one.refused == PEOPLE_ON_CHANNELS]),
            *doubts.notices,
            *describe_languages(doubts.languages, options.language),
        ]
        print_notices(found)
        if options.dry_run:
            print_line(rule_removal_table.format_removals(recordings, options.preset, standard, job.out, least_sure, doubts))
            return None
        judged = clip_selection.judge_clips(recordings, standard, job.out, doubts)
        voices = clip_selection.describe_voices(judged)
        settings = _describe_settings(options, job, standard) | {"voices": voices}
        last = [
            *_describe_unchecked_words(options, checks, recordings),
            *_describe_many_contradictions(checks, judged),
            *_list_unchecked(options, job),
            *_describe_missing_voices(judged, standard.voices),
            *(
                Notice(text=line, is_warning=False) if options.diarize else Notice(text=f"{line}; listen, and see --diarize")
                for line in voices
            ),
        ]
        compared = TextChecks(options.whisper, checks.align if job.aligner else None, checks.check_with)
        texts = {one.source.name: describe_texts(one, compared, doubts) for one in recordings}
        summary = voice_dataset_writer.write_dataset(
            job.out, recordings, judged, options.val_share, settings, [*notices, *found, *last], texts, removed
        )
        run = vars(work) | {"seconds": round(time.monotonic() - started, 1)}
        files.write_json(job.out / manifest.RUN, run)
    print_line(duration_accounting.format_summary(summary))
    print_line(transcript_examples.format_examples([one for one in judged if not one.reasons]))
    print_notices(last)
    _require_clips(summary, job.out)
    print_notices(duration_accounting.list_result_notices(summary))
    return PreparedVoice(summary, tuple(one.source.name for one in recordings if one.refused == CRASHED))


def is_channels(given: str) -> bool:
    """Return whether a text can be the value of --channels."""
    return given in (AUTO, LEFT, RIGHT, MIX, SPLIT) or re.fullmatch(r"[1-9][0-9]{0,2}", given) is not None


def _parse_channels(given: str) -> str:
    if not is_channels(given):
        raise argparse.ArgumentTypeError(f"{CHANNEL_FORMS}, not {given}")
    return given


def _check_options(options: VoiceOptions) -> None:
    """Raises `UserError` for options that do not fit each other, also for values that the parser refuses on the command line."""
    if (options.whisper is not None) == options.transcripts:
        raise UserError("give either --whisper NAME, which writes the texts, or --transcripts, which are next to the recordings")
    if (options.speaker is not None) + (options.speaker_from is not None) + options.diarize > 1:
        raise UserError("--speaker, --speaker-from and --diarize exclude each other: give one of them")
    check_choice("--preset", options.preset, PRESETS)
    check_choice("--speaker-from", options.speaker_from, SPEAKER_SOURCES)
    if not is_channels(options.channels):
        raise UserError(f"--channels {options.channels}: {CHANNEL_FORMS}")
    if options.channels == SPLIT and options.transcripts:
        raise UserError(
            "--channels split needs --whisper: a transcript does not say on which channel its words are; prepare each channel with its own "
            "transcripts, --channels left and --channels right"
        )
    if options.speaker_from == "transcript" and not options.transcripts:
        raise UserError("--speaker-from transcript needs --transcripts: Whisper does not identify speakers")
    if options.check_with and not options.transcripts:
        raise UserError("--check-with needs --transcripts: a text written by Whisper is checked with --align MODEL")
    if options.beams is not None and options.beams < 1:
        raise UserError(f"--beams {options.beams}: must be at least 1")
    if options.beams is not None and not (options.whisper or options.check_with):
        raise UserError("--beams needs --whisper or --check-with: without them, no Whisper is chosen that could follow several texts")
    if options.diarize and options.speaker_check == "none":
        raise UserError("--diarize and --speaker-check none exclude each other: a speaker encoder distinguishes the voices; omit one")
    _read_voice_count(options)
    language = manifest.parse_language(options.language) if options.language else "english"
    if options.align == POCKETSPHINX and language not in ("english", manifest.AUTO):
        raise UserError(f"--align {POCKETSPHINX} aligns English only, not {language}; give a Wav2Vec2 CTC model for {language}")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: expected a share from 0 up to but not including 1")
    worker_options.check_options(options.flags)
    if not 0 < options.shortest <= options.target <= options.longest:
        raise UserError(
            f"--shortest {options.shortest}, --target {options.target}, --longest {options.longest}: "
            "expected 0 < shortest <= target <= longest"
        )
    requested = ChosenChecks(options.align, options.check_with)
    whisper, name = options.whisper or requested.check_with, _name_whisper_option(requested)
    if whisper and options.flags.engine == "local" and faster_whisper_engine.is_faster_whisper(whisper, name):
        faster_whisper_engine.check_device(
            whisper, choose_device(options.flags.device), name
        )  # under Ray, each worker examines its own machine


def _read_voice_count(options: VoiceOptions) -> VoiceCount | None:
    """Return the number of `--speakers`; None without the option. Raises `UserError` if it does not say how many voices there are."""
    if options.speakers is None:
        return None
    given = f"--speakers {options.speakers}"
    if not options.diarize:
        raise UserError(f"{given} needs --diarize, which names the speaker of each clip by its voice; add it, or omit --speakers")
    found = SPEAKER_COUNT.fullmatch(options.speakers)
    if found is None:
        raise UserError(f"{given}: expected a number of people, such as 2, or the fewest and the most, such as 2-4")
    count = VoiceCount(int(found[1]), int(found[2] or found[1]))
    if count.most == 1:
        raise UserError(f"{given}: one person needs no --diarize; give --speaker NAME instead of both")
    if not 1 <= count.least <= count.most <= MOST_VOICES:
        raise UserError(f"{given}: expected 1 to {MOST_VOICES} people, the smaller number first")
    return count


def _describe_missing_voices(judged: list[JudgedClip], count: VoiceCount | None) -> list[Notice]:
    """Return a warning if the recordings do not have as many voices as `--speakers` names."""
    found = len({one.voice for one in judged if one.voice is not None})
    if count is None or found >= count.least:
        return []
    needed = f"each voice needs {FEWEST_WINDOWS} stretches of speech of at least {LEAST_SECONDS:g} s"
    return [Notice(text=f"the clips have {format_count(found, 'voice')}, fewer than --speakers: {needed}")]


def _name_whisper_option(checks: ChosenChecks) -> str:
    """Return the option that names the Whisper of this run."""
    return CHECK_OPTION if checks.check_with else WHISPER_OPTION


def _list_tasks(options: VoiceOptions) -> tuple[list[RecordingTask], ChosenChecks, list[Notice], dict[str, RemovedKind]]:
    """Return the recordings with their speakers and, with --transcripts, their transcripts; the models that check these; notices about
    them; and what was removed from their texts."""
    root = options.root.resolve()
    speaker = None if options.speaker_from == "folder" else options.speaker or (root.stem if root.is_file() else root.name)
    if options.speaker is not None and (name := manifest.parse_speaker(options.speaker)) != options.speaker:
        print_line(f"--speaker {options.speaker}: the rows name this speaker {name!r}, since names of speakers are in lower case")
    sources = find_recordings(options.root, speaker, skip=options.out)
    if not options.allow_synthetic:
        sources = [source if source.problem else replace(source, synthetic=find_synthetic_mark(source.path)) for source in sources]
    sources = select_channels(sources, options.channels)
    if not options.transcripts:
        return [RecordingTask(source, None) for source in sources], ChosenChecks(options.align, options.check_with), [], {}
    texts, notices, removed = _read_transcripts(sources, options.root)
    notices += [] if options.language else _note_unknown_languages({name: text.language for name, text in texts.items() if text})
    print_notices(notices)
    if options.preset != KEEP_ALL:
        language = manifest.parse_language(options.language) if options.language else None
        refuse_wrong_texts([text for one in texts.values() if one for text in one.list_texts()], language)
    checks, chosen = _choose_check(options)
    print_notices(chosen)
    notices += chosen
    if options.speaker_from == "transcript":
        sources = speakers_from_transcripts.assign_speakers(sources, texts)
    elif not options.speaker and not options.speaker_from:
        named = speakers_from_transcripts.require_one_speaker(texts)
        if named is not None and speaker is not None and manifest.parse_speaker(named) != manifest.parse_speaker(speaker):
            note = f"the speaker is {speaker}; --speaker-from transcript uses {named}, whom the transcripts name"
            notices.append(Notice(text=note, is_warning=False))
            print_notices(notices[-1:])
    return [RecordingTask(source, texts[source.name]) for source in sources], checks, notices, removed


def _choose_check(options: VoiceOptions) -> tuple[ChosenChecks, list[Notice]]:
    """Return the requested models; if there is none, one for English transcripts if it is installed, and a note that names it."""
    requested = ChosenChecks(options.align, options.check_with)
    is_english = options.language is not None and manifest.parse_language(options.language) == "english"
    if options.align or options.check_with or options.preset == KEEP_ALL or not is_english:
        return requested, []
    if find_spec(POCKETSPHINX):
        name, checks = POCKETSPHINX, ChosenChecks(POCKETSPHINX, None, is_automatic=True)
    elif found := whisper_engine.find_cached_english_model():
        name, checks = found, ChosenChecks(None, found, is_automatic=True)
    else:
        return requested, []
    note = f"{name} checks whether each text is what is spoken (slower; --align {NO_MODEL} omits it)"
    return checks, [Notice(text=note, is_warning=False)]


def _choose_engine(options: VoiceOptions) -> tuple[VoiceOptions, list[Notice]]:
    """Return the options with the engine of a published Whisper in its name, and a note that names it. Under Ray, openai-whisper is used,
    because each worker has its own packages."""
    if options.whisper is None or options.flags.engine != "local":
        return options, []
    name = faster_whisper_engine.choose_engine(options.whisper, choose_device(options.flags.device))
    if name == options.whisper:
        return options, []
    note = (
        f"{WHISPER_OPTION} {options.whisper}: faster-whisper, which is installed, transcribes with the same weights in less time than "
        f"openai-whisper ({WHISPER_OPTION} /path/to/{options.whisper}.pt uses that)"
    )
    return replace(options, whisper=name), [Notice(text=note, is_warning=False)]


def _describe_unchecked_words(options: VoiceOptions, checks: ChosenChecks, recordings: Sequence[PreparedRecording]) -> list[Notice]:
    """Return a note if no model compares the words of transcripts with the sound."""
    names = tuple(one.source.name for one in recordings if not one.refused)
    if not options.transcripts or checks.check_with or checks.align not in (None, NO_MODEL) or not names:
        return []
    text = (
        "whether each text is what is spoken was not checked: wrong words of like length and missing words are not found. --check-with "
        "NAME (a Whisper that knows the language) or --align MODEL (a Wav2Vec2 CTC model for it) checks them; or listen to some clips"
    )
    return [Notice(text=text, recordings=names, is_warning=False)]


def _describe_many_contradictions(checks: ChosenChecks, judged: Sequence[JudgedClip]) -> list[Notice]:
    """Return a warning if an automatically chosen check rejects most clips: it may not understand the voice."""
    checked = [one for one in judged if one.clip.audio]
    wrong = sum(bool({"text_not_spoken", "text_contradicted"} & {*one.reasons}) for one in checked)
    if not checks.is_automatic or wrong <= MOST_CONTRADICTED * len(checked):
        return []
    text = (
        f"{wrong} of {len(checked)} texts are not what {checks.align or checks.check_with} finds in the sound: they are wrong, or it "
        f"does not understand this voice; listen to some, and use --align {NO_MODEL} if they are right"
    )
    return [Notice(text=text)]


def _read_transcripts(
    sources: list[RecordingSource], root: Path
) -> tuple[dict[str, UserTranscript | None], list[Notice], dict[str, RemovedKind]]:
    """Read all transcripts before any audio work, so that an error in one of them shows up at once."""
    found = user_transcripts.find_transcripts([source.path for source in sources], root if root.is_dir() else None)
    near = [path.name for path in found.near_misses]
    shown = f"; found {', '.join([*near[:SHOWN], *['…'] * (len(near) > SHOWN)])}" if near else ""
    if not any(found.by_recording.values()):
        for note in found.notes:
            print_diagnostic(f"note: {note}")
        unused = "".join(f"; {note}" for note in found.unused[:SHOWN])
        if found.removed:
            shown = f"; {_describe_removed(found.removed)}"
        raise UserError(f"--transcripts: no recording has a transcript{unused or shown}; expected {FORMS} (or use --whisper NAME)")
    texts = {source.name: found.by_recording[source.path] for source in sources}
    without = tuple(name for name, text in texts.items() if text is None)
    notices = [Notice(text=f"{format_count(len(without), 'recording')} without a transcript{shown}", recordings=without)] if without else []
    notices += [Notice(text=text.note, recordings=(name,)) for name, text in texts.items() if text and text.note]
    of_recordings = {text.note for text in texts.values() if text}
    notices += [Notice(text=note) for note in found.notes if note not in of_recordings]
    notices += [Notice(text=_describe_removed(found.removed))] if found.removed else []
    notices += [Notice(text=note) for note in found.unused] if root.is_dir() else []
    # Without the address of the folder: the files of a dataset do not depend on where its recordings are.
    named = [
        Notice(text=one.text.replace(f"{root}/", "").replace(f"{root}: ", ""), recordings=one.recordings, is_warning=False)
        for one in notices
    ]
    return texts, named, found.removed


def _describe_removed(removed: Mapping[str, RemovedKind]) -> str:
    return f"left out of the texts, since nobody speaks it: {format_removals(removed)}"


def _note_unknown_languages(codes: Mapping[str, str | None]) -> list[Notice]:
    """Return a note on the languages that are not known. `codes`: recording → its language as a table names it."""
    unknown = {name: code for name, code in codes.items() if code and manifest.parse_locale(code) == manifest.AUTO != code.strip().lower()}
    if not unknown:
        return []
    counts = Counter(unknown.values())
    shown = ", ".join(f"{code!r} ({format_count(count, 'recording')})" for code, count in counts.most_common(SHOWN))
    note = (
        f"the transcripts name unknown languages: {shown}{', …' * (len(counts) > SHOWN)}; the rows have the language {manifest.AUTO!r}; "
        "if all are in one language, give it: --language NAME"
    )
    return [Notice(text=note, recordings=tuple(unknown), is_warning=False)]


def _make_job(options: VoiceOptions, checks: ChosenChecks) -> Job:
    language = manifest.parse_language(options.language) if options.language else manifest.AUTO
    language_or_none = None if language == manifest.AUTO else language
    whisper_settings = whisper_engine.describe_settings(options.whisper, language_or_none, beams=options.beams) if options.whisper else None
    encoder, scorer = _open_encoder(options), dnsmos.find_scorer()
    lengths = Lengths(options.target, options.shortest, options.longest)
    aligner = open_aligner("--align", checks.align) if checks.align and checks.align != NO_MODEL else None
    check_settings = (
        whisper_engine.describe_settings(checks.check_with, language_or_none, CHECK_OPTION, options.beams) if checks.check_with else None
    )
    count = _read_voice_count(options)
    return Job(
        out=options.out,
        lengths=lengths,
        language=language_or_none,
        whisper_settings=whisper_settings,
        encoder=encoder,
        scorer=scorer,
        aligner=aligner,
        check_settings=check_settings,
        most_voices=MOST_VOICES if count is None else count.most,
        aligns_clips_alone=checks.is_automatic,
    )


def _open_encoder(options: VoiceOptions) -> SpeakerEncoder | None:
    if options.speaker_check is None:
        encoder: SpeakerEncoder | None = find_installed_encoder()
    elif options.speaker_check == "none":
        encoder = None
    else:
        encoder = open_voice_encoder("--speaker-check", options.speaker_check)
    if encoder is None and options.diarize:
        raise UserError(f"--diarize needs a speaker encoder: run `{resemblyzer_encoder.INSTALL}`, or give --speaker-check MODEL")
    return encoder


def _list_unchecked(options: VoiceOptions, job: Job) -> list[Notice]:
    """Return notices on the checks that were not made, and on what they need."""
    texts = []
    if job.encoder is None and options.speaker_check != "none":
        texts.append(f"speaker not checked: run `{resemblyzer_encoder.INSTALL}` (16 MB), or give --speaker-check MODEL")
    if job.scorer is None:
        texts.append(f"sound quality not rated: run `{dnsmos.INSTALL}` (9 MB)")
    return [Notice(text=text, is_warning=False) for text in texts]


def _describe_settings(options: VoiceOptions, job: Job, standard: SelectionCriteria) -> dict[str, object]:
    return {
        "text": job.whisper_settings or "transcripts",
        "speaker_check": job.encoder.digest if job.encoder else "speaker not checked",
        "sound_quality": job.scorer.digest if job.scorer else "sound quality not rated",
        "diarize": options.diarize,
        "speakers": options.speakers,
        "aligner": job.aligner.digest if job.aligner else None,
        "check": job.check_settings,
        "lengths": vars(job.lengths),
        "channels": options.channels,
        "preset": options.preset,
        "decisions": len(standard.decisions),
        "val_share": options.val_share,
    }


def _print_ignored(options: VoiceOptions, sources: list[RecordingSource]) -> None:
    """Report unused files: the user may have expected one of them to be read as a recording or a transcript; and unusual recordings."""
    unusual = [source.name for source in sources if source.path.suffix.lower() not in SOUND_ENDINGS and not source.problem]
    if unusual:
        print_line(f"read as recordings by their content: {', '.join([*unusual[:SHOWN], *['…'] * (len(unusual) > SHOWN)])}")
    others = Counter[str]() if options.root.is_file() else count_ignored(options.root, options.out, sources)
    for name in (
        (*user_transcripts.SUFFIXES, *named_column_tables.ENDINGS, transcript_list_parsers.GPT_SOVITS) if options.transcripts else ()
    ):
        del others[f".{name.rpartition('.')[2]}"]
    if others:
        print_line(f"ignored, not recordings: {format_counts(others)}")
    if others[".parquet"]:
        print_line("a Parquet file with sound, beside recordings, is read if it is given itself: overtone voice FILE.parquet …")


def _describe_stale_decisions(stale: list[str]) -> list[Notice]:
    text = f"{len(stale)} review decisions refer to clips that no longer exist or have no text: {', '.join(stale[:3])}"
    return [Notice(text=text)] if stale else []


def _describe_people_on_channels(names: Sequence[str]) -> list[Notice]:
    text = (
        "not used: two people on two channels, of whom the mean would make one voice; give --channels split for a speaker of each, left or "
        "right for one of them, or mix"
    )
    return [Notice(text=text, recordings=tuple(names))] if names else []


def _require_clips(summary: duration_accounting.Summary, out: Path) -> None:
    """Raises `UserError` if no clip was kept."""
    reasons = sorted(summary.rejected_by_reason, key=lambda reason: -summary.rejected_by_reason[reason])
    if not summary.clips:
        raise UserError(f"no clip was kept; most frequent reasons: {', '.join(reasons[:3]) or 'none'}; see {out / manifest.REJECTS}")
