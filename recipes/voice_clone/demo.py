"""make demo: the five commands of the README on the embedded sample, with a tiny random model, on a CPU, in a few minutes.

What it shows: that every part runs, and that what was trained comes out again. What it does not: a voice. The tiny model has a random
speech tokenizer, so its wav is noise with the right length; the figures are in runs/demo/summary.json.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from finetune import files
from finetune.events import read_log
from finetune.where import configs_folder

HERE = Path(__file__).resolve().parent
PROBED_CLIPS = 4
"""Training clips that are spoken again to count regenerated codes; each takes seconds."""
TEXT = "Hello, this is my voice."


def main() -> int:
    """Run the chain into runs/demo, which is made anew, and print where the results lie."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that fight for two cores make a tiny step ten times slower
    home = Path("runs/demo")
    if home.exists():
        files.discard(home)
    seconds: dict[str, float] = {}
    for stage, command in commands(home).items():
        began = time.monotonic()
        print(f"\n$ {shlex.join(shown(command))}", flush=True)
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            print(f"error: the demo stopped at `{stage}` (exit code {done.returncode}); what it said stands above", file=sys.stderr)
            return done.returncode
        seconds[stage] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    share = regenerated_share(home)
    seconds["probe"] = round(time.monotonic() - began, 1)
    figures = summarise(home, seconds, share)
    files.write_json(home / "summary.json", figures)
    report(home, figures)
    return 0


def commands(home: Path) -> dict[str, list[str]]:
    """A tiny base, then what a user runs: voice, codes, train, export, generate."""
    python, data, base = sys.executable, home / "data", home / "base"
    launcher = shutil.which("accelerate", path=str(Path(python).parent)) or "accelerate"
    launch = [launcher, "launch", "--config_file", str(configs_folder() / "fsdp2.yaml"), "--num_processes", "2"]
    script = ["finetune/train.py"] if Path("finetune/train.py").is_file() else ["-m", "finetune.train"]  # a clone, or an installed copy
    told = {"--config": HERE / "debug.yaml", "--model.source": base, "--data.train": data / "train.jsonl", "--data.val": data / "val.jsonl"}
    options = [str(word) for pair in {**told, "--run.dir": home / "run"}.items() for word in pair]
    return {
        "base": [python, "-m", "recipes.voice_clone.tiny", str(base), "--size", "demo"],
        "voice": [
            *(python, "-m", "data_prep", "voice", str(HERE / "sample"), "--out", str(data)),
            *("--transcripts", "--speaker-from", "folder", "--language", "en"),
        ],
        "codes": [python, "-m", "data_prep", "codes", str(data), "--model", str(base)],
        "train": [*launch, *script, "--recipe", "voice_clone", *options],
        "export": [python, "-m", "finetune", "export", str(home / "run"), "--to", str(home / "export")],
        "generate": [
            *(python, "-m", "finetune", "generate", "--model", str(home / "export"), "--speaker", "slt", "--text", TEXT),
            *("--out", str(home / "hello.wav"), "--max-seconds", "6"),
        ],
    }


def shown(command: list[str]) -> list[str]:
    """The command as a person would type it."""
    return [Path(command[0]).name, *command[1:]]


def regenerated_share(home: Path) -> float:
    """Share of the codes of some training clips that the exported model speaks again, place by place, decoding greedily."""
    from . import stock

    rows = [json.loads(line) for line in (home / "data" / "train.jsonl").read_text().splitlines()]
    model = stock.load(home / "export")
    right = total = 0
    for row in rows[:: max(1, len(rows) // PROBED_CLIPS)][:PROBED_CLIPS]:
        expected = row["audio_codes"]
        found = stock.greedy_codes(model, row["text"], row["speaker"], row["language"], len(expected) + 10).tolist()
        right += sum(a == b for one, other in zip(expected, found, strict=False) for a, b in zip(one, other, strict=True))
        total += sum(len(frame) for frame in expected)
    return round(right / total, 4)


def summarise(home: Path, seconds: dict[str, float], share: float) -> dict[str, Any]:
    import soundfile

    steps = [event for event in read_log(home / "run" / "log.jsonl") if event["event"] == "step"]
    data = json.loads((home / "data" / "summary.json").read_text())
    return {
        "seconds": {**seconds, "all": round(sum(seconds.values()), 1)},
        "clips": {"kept": data["clips"], "rejected": data["rejected"], "rejected_by_reason": data["rejected_by_reason"]},
        "loss": {"first": steps[0]["loss"], "last": steps[-1]["loss"]},
        "codes_regenerated": share,
        "wav": {"path": str(home / "hello.wav"), "seconds": round(soundfile.info(home / "hello.wav").duration, 2)},
    }


def report(home: Path, figures: dict[str, Any]) -> None:
    """What there is to look at, and what it is worth."""
    loss = figures["loss"]
    print(
        f"\nloss {loss['first']:.2f} → {loss['last']:.2f}; {figures['codes_regenerated']:.1%} of the probed training codes come out again; "
        f"{figures['seconds']['all']:.0f} s in all\n"
        f"  the wav           {home / 'hello.wav'} (noise: the tiny model's speech tokenizer is random)\n"
        f"  the data          {home / 'data' / 'summary.json'}\n"
        f"  the loss curve    {home / 'run' / 'loss.png'}\n"
        f"  all figures       {home / 'summary.json'}"
    )


if __name__ == "__main__":
    sys.exit(main())
