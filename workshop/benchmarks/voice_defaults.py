"""How well the defaults of voice_clone train a new voice from 2, 7 and 30 minutes of speech, beside a grid of epochs and learning rates.

The voice is piper's joe, which neither the demo base nor its codec knows; the judges are released: Whisper tiny.en and Resemblyzer.

Needs piper, a program (`pip install piper-tts` in an environment of its own; PIPER names it if it is not on the PATH), and the models of
tests/real/build_models.py, in OVERTONE_REAL_MODELS or .real_models. Each result is a line of results/voice_defaults.jsonl and is not
measured again, so the benchmark can be interrupted. All runs take about two hours of one core.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.storage import files
from overtone.recipes.voice_clone.demo.pipeline import BASE, CODEC
from overtone.recipes.voice_clone.demo.pipeline import HERE as DEMO
from tests.real.build_models import VOICE, WHISPER
from workshop.benchmarks import _table
from workshop.demo_models.corpus import grammar, make_new_voice

ROOT = Path(__file__).resolve().parents[2]
OVERTONE = ROOT / ".venv" / "bin" / "overtone"
MODELS = Path(os.environ.get("OVERTONE_REAL_MODELS") or ROOT / ".real_models")
PIPER = shutil.which(os.environ.get("PIPER", "piper"))
MINUTES, HELD_OUT, SEED = (2, 7, 30), 40, 11
SENTENCE_SECONDS = 2.6
"""Mean length of a sentence of the grammar in this voice."""
EPOCHS, LR = 10, 3e-4
"""The default epochs of voice_clone, and the learning rate of the demo base, for which that of a released model is too low."""
TRAINED, WITHOUT_TRAINING, THROUGH_CODEC = "voice_clone", "not trained", "recordings, through the codec"
COLUMNS = ("minutes", "trained", "learning rate", "epochs", "steps", "validation loss", "WER, %", "similarity", "processor seconds")
NOTE = (
    "qwen3-tts-demo-base and codec-demo, in fp32 on one CPU core, without shifted copies of the clips. {held_out} new sentences. WER by "
    "Whisper tiny.en, similarity by Resemblyzer to the recordings. Not trained: the base clones a clip. Recordings through the codec: the "
    "best that a model of these codes can reach. **bold**: the defaults (the learning rate is that of the demo). {left}"
)


@dataclass(frozen=True)
class Setting:
    """A training."""

    minutes: int
    epochs: int
    lr: float

    @property
    def is_default(self) -> bool:
        return (self.epochs, self.lr) == (EPOCHS, LR)


@dataclass(frozen=True)
class Result:
    judged: dict[str, tuple[float, float]]
    """What speaks → WER in percent and similarity: the trained model, and in the first run `THROUGH_CODEC` and the base, too."""
    loss: float
    """Of validation, after the last step."""
    steps: int
    seconds: float
    """Of the processor, for the training."""


def list_settings() -> Iterator[Setting]:
    """What matters most comes first, since an interrupted benchmark has only that."""
    for epochs in (EPOCHS, 3):
        yield from (Setting(minutes, epochs, LR) for minutes in MINUTES)
    for epochs, lr in ((EPOCHS, 1e-3), (30, LR), (EPOCHS, 1e-4)):  # of the most speech, each of them takes half an hour
        yield from (Setting(minutes, epochs, lr) for minutes in MINUTES[:2])


def speak(folder: Path, sentences: Iterable[str]) -> Path:
    """Write recordings and their transcripts as `overtone voice --transcripts` reads them."""
    assert PIPER is not None
    folder.mkdir()
    texts = [*sentences]
    # Without its noise, every launch of this benchmark has the same recordings.
    command = [PIPER, "-m", MODELS / VOICE, "--output-dir", folder, "--noise-scale", "0", "--noise-w-scale", "0"]
    subprocess.run(command, input="\n".join(texts), text=True, check=True, capture_output=True)
    clips = sorted(folder.glob("*.wav"), key=lambda clip: int(clip.stem))  # their names are times
    files.write_text(folder / "metadata.csv", "".join(f"{clip.stem}|{text}\n" for clip, text in zip(clips, texts, strict=True)))
    return folder


def prepare(speech: Path, out: Path) -> Path:
    """Returns the rows, with codes, of all recordings."""
    checks = ["--speaker-check", "none", "--align", "none", "--allow-synthetic", "--preset", "keep-all"]
    run("voice", speech, "--out", out, "--transcripts", "--speaker", "joe", "--language", "en", "--val-share", 0, "--workers", 0, *checks)
    run("codes", out, "--model", CODEC)
    return out / "train.jsonl"


def run(*words: object) -> None:
    """Run a command of overtone on one core. Raises `RuntimeError` with the end of its output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([OVERTONE, *map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def run_setting(folder: Path, train: Path, val: Path, setting: Setting) -> Result:
    """Train, export and judge."""
    began = os.times()
    given = {
        "data.train": train, "data.val": val, "run.dir": folder / "run", "train.steps": "null", "train.epochs": setting.epochs,
        "train.lr": setting.lr, "train.global_batch_tokens": "auto", "checkpoint.every": 10**6, "eval.every": 10**6,
    }  # fmt: skip
    run("train", "--recipe", "voice_clone", "--config", DEMO / "demo.yaml", *(word for key in given for word in (f"--{key}", given[key])))
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    evaluated = [event for event in read_log(folder / "run" / LOG) if event["event"] == "evaluation"][-1]
    run("export", folder / "run", "--to", folder / TRAINED)
    judges = ["--asr", MODELS / WHISPER, "--speaker-model", "resemblyzer", "--max-seconds", 12]
    others = ["--codec", CODEC, "--base", BASE] if setting == next(list_settings()) else []
    run("eval-voice", "--model", folder / TRAINED, "--data", val, *judges, *others, "--out", folder / "evaluation")
    figures = json.loads((folder / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))["figures"]
    names = {"real recordings": None, "through the codec": THROUGH_CODEC, TRAINED: TRAINED}
    of = {names.get(name, WITHOUT_TRAINING): (own["all"]["wer"], own["all"]["similarity resemblyzer"]) for name, own in figures.items()}
    return Result({name: values for name, values in of.items() if name}, evaluated["val/loss"], evaluated["step"], round(seconds, 1))


def read_results(path: Path) -> dict[Setting, Result]:
    """The results that there are."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = [json.loads(line) for line in text.split("\n") if line.endswith("}}")]  # a line that was cut off ends otherwise
    return {Setting(**each["setting"]): Result(**each["result"]) for each in found}


def make_rows(found: dict[Setting, Result]) -> Iterator[Sequence[object]]:
    """The rows of the table: by minutes, epochs and learning rate, after what is compared with."""
    for setting, result in sorted(found.items(), key=lambda pair: (pair[0].minutes, not pair[0].is_default, pair[0].epochs, pair[0].lr)):
        for name in (THROUGH_CODEC, WITHOUT_TRAINING):
            if name in result.judged:
                yield setting.minutes, name, "", "", "", "", *format_judged(result, name), ""
        name = f"**{TRAINED}**" if setting.is_default else TRAINED
        trained = (f"{setting.lr:g}", setting.epochs, result.steps, f"{result.loss:.3f}", *format_judged(result, TRAINED))
        yield setting.minutes, name, *trained, f"{result.seconds:.0f}"


def format_judged(result: Result, name: str) -> tuple[str, str]:
    wer, similarity = result.judged[name]
    return f"{wer:.1f}", f"{similarity:.3f}"


def publish(flags: _table.Flags, settings: Sequence[Setting], found: dict[Setting, Result]) -> None:
    left = sum(setting not in found for setting in settings)
    note = NOTE.format(held_out=HELD_OUT, left=f"{left} of {len(settings)} runs are not measured yet." if left else "")
    _table.publish("voice_defaults", flags, COLUMNS, [*make_rows(found)], note.strip(), is_whole=not left)


def main() -> None:
    flags = _table.read_flags(__doc__)
    if PIPER is None:
        print(f"{_table.SKIPPED}needs piper: `pip install piper-tts` in an environment of its own, and PIPER=…/bin/piper")
        return
    if not (MODELS / VOICE).is_file() or not (MODELS / WHISPER).is_file():
        print(f"{_table.SKIPPED}needs released models: `.venv-chat/bin/python -m tests.real.build_models {MODELS}` builds them")
        return
    path = flags.to / f"voice_defaults{'_quick' if flags.quick else ''}.jsonl"
    settings = [Setting(1, 1, LR)] if flags.quick else [*list_settings()]
    held_out = make_new_voice.list_choosing_sentences(count=4 if flags.quick else HELD_OUT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        val = prepare(speak(folder / "held_out", held_out), folder / "val")
        data: dict[int, Path] = {}
        for number, setting in enumerate(settings):
            if setting in read_results(path):
                continue
            if setting.minutes not in data:
                sentences = itertools.islice(grammar.generate_sentences(SEED, "train"), round(60 * setting.minutes / SENTENCE_SECONDS))
                speech = speak(folder / f"speech{setting.minutes}", sentences)
                data[setting.minutes] = prepare(speech, folder / f"train{setting.minutes}")
            (folder / str(number)).mkdir()
            result = run_setting(folder / str(number), data[setting.minutes], val, setting)
            files.append_line(path, json.dumps({"setting": asdict(setting), "result": asdict(result)}))
            publish(flags, settings, read_results(path))
    publish(flags, settings, read_results(path))


if __name__ == "__main__":
    main()
