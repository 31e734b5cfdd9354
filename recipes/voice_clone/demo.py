"""make demo: raw recordings of a voice that is new to its base model in, that voice saying what it never recorded out, on a CPU.

The commands are those of the README. The models are small and know the words of one grammar (`studio/README.md`); everything else is real.
What came out is measured against the same voice's own recordings and against the base before training: runs/demo/summary.json.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from finetune import files, shipped
from finetune.where import configs_folder

HERE = Path(__file__).resolve().parent
NEW_VOICE = HERE / "studio" / "new_voice"
SPEAKER = "rms"
WHISPER, CODEC, BASE = "whisper-demo-en", "codec-demo", "qwen3-tts-demo-base"
TEXTS = (
    "Sophie always remembers seven windows.",
    "The dark sailor protects the old bottle near the school.",
    "Where is the quiet captain?",
)
"""Held out by the grammar: no training of any of the models has seen them."""


def main() -> int:
    """Run the chain into runs/demo, which is made anew, and print what came of it; 1 if that is not what the README says."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that fight for two cores make a tiny step ten times slower
    home = Path("runs/demo")
    if home.exists():
        files.discard(home)
    files.write_text(home / "lines.txt", "\n".join(TEXTS) + "\n")
    seconds: dict[str, float] = {}
    for stage, command in commands(home).items():
        began = time.monotonic()
        print(f"\n$ {shlex.join(shown(command))}", flush=True)
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            print(f"error: the demo stopped at `{stage}` (exit code {done.returncode}); what it said stands above", file=sys.stderr)
            return done.returncode
        seconds[stage] = round(time.monotonic() - began, 1)
    return finish(home, seconds)


def commands(home: Path) -> dict[str, list[str]]:
    """What a user runs: voice, codes, train, export, generate, eval-voice."""
    python, data, export = [sys.executable, "-m"], home / "data", home / "export"
    launcher = shutil.which("accelerate", path=str(Path(sys.executable).parent)) or "accelerate"
    processes = ["--num_processes", "2", "--gpu_ids=-1,-1"]  # on the CPU, which any machine has: two processes would need two GPUs
    launch = [launcher, "launch", "--config_file", configs_folder() / "fsdp2.yaml", *processes]
    script = ["finetune/train.py"] if Path("finetune/train.py").is_file() else ["-m", "finetune.train"]  # a clone, or an installed copy
    rows = ["--data.train", data / "train.jsonl", "--data.val", data / "val.jsonl", "--run.dir", home / "run"]
    heard = ["--whisper", WHISPER, "--speaker-from", "folder", "--language", "en", "--target", "4"]
    said = ["--text-file", home / "lines.txt", "--max-seconds", "12", "--out", home / "spoken"]
    stages: dict[str, list[Any]] = {
        "voice": [*python, "data_prep", "voice", NEW_VOICE / "recordings", "--out", data, *heard],
        "codes": [*python, "data_prep", "codes", data, "--model", CODEC],
        "train": [*launch, *script, "--recipe", "voice_clone", "--config", HERE / "demo.yaml", *rows],
        "export": [*python, "finetune", "export", home / "run", "--to", export],
        "generate": [*python, "finetune", "generate", "--model", export, "--speaker", SPEAKER, *said],
        "evaluate": [
            *(*python, "finetune", "eval-voice", "--model", export, "--data", NEW_VOICE / "held_out.jsonl"),
            *("--base", BASE, "--asr", WHISPER, "--max-seconds", "12", "--out", home / "evaluation"),
        ],
    }
    return {stage: [str(word) for word in command] for stage, command in stages.items()}


def shown(command: list[str]) -> list[str]:
    """The command as a person would type it."""
    return [Path(command[0]).name, *command[1:]]


def finish(home: Path, seconds: dict[str, float]) -> int:
    """Measure, tell, and say whether it is what was promised."""
    from . import demo_clips, demo_outcome, demo_picture
    from .demo_clips import THROUGH_CODEC
    from .eval_systems import RECORDINGS

    began = time.monotonic()
    spoken = demo_clips.read(home / "evaluation", NEW_VOICE)
    coded = demo_clips.through_codec(spoken[RECORDINGS], CODEC, WHISPER, home / "through_codec")
    outcome = demo_outcome.measure(home, NEW_VOICE, SPEAKER, {RECORDINGS: spoken[RECORDINGS], THROUGH_CODEC: coded, **spoken})
    files.write_bytes(home / "spectrograms.png", demo_picture.picture(spoken))
    seconds = {**seconds, "measure": round(time.monotonic() - began, 1)}
    seconds["all"] = round(sum(seconds.values()), 1)
    warnings = [shipped.WARNING.format(name=name) for name in (WHISPER, CODEC, BASE)]
    files.write_json(home / "summary.json", {"demo_models": warnings, "seconds": seconds, **outcome.record()})
    print(f"\n{outcome.table()}\n\n{seconds['all']:.0f} s in all. To hear, and to look at:")
    for about, place in places(home).items():
        print(f"  {about:<18}{place}")
    broken = outcome.broken()
    for complaint in broken:
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if broken else 0


def places(home: Path) -> dict[str, Path]:
    """What there is to hear and to see."""
    return {
        "new sentences": home / "spoken",
        "the evaluation": home / "evaluation" / "evaluation.html",
        "before and after": home / "spectrograms.png",
        "the data": home / "data" / "summary.json",
        "the loss curve": home / "run" / "loss.png",
        "all figures": home / "summary.json",
    }


if __name__ == "__main__":
    sys.exit(main())
