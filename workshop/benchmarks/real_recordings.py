"""Real speech with exact texts: what `overtone voice` keeps of it, the errors in that, and right clips that each check rejects.

The recordings are joined from Debian's telephone prompts, one speaker: apt-get install asterisk-core-sounds-en
asterisk-core-sounds-en-g722. Whisper is tiny.en, which tests/real/build_models.py builds in OVERTONE_REAL_MODELS or .real_models. Without
either, nothing is measured and the table stays. A full run takes about ten minutes of one core.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import soundfile
import soxr
import torch

from overtone.data_prep.cli import voice
from overtone.data_prep.segmentation.clip_segmentation import CLOSING_MARKS, SENTENCE_ENDS
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from tests.data_prep.telephone_prompts import RATE, Cue, PromptRecording, format_subtitles, has_prompts, join_prompts, list_prompts
from tests.real.build_models import ROOT, WHISPER, WHISPER_CT2, UnavailableError, build_models
from tests.real.word_error_counts import count_word_errors, find_kept_prompts, read_clips
from workshop.benchmarks import _table

if TYPE_CHECKING:
    from faster_whisper.transcribe import Segment, TranscriptionInfo

RECORDINGS, PROMPTS, QUICK_PROMPTS = 2, 45, 12
PAUSES = (0.3, 1.4)
LONG_PAUSES = (1.0, 2.0, 3.0)
"""Seconds of all pauses of one recording."""
TELEPHONE_RATE = 8000
ALWAYS = ("--language", "en", "--workers", "0", "--device", "cpu", "--speaker", "allison", "--val-share", "0")
EDGE_SECONDS = 0.3
"""A clip that ends nearer to the end of a prompt holds all of it."""
REFERENCES = ("whisper.transcribe", "faster-whisper", "its batched pipeline")
COLUMNS = (
    "way",
    "pauses",
    "kept words",
    "errors in them",
    *(f"{name} on the same words" for name in REFERENCES),
    "clips",
    "end inside a prompt",
    "of these without a mark",
    "right clips rejected for",
)
NOTE = (
    "Prompts of 1 to 12 s on which no threshold was chosen: {recordings} recordings of {prompts} prompts, one for each length of long "
    "pauses. Kept words: of the prompts that are completely in clips, except for pauses. Errors: substitutions, deletions and insertions "
    "after Whisper's normalization. whisper.transcribe has its defaults, faster-whisper five beams, its pipeline batches of 16 too. Exact "
    "subtitles: each prompt is a cue, so each clip is right. Right clips rejected, for each reason: clips whose text has no error; a clip "
    "with two reasons counts twice. `text_contradicted` is of --check-with, `text_not_spoken` of --align. Without a mark: the text of the "
    "clip does not end with the mark of a sentence."
)

Row = dict[str, object]


class Way(NamedTuple):
    """Options of `overtone voice`, and the recordings that they are tried on."""

    name: str
    options: tuple[str, ...]
    pause: float | None = None
    """Seconds of each pause; None: of random length."""
    rate: int = RATE


class Found(NamedTuple):
    """What a way makes of the recordings: cells of the table."""

    kept: int
    spoken: int
    errors: int
    others: tuple[int, ...]
    """Errors of each of `REFERENCES` in the kept words; () where they are not compared."""
    clips: int
    inside: int
    unmarked: int
    rejected: dict[str, int]


def main() -> None:
    flags = _table.read_flags(__doc__)
    models = Path(os.environ.get("OVERTONE_REAL_MODELS") or ROOT / ".real_models")
    if not has_prompts("en"):
        print_line(f"{_table.SKIPPED}needs the telephone prompts: see the first lines of workshop/benchmarks/real_recordings.py")
        return
    try:
        build_models(models)
    except UnavailableError as error:
        print_line(f"{_table.SKIPPED}{error}")
        return
    torch.set_num_threads(1)
    recordings, prompts = (1, QUICK_PROMPTS) if flags.quick else (RECORDINGS, PROMPTS)
    record, rows = dict[str, Row](), list[list[str]]()
    usual = make_talks(None, recordings, prompts)
    texts = transcribe_by_others(models, usual)
    for way in list_ways(models, quick=flags.quick):
        talks = make_talks(way.pause, 1, prompts) if way.pause else usual
        with tempfile.TemporaryDirectory() as folder:
            found = measure_way(way, talks, texts if talks is usual and "--whisper" in way.options else (), Path(folder))
        print_line(f"{way.name}: {found}")
        record[f"{way.name}, {describe_pause(way)}"] = found._asdict()
        rows.append(make_row(way, found))
    _table.publish("real_recordings", flags, COLUMNS, rows, NOTE.format(recordings=recordings, prompts=prompts))
    files.write_text(flags.to / "real_recordings.json", json.dumps(record, indent=1) + "\n")


def list_ways(models: Path, *, quick: bool) -> list[Way]:
    own, faster = ("--whisper", str(models / WHISPER)), ("--whisper", f"faster-whisper:{models / WHISPER_CT2}")
    exact = ("--transcripts", "--align", "none")
    ways = [
        Way("openai-whisper", own),
        Way("faster-whisper", faster),
        *(Way("faster-whisper", faster, pause) for pause in LONG_PAUSES),
        Way("exact subtitles", exact),
        Way("exact subtitles, --check-with", (*exact, "--check-with", faster[1])),
        Way("exact subtitles, --align pocketsphinx", ("--transcripts", "--align", "pocketsphinx")),
        Way("the same at 8 kHz", ("--transcripts", "--align", "pocketsphinx"), rate=TELEPHONE_RATE),
    ]
    return [ways[1], ways[5], ways[6]] if quick else ways


def make_talks(pause: float | None, recordings: int, prompts: int) -> dict[str, PromptRecording]:
    """By file name."""
    chosen = [one for one in list_prompts("en", "reported") if 1.0 <= one.seconds <= 12.0]
    pauses = PAUSES if pause is None else (pause, pause)
    return {f"talk{at}.wav": join_prompts(chosen[at * prompts : (at + 1) * prompts], at, pauses) for at in range(recordings)}


def transcribe_by_others(models: Path, talks: dict[str, PromptRecording]) -> tuple[dict[str, str], ...]:
    """The texts of each of `REFERENCES`, by file name."""
    import faster_whisper
    import whisper

    stock = whisper.load_model(str(models / WHISPER), device="cpu")
    faster = faster_whisper.WhisperModel(str(models / WHISPER_CT2), device="cpu", cpu_threads=1)
    batched = faster_whisper.BatchedInferencePipeline(faster)

    def join(found: tuple[Iterable[Segment], TranscriptionInfo]) -> str:
        return " ".join(segment.text for segment in found[0])

    ways: tuple[Callable[[PromptRecording], str], ...] = (
        lambda talk: str(whisper.transcribe(stock, talk.samples, language="en", fp16=False)["text"]),
        lambda talk: join(faster.transcribe(talk.samples, language="en", beam_size=5)),
        lambda talk: join(batched.transcribe(talk.samples, language="en", beam_size=5, batch_size=16)),
    )
    return tuple({name: transcribe(talk) for name, talk in talks.items()} for transcribe in ways)


def measure_way(way: Way, talks: dict[str, PromptRecording], heard: Sequence[dict[str, str]], folder: Path) -> Found:
    (folder / "in").mkdir()
    for name, talk in talks.items():
        samples = talk.samples if way.rate == RATE else soxr.resample(talk.samples, RATE, way.rate)
        soundfile.write(folder / "in" / name, samples, way.rate)
        if "--transcripts" in way.options:
            (folder / "in" / name).with_suffix(".srt").write_text(format_subtitles(talk.cues), encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = voice.main([str(folder / "in"), "--out", str(folder / "out"), *way.options, *ALWAYS])
    if code:
        raise SystemExit(printed.getvalue())
    parts = [count(talk.cues, *select(folder / "out", name), [of_all[name] for of_all in heard]) for name, talk in talks.items()]
    rejected = collections.Counter[str]()
    for part in parts:
        rejected.update(part.rejected)
    sums = {field: sum(getattr(part, field) for part in parts) for field in ("kept", "spoken", "errors", "clips", "inside", "unmarked")}
    others = tuple(map(sum, zip(*(part.others for part in parts), strict=True)))
    return Found(**sums, others=others, rejected=dict(rejected))


def select(out: Path, name: str) -> tuple[list[Row], list[Row]]:
    """The kept and the rejected clips of a recording."""
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in read_clips(out) if row["source"] == name], [row for row in rejects if row["source"] == name]


def count(cues: Sequence[Cue], clips: Sequence[Row], rejects: Sequence[Row], others: Sequence[str]) -> Found:
    """The figures of one recording. `others`: the texts of `REFERENCES`."""
    kept, everything = find_kept_prompts(cues, clips), range(len(cues))
    own = count_word_errors(cues, " ".join(str(clip["text"]) for clip in clips), kept)
    inside = [clip for clip in clips if ends_inside(float(str(clip["end"])), cues)]
    unmarked = [clip for clip in inside if not str(clip["text"]).rstrip(CLOSING_MARKS).endswith(SENTENCE_ENDS)]
    right = [row for row in rejects if is_right(row, cues)]
    reasons = [reason for row in right for reason in row["reasons"]]  # type: ignore[attr-defined]
    return Found(
        kept=own.words,
        spoken=count_word_errors(cues, "", everything).words,
        errors=own.errors,
        others=tuple(count_word_errors(cues, text, kept).errors for text in others),
        clips=len(clips),
        inside=len(inside),
        unmarked=len(unmarked),
        rejected=dict(collections.Counter(reasons)),
    )


def ends_inside(seconds: float, cues: Collection[Cue]) -> bool:
    return any(cue.start + EDGE_SECONDS < seconds < cue.end - EDGE_SECONDS for cue in cues)


def is_right(row: Row, cues: Sequence[Cue]) -> bool:
    """Return whether the text of a rejected clip is that of the prompts in it."""
    start, end = float(str(row["start"])), float(str(row["end"]))
    inside = [cue for cue in cues if min(cue.end, end) - max(cue.start, start) > 0.5 * (cue.end - cue.start)]
    return bool(row.get("text")) and bool(inside) and count_word_errors(inside, str(row["text"]), range(len(inside))).errors == 0


def describe_pause(way: Way) -> str:
    return f"{PAUSES[0]:g} to {PAUSES[1]:g} s" if way.pause is None else f"{way.pause:g} s"


def make_row(way: Way, found: Found) -> list[str]:
    others = [f"{errors / found.kept:.1%}" for errors in found.others] or ["–"] * len(REFERENCES)
    shares = [f"{found.kept / found.spoken:.1%}", f"{found.errors / found.kept:.1%} of {found.kept}"]
    rejected = ", ".join(f"{reason} {number}" for reason, number in sorted(found.rejected.items())) or "–"
    return [way.name, describe_pause(way), *shares, *others, str(found.clips), str(found.inside), str(found.unmarked), rejected]


if __name__ == "__main__":
    main()
