"""`make demo`: from raw recordings of a voice that is new to the base model to new sentences in that voice, on a CPU.

It runs the commands of the README, and exports a part of the update. The models are small and know the words of one grammar
(`workshop/demo_models/README.md`); everything else is real. The result is compared with recordings of the voice and with the base before
training: runs/demo/summary.json.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overtone.data_prep.transcription import whisper_engine
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes import demo_runner
from overtone.recipes.speech.evaluation import intelligibility

HERE = Path(__file__).resolve().parent
SPEAKER = "rms"
WHISPER, CODEC, BASE = "whisper-demo-en", "codec-demo", "qwen3-tts-demo-base"
TIME_SHIFTS = 7
"""Copies of each training clip with other codes of the same speech: nine minutes alone are memorized."""
BATCH_SECONDS = 15
"""Audio to encode at a time: on a CPU, larger batches do not fit into its caches."""
STRENGTH = 0.6
"""Share of the update that is exported. With all of it, the WER by Whisper tiny.en is 1.5 times as high, and the similarity 0.01 higher
(workshop/lab_book/demos.md)."""
TEXTS = (
    "Sophie always remembers seven windows.",
    "The dark sailor protects the old bottle near the school.",
    "Where is the quiet captain?",
)
"""Held-out sentences of the grammar: no model was trained on them."""
BUILT_WHISPER = Path(".real_models/whisper/tiny.en.pt")
LINES = "lines.txt"
"""File in the demo's folder with `TEXTS`."""


def main(argv: Sequence[str] = ()) -> int:
    """Empty runs/demo, run all stages there and print the results. Returns 1 if they do not meet the promises of the README."""
    parser = argparse.ArgumentParser(prog="python -m overtone.recipes.voice_clone.demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default %(default)s)")
    parser.add_argument(
        "--asr",
        default=find_released_whisper(),
        metavar="MODEL",
        help="released Whisper that transcribes the results, besides the demo's own: its name or .pt file; '' for none (default: tiny.en, "
        "if it is at hand)",
    )
    options = parser.parse_args(argv)
    if options.asr:
        intelligibility.check_whisper(options.asr)
    home = Path("runs/demo")
    return demo_runner.run_demo(
        home, build_commands(home, options.seed, options.asr), functools.partial(finish, options.asr), {LINES: "\n".join(TEXTS) + "\n"}
    )


def find_released_whisper() -> str:
    """tiny.en where it needs no download: by its name in Whisper's cache, or as the file that `make test-real` builds; "" if in neither."""
    if whisper_engine.is_cached("tiny.en"):
        return "tiny.en"
    return str(BUILT_WHISPER) if BUILT_WHISPER.is_file() else ""


def build_commands(home: Path, seed: int = 0, asr: str = "") -> dict[str, list[str]]:
    """Stage → command, as a user runs them: voice, codes, train, export, generate, eval-voice. `seed`: of the training. `asr`: the released
    Whisper of the evaluation; empty for the demo's own.

    Raises `UserError` if the demo's recordings are not installed."""
    new_voice = find_new_voice()
    overtone, data, export = [sys.executable, "-m", "overtone"], home / "data", home / "export"
    on_cpu = ["--gpu_ids=-1,-1"]  # runs on any machine; on GPUs, two processes would need two of them
    rows = ["--data.train", data / "train.shifted.jsonl", "--data.val", data / "val.jsonl"]
    training = ["--recipe", "voice_clone", "--config", HERE / "demo.yaml", *rows, "--run.dir", home / "run", "--run.seed", seed]
    transcription = ["--whisper", WHISPER, "--speaker-from", "folder", "--language", "en", "--target", "4"]
    speech = ["--text-file", home / LINES, "--max-seconds", "12", "--out", home / "spoken"]
    stages: dict[str, list[Any]] = {
        "voice": [*overtone, "voice", new_voice / "recordings", "--out", data, *transcription],
        "codes": [*overtone, "codes", data, "--model", CODEC, "--time-shifts", TIME_SHIFTS, "--batch-seconds", BATCH_SECONDS],
        "train": demo_runner.training_command("fsdp2.yaml", on_cpu, training),
        "export": [*overtone, "export", home / "run", "--to", export, "--strength", STRENGTH],
        "generate": [*overtone, "generate", "--model", export, "--speaker", SPEAKER, *speech],
        "evaluate": [
            *(*overtone, "eval-voice", "--model", export, "--data", new_voice / "held_out.jsonl"),
            *("--base", BASE, "--asr", asr or WHISPER, "--codec", CODEC, "--max-seconds", "12", "--out", home / "evaluation"),
        ],
    }
    return {stage: [str(word) for word in command] for stage, command in stages.items()}


def find_new_voice() -> Path:
    """Folder of the demo's recordings. Raises `UserError` if they are not installed."""
    return demo_models.data_folder() / "new_voice"


def finish(asr: str, home: Path, seconds: demo_runner.Seconds) -> int:
    """Compute the results, write summary.json and print them. Returns 1 if they do not meet the promises of the README."""
    # Imported here, so that this process does not hold the evaluation packages in memory while the stages run.
    from . import comparison_clips, demo_metrics, spectrograms

    seconds, new_voice = dict(seconds), find_new_voice()
    with demo_runner.time_stage(seconds, "measure"):
        clips = comparison_clips.read_clips(home / "evaluation", new_voice)
        outcome = demo_metrics.measure_demo(home, new_voice, SPEAKER, clips, asr)
        files.write_bytes(home / "spectrograms.png", spectrograms.draw_spectrograms(clips, Path(asr or WHISPER).name))
    seconds = demo_runner.add_total(seconds)
    warnings = [demo_models.WARNING.format(name=name) for name in (WHISPER, CODEC, BASE)]
    files.write_json(home / demo_runner.SUMMARY, {"demo_models": warnings, "seconds": seconds, **outcome.to_json()})
    text = f"{outcome.format_table()}\n\n{seconds['all']:.0f} s in total. Results to listen to and to look at:"
    demo_runner.print_result(text, list_outputs(home))
    failures = outcome.list_failures()
    for failure in failures:
        print_diagnostic(f"error: {failure}")
    return 1 if failures else 0


def list_outputs(home: Path) -> dict[str, Path]:
    """Return what the demo produced: description → path."""
    return {
        "new sentences": home / "spoken",
        "all side by side": home / "evaluation" / "evaluation.html",
        "before and after": home / "spectrograms.png",
        "the data": home / "data" / "summary.json",
        "the loss curve": home / "run" / "loss.png",
        "all figures": home / demo_runner.SUMMARY,
    }
