"""Pipes, devices and files without an end in place of data, settings, clips and records, given to the real commands."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import overtone.data_prep.__main__
import overtone.finetune.__main__
from overtone.recipes.llm_sft.model import tiny_checkpoint

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("time_limit")
ROW = {
    "audio": "clip.wav",
    "text": "hello there",
    "speaker": "ada",
    "language": "english",
    "duration": 1.0,
    "source": "a.wav",
    "start": 0.0,
}
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("chat") / "model")


def write_lines(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run_finetune(*words: str) -> int:
    return overtone.finetune.__main__.main([*words])


def prepare(*words: str) -> int:
    return overtone.data_prep.__main__.main([*words])


LLM = ("--recipe", "llm_sft")
COMMANDS: dict[str, tuple[str, Callable[[str], int]]] = {
    "rows of chats": ("here/train.jsonl", lambda model: run_finetune("train", "--recipe", "llm_sft", "--data.train", "here/train.jsonl")),
    "config": ("here/a.yaml", lambda model: run_finetune("train", "--recipe", "llm_sft", "--config", "here/a.yaml")),
    "launch file": ("here/l.yaml", lambda model: run_finetune("translate", "here/l.yaml", "--recipe", "llm_sft", "--to", "out")),
    "prompts": (
        "here/p.txt",
        lambda model: run_finetune("generate", "--model", model, "--recipe", "llm_sft", "--prompt-file", "here/p.txt"),
    ),
    "card of an export": ("here/export.json", lambda model: run_finetune("generate", "--model", "here", "--prompt", "hi")),
    "state of a run": ("here/checkpoints/step-00000001/state.json", lambda model: run_finetune("export", "here", "--to", "out")),
    "manifest of a run": ("here/checkpoints/step-00000001/manifest.json", lambda model: run_finetune("export", "here", "--to", "out")),
    "shard of a run": ("here/checkpoints/step-00000001/rank-0.safetensors", lambda model: run_finetune("check", "here")),
    "sound to verify": ("here/a.wav", lambda model: run_finetune("verify-audio", "here/a.wav")),
    "chats": ("here/chats.jsonl", lambda model: prepare("text", "here/chats.jsonl", "--out", "out")),
    "chats in a folder": ("here/chats.json", lambda model: prepare("text", "here", "--out", "out")),
    "chats in gz": ("here/chats.jsonl.gz", lambda model: prepare("text", "here/chats.jsonl.gz", "--out", "out")),
    "images": ("here/cat/1.png", lambda model: prepare("images", "here", "--out", "out")),
    "rows of images": ("here/rows.jsonl", lambda model: prepare("images", "here/rows.jsonl", "--out", "out")),
    "recordings": ("here/rec.wav", lambda model: prepare("voice", "here", "--out", "out", "--transcripts")),
    "rows of clips": ("here/train.jsonl", lambda model: prepare("check", "here/train.jsonl")),
    "summary": ("here/summary.json", lambda model: prepare("report", "here")),
}


@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_with_a_sentence(
    name: str, kind: str, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place, command = COMMANDS[name]
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if kind == "a named pipe" else path.symlink_to("/dev/zero")
    assert command(str(chat_model)) in (1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.err and len((said.err + said.out).strip()) > 20


@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_files_that_rows_name_are_checked_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "clips" / "train.jsonl", ROW)
    write_lines(tmp_path / "pictures" / "rows.jsonl", {"image": "1.png", "label": "cat"}, {"image": "1.png", "label": "dog"})
    for path in (tmp_path / "clips" / "clip.wav", tmp_path / "pictures" / "1.png"):
        os.mkfifo(path) if kind == "a named pipe" else path.symlink_to("/dev/zero")
    assert prepare("check", "clips") in (1, 2)
    assert prepare("images", "pictures/rows.jsonl", "--out", "out") in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv"])
def test_a_line_without_an_end_is_refused_with_its_place(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = b'"question","answer"\n"a","b"\n"' if "sv" in ending else json.dumps(CHAT).encode() + b'\n\n{"messages": "'
    write = gzip.open if ending.endswith("gz") else open
    with write(f"chats.{ending}", "wb") as file:
        file.write(begin.replace(b",", b"\t") if ending == "tsv" else begin)
        file.write(b"a" * 17_000_000)
    assert prepare("text", f"chats.{ending}", "--out", "out") == 2
    assert f"chats.{ending}:3: the " in (said := capsys.readouterr().err) and "has more than 16,777,216" in said


def test_a_record_of_many_lines_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is short, but the quotation that begins in the second one never ends."""
    monkeypatch.chdir(tmp_path)
    Path("chats.csv").write_bytes(b'question,answer\n"a' + b'\n","a' * 4_000_000)
    assert prepare("text", "chats.csv", "--out", "out") == 2
    assert "the record has more than 16,777,216 characters; is a quotation mark missing?" in capsys.readouterr().err


LIMITED = "import sys, overtone.data_prep.__main__; sys.exit(overtone.data_prep.__main__.main(sys.argv[1:]))"


def test_a_bomb_of_one_line_takes_little_memory(tmp_path: Path) -> None:
    """Four gigabytes in a gz file of 4 MB that is one line."""
    part = gzip.compress(b" " * 2**26, compresslevel=1)
    (tmp_path / "chats.jsonl.gz").write_bytes(part * 64)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "text", str(tmp_path / "chats.jsonl.gz"), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30,) * 2),
    )
    assert done.returncode == 2 and "chats.jsonl.gz:1: the line has more than 16,777,216 bytes" in done.stderr, done.stderr
