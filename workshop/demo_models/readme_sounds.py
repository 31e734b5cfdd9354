"""Write the sounds of README.md: one of the demo's reported sentences, before and after training, and what a released Whisper wrote.

    python -m workshop.demo_models.readme_sounds [runs/demo] [--asr tiny.en]

Chooses the sentence whose WER after training is the median, by that Whisper: neither the best nor the worst. The sentences are sorted by
WER, and those with the same WER by their place in held_out.jsonl. Of an even number, the second of the two in the middle is chosen, which
is not the better one. Writes docs/demo_before.ogg, docs/demo_after.ogg, and the part of README.md that links them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.transcription import demo_whisper
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.storage.synthetic_audio_mark import read_synthetic_mark
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from overtone.recipes.speech.serving.audio_encoding import make_encoder
from overtone.recipes.voice_clone.demo import comparison_clips, demo_metrics
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER, BEFORE, ComparisonClip
from overtone.recipes.voice_clone.demo.pipeline import find_new_voice
from workshop.demo_models.measure_demo import require_finished

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- sounds: written by workshop/demo_models/readme_sounds.py -->", "<!-- end of sounds -->"
SOUNDS = {BEFORE: "docs/demo_before.ogg", AFTER: "docs/demo_after.ogg"}
ROWS = {RECORDINGS: "recording", BEFORE: "base, which clones a clip", AFTER: "after training"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="readme_sounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("demo", nargs="?", type=Path, default=Path("runs/demo"), metavar="FOLDER", help="(default runs/demo)")
    parser.add_argument("--asr", default="tiny.en", metavar="MODEL", help="released Whisper, by name or .pt file (default %(default)s)")
    options = parser.parse_args(argv)
    require_finished(options.demo)
    if demo_whisper.is_demo_name(options.asr):
        raise UserError(f"--asr {options.asr}: it was trained on the demo's voices; give a released Whisper, such as tiny.en")
    intelligibility.check_whisper(options.asr)
    judge = intelligibility.load_whisper(options.asr)
    evaluated = comparison_clips.read_clips(options.demo / "evaluation", find_new_voice())
    spoken = {AFTER: demo_metrics.transcribe_again(evaluated[AFTER], judge)}
    chosen = choose_median(spoken[AFTER])
    clips = {title: demo_metrics.transcribe_again([evaluated[title][chosen]], judge)[0] for title in ROWS}
    for title, name in SOUNDS.items():
        files.write_bytes(ROOT / name, encode_opus(clips[title].path))
    readme = ROOT / "README.md"
    files.write_text(readme, replace_sounds(readme.read_text(encoding="utf-8"), render_sounds(clips, Path(options.asr).stem)))
    wer = demo_metrics.compute_word_error_rate([clips[AFTER]], 0)
    print_line(f"{clips[AFTER].path}: WER {wer:.1%} by {Path(options.asr).name}, the median of {len(evaluated[AFTER])} -> {readme}")
    return 0


def choose_median(clips: Sequence[ComparisonClip]) -> int:
    """The place of the clip with the median WER, by the rule of this module."""
    wers = [demo_metrics.compute_word_error_rate([clip], 0) for clip in clips]
    return sorted(range(len(clips)), key=lambda place: (wers[place], place))[len(clips) // 2]


def encode_opus(path: Path) -> bytes:
    """A clip as Opus in Ogg, with its mark of synthetic speech. Raises `UserError` for a clip without one."""
    mark = read_synthetic_mark(path)
    if mark is None:
        raise UserError(f"{path} is not marked as synthetic speech; run the demo again: make demo")
    encoder = make_encoder("opus", MASTER_RATE, mark)
    return encoder.feed(read_clip(path)) + encoder.finish()


def render_sounds(clips: Mapping[str, ComparisonClip], judge: str) -> str:
    """The part of README.md: the text, then a row for each sound with its transcript."""
    recording = clips[RECORDINGS].path.resolve().relative_to(ROOT).as_posix()
    wers = {title: 100 * demo_metrics.compute_word_error_rate([clip], 0) for title, clip in clips.items()}
    rows = [
        f"| [{row}]({SOUNDS.get(title, recording)}) | {mark_errors(clips[title])} | {wers[title]:.0f} % |" for title, row in ROWS.items()
    ]
    head = f"| to listen to | what Whisper {judge} wrote: **wrong** and ~~missing~~ words | WER |"
    text = f'All three say: "{clips[RECORDINGS].text}"'
    return "\n".join([text, "", head, "| --- | --- | --- |", *rows])


def mark_errors(clip: ComparisonClip) -> str:
    """The transcript in Markdown: wrong words are bold, missing ones struck out."""
    marked = []
    for word in intelligibility.align_words(clip.text, clip.heard, "english"):
        wrong = f"**{word.transcribed}**" if word.transcribed else f"~~{word.expected}~~"
        marked.append(wrong if word.wrong else word.transcribed)
    return " ".join(marked)


def replace_sounds(readme: str, sounds: str) -> str:
    """README.md with another part between the marks. Raises `UserError` if they are missing."""
    before, start, rest = readme.partition(f"{START}\n")
    _, end, after = rest.partition(END)
    if not start or not end:
        raise UserError(f"README.md: {START} … {END}: put these two lines where the sounds belong")
    return f"{before}{start}{sounds}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
