"""Nothing that lies on a disk is unpickled, in train, resume, export and generate; not even opened, if it is a file of such a kind."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.recipes.llm_sft.model import tiny_checkpoint as tiny_chat
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests import loopback
from tests.finetune import tiny as byte_model
from tests.launch.launching import ALONE, ROOT, command, voice_rows
from tests.ledger import record
from tests.reliability import audited, victims

SCRIPT = ROOT / "tests" / "reliability" / "audited.py"
BAIT = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", ".metadata", "rng_state_0.pth", "scheduler.pkl")
"""What other tools would find beside a model or in a run, and unpickle."""


def lay_bait(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in BAIT:
        (folder / name).write_bytes(pickle.dumps(Path))


def test_nothing_is_unpickled_in_train_resume_and_export(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def train(world: int, steps: int) -> None:
        lora = ["--parallel.strategy", "fsdp", "--model.lora", "{rank: 3, alpha: 6}"]
        argv = victims.arguments(tmp_path, "--run.dir", run, "--train.steps", steps, *lora)
        for folder in (tmp_path / "base", run):
            lay_bait(folder)
        port = loopback.free_port()
        ranks = [victims.begin(audited.train_rank, rank, world, port, tmp_path / "notes", argv) for rank in range(world)]
        assert victims.wait(ranks) == [0] * world, victims.said(tmp_path / "notes")

    (tmp_path / "notes").mkdir()
    train(2, 2)
    train(1, 4)
    assert checkpoint.read_state(checkpoint.find(run))["step"] == 4 and victims.events(run, "resumed")
    exporting = victims.begin(
        audited.export_once, tmp_path / "notes", [str(run), "--to", str(tmp_path / "exported"), "--recipe", str(byte_model.FOLDER)]
    )
    assert victims.wait([exporting]) == [0], victims.said(tmp_path / "notes")
    assert audited.found(tmp_path / "notes", "train") == [[], [], []]
    assert audited.found(tmp_path / "notes", "export") == [[]]


def audited_chain(folder: Path, recipe: str, base: Path, train: list[object], generate: list[object]) -> None:
    """The real commands on two processes: train, resume, export, generate, with all that they import."""
    run, notes = folder / "run", folder / "notes"
    notes.mkdir()
    for place in (base, run):
        lay_bait(place)
    given = ["--recipe", recipe, *train, "--model.source", base, "--data.train", folder / "train.jsonl", "--run.dir", run]
    for steps in (2, 4):
        done(command("fsdp2", 2, SCRIPT, notes, "train", *given, "--train.steps", steps))
    assert checkpoint.read_state(checkpoint.find(run))["step"] == 4
    done([sys.executable, SCRIPT, notes, "export", run, "--to", folder / "model"])
    done([sys.executable, SCRIPT, notes, "generate", "--model", folder / "model", *generate])
    processes = {verb: audited.found(notes, verb) for verb in ("train", "export", "generate")}
    assert processes == {"train": [[]] * 4, "export": [[]], "generate": [[]]}
    record("a process of train, resume, export or generate, launched for real: no file is unpickled", 6)


@pytest.mark.slow
def test_nothing_is_unpickled_from_the_launcher_to_the_voice(tmp_path: Path) -> None:
    base, speech = tiny_checkpoint.build(tmp_path / "nano"), tmp_path / "hello.wav"
    voice_rows(tmp_path, ["Ann"])
    say = ["--speaker", "ann", "--text", "Hello, this is my voice.", "--out", speech, "--max-seconds", "1"]
    audited_chain(tmp_path, "voice_clone", base, ["--config", "recipes/voice_clone/debug.yaml"], say)
    assert speech.is_file()


@pytest.mark.slow
def test_nothing_is_unpickled_from_the_launcher_to_the_answer(tmp_path: Path) -> None:
    base = tiny_chat.build(tmp_path / "chat")
    said = [{"role": "user", "content": "reverse: abc"}, {"role": "assistant", "content": "cba"}]
    (tmp_path / "train.jsonl").write_text(f"{json.dumps({'messages': said})}\n" * 8)
    audited_chain(tmp_path, "llm_sft", base, ["--train.precision", "fp32"], ["--prompt", "reverse: abc", "--max-new-tokens", "8"])


def done(words: list[object]) -> None:
    finished = subprocess.run([*map(str, words)], cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
