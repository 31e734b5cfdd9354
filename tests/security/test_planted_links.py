"""Every verb that writes, on folders with links planted at every name that it writes: what the links lead to never changes.

The names come from a trace of each verb's own run, so a new file of a verb is tried without a change here; a new verb fails until it has a
case. A verb refuses a link with its name, refuses the folder, or replaces the link by its own file.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.__main__ import main as prepare_data
from overtone.finetune.config import resolve
from overtone.finetune.data import index_building
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles
from overtone.finetune.training import setup
from overtone.recipes.llm_sft.model import tiny_checkpoint as tiny_chat
from tests import loopback
from tests.byte_model.recipe import Options, write_base
from tests.data_prep.cli.test_images import write_folder
from tests.data_prep.conftest import HARBOUR
from tests.security.planted_links import Case, Workshop, list_verbs, make_precious, plant, run_server, snapshot, sweep

ROOT = Path(__file__).parents[2]
BYTES = ("--recipe", str(ROOT / "tests" / "byte_model"), "--model.source", "base", "--data.train", "rows.jsonl", "--run.dir", "run")
TRAIN = (
    *BYTES,
    "--data.val",
    "rows.jsonl",
    "--train.precision",
    "fp32",
    "--checkpoint.every",
    "1",
    "--eval.every",
    "1",
    "--log.trackers",
    "tensorboard",
    "--train.steps",
)
VOICE = "qwen3-tts-demo-base"
SPEAK = ("--model", VOICE, "--reference", "recordings/harbour.flac", "--max-seconds", "1")
HALF = f"{files.TEMPORARY}00000000"


def write_chats(folder: Path) -> None:
    chats = (
        {"messages": [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]} for n in range(20)
    )
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))


def write_recordings(folder: Path) -> None:
    """Three sentences, with what is said in them."""
    cues = json.loads(HARBOUR.with_name("harbour.transcript.json").read_text())[:3]
    samples, rate = soundfile.read(HARBOUR, stop=int((cues[-1]["end"] + 0.4) * soundfile.info(HARBOUR).samplerate))
    (folder / "recordings").mkdir()
    soundfile.write(folder / "recordings" / "harbour.flac", samples, rate)
    (folder / "recordings" / "harbour.transcript.json").write_text(json.dumps(cues))


def write_photos(folder: Path) -> None:
    write_folder(folder / "photos", 3)


def write_rows(folder: Path) -> None:
    write_base(folder / "base")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": "she counted the boats " * (1 + n % 3)}) + "\n" for n in range(12)))


def leave_killed_run(folder: Path) -> None:
    """What a killed launch leaves: no exit record, and unfinished files, whose names have a random part."""
    (folder / "run" / "exit.json").unlink()
    (folder / "run" / "STOP").write_text("")


def write_texts(folder: Path) -> None:
    write_recordings(folder)
    (folder / "texts.txt").write_text("Hello.\n")


def review_one_clip(folder: Path, env: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
    row = json.loads((folder / "out" / "train.jsonl").read_text().split("\n")[0])
    body = json.dumps({"id": row["id"], "action": "reject", "text": row["text"], "note": ""}).encode()
    return run_server(folder, env, words, lambda url: loopback.ask(f"{url}/decision", body, Content_Type="application/json"))


def ask_server(folder: Path, env: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
    return run_server(folder, env, words, lambda url: loopback.ask(url))


def write_launch_file(folder: Path) -> None:
    (folder / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")


def write_chat_model(folder: Path) -> None:
    tiny_chat.build(folder / "model")


CASES = {
    "text": Case(("data_prep", "text"), ("chats.jsonl", "--out", "out"), write_chats),
    "text again": Case(("data_prep", "text"), ("chats.jsonl", "--out", "out", "--val-share", "0.5"), after="text"),
    "images": Case(("data_prep", "images"), ("photos", "--out", "out"), write_photos),
    "images again": Case(
        ("data_prep", "images"), ("photos", "--out", "out", "--val-share", "0.5"), after="images", planted=(f"out/images/.0{HALF}",)
    ),
    "voice": Case(
        ("data_prep", "voice"),
        ("recordings", "--out", "out", "--transcripts", "--speaker", "me", "--language", "en", "--align", "none", "--workers", "0"),
        write_recordings,
    ),
    "codes": Case(("data_prep", "codes"), ("out", "--model", "codec-demo"), after="voice"),
    "codes again": Case(("data_prep", "codes"), ("out", "--model", "codec-demo"), after="codes"),
    "report": Case(("data_prep", "report"), ("out",), after="voice"),
    "check a dataset": Case(("data_prep", "check"), ("out",), after="voice", writes=False),
    "export a dataset": Case(("data_prep", "export"), ("out", "--as", "ljspeech", "--to", "exports/speech"), after="voice"),
    "train": Case(("finetune", "train"), (*TRAIN, "2"), write_rows),
    "resume": Case(("finetune", "train"), (*TRAIN, "3"), after="train"),
    "resume after a kill": Case(
        ("finetune", "train"),
        (*TRAIN, "3"),
        leave_killed_run,
        after="train",
        planted=tuple(f"run/{name}{HALF}" for name in ("checkpoints/.step-00000003", ".exit.json", "cache/.rows.index")),
    ),
    "fail": Case(("finetune", "train"), (*TRAIN, "3", "--train.lr", "1e38"), write_rows, code=None),
    "plan": Case(("finetune", "plan"), (*TRAIN, "2", "--gpus", "2", "--write", "configs/launch.yaml"), write_rows, code=None),
    "export": Case(("finetune", "export"), ("run", "--to", "exports/me", "--recipe", BYTES[1]), after="train"),
    "select": Case(("finetune", "select"), ("run", "--recipe", BYTES[1]), after="train", code=None),
    "check a run": Case(("finetune", "check"), ("run",), after="train", writes=False),
    "ls": Case(("finetune", "ls"), ("run",), after="train", writes=False),
    "translate": Case(("finetune", "translate"), ("accelerate.yaml", "--to", "launch"), write_launch_file),
    "cp": Case(("finetune", "cp"), ("llm_sft", "recipes/mine")),
    "where": Case(("finetune", "where"), (), writes=False),
    "doctor": Case(("finetune", "doctor"), (), code=None, writes=False),
    "schema": Case(("finetune", "schema"), (), writes=False),
    "generate": Case(("finetune", "generate"), (*SPEAK, "--text", "Hello."), write_recordings),
    "chat": Case(("finetune", "chat"), ("--model", "model"), write_chat_model, code=None, writes=False),
    "verify-audio": Case(("finetune", "verify-audio"), ("speech.wav",), after="generate", writes=False),
    "generate from a file": Case(("finetune", "generate"), (*SPEAK, "--text-file", "texts.txt"), write_texts),
    "review": Case(("data_prep", "review"), ("out", "--port", "PORT"), after="voice", run=review_one_clip),
    "studio": Case(("overtone", "studio"), ("out", "--port", "PORT"), after="text", run=ask_server, writes=False),
    "serve": Case(("finetune", "serve"), ("--model", VOICE, "--port", "PORT"), run=ask_server, writes=False),
}
UNTRACED = {
    ("finetune", "eval-voice"): "a recognizer and a voice for each of a dozen runs; it writes by `generate`'s and `select`'s functions",
    ("finetune", "pairs"): "the same; it also appends to a log, as `generate` does with a file",
    ("finetune", "ray-train"): "a cluster for each of a dozen runs; its worker is the training of `train`",
    ("finetune", "ray-tune"): "the same; its trials are trainings",
    ("finetune", "ray-serve"): "the same; its replicas are the server of `serve`",
}
"""Verbs without a case, with the reason."""
QUICK = ("text", "text again", "translate")
"""Cases of the quick suite."""


@pytest.mark.parametrize(("name", "is_folder"), [(".owner", False), ("codes", True)])
def test_codes_of_a_cloned_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, is_folder: bool) -> None:
    precious, dataset = make_precious(tmp_path / "precious"), tmp_path / "dataset"
    before = snapshot(precious)
    dataset.mkdir()
    soundfile.write(dataset / "a.flac", np.random.default_rng(0).uniform(-0.3, 0.3, 24_000), 24_000)
    (dataset / "train.jsonl").write_text(json.dumps({"audio": "a.flac", "text": "Hello.", "speaker": "me"}) + "\n")
    assert plant(dataset, name, precious, is_folder)
    assert prepare_data(["codes", str(dataset), "--model", "codec-demo"]) == 2
    assert f"error: {dataset / name} is a link to {precious}/" in capsys.readouterr().err
    assert snapshot(precious) == before


@pytest.mark.parametrize("name", [".owner", "log.jsonl", "cache", "cache/.index.lock", "checkpoints", "tracking"])
def test_training_in_a_cloned_run(tmp_path: Path, name: str) -> None:
    precious, run = make_precious(tmp_path / "precious"), tmp_path / "run"
    before = snapshot(precious)
    assert plant(run, name, precious, is_folder="." not in name)
    with pytest.raises(UserError, match=f"^{run / name} is a link to {precious}/(file|inner), and nothing is written"):
        setup.claim_folder(run, ("tensorboard",))
        index_building.discard_other_indexes(run / "cache", [])
    assert snapshot(precious) == before


def test_a_run_on_another_disk_is_followed_where_the_user_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folder_handles.VARIABLE, "")
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with pytest.raises(UserError, match="run is a link to "):
        setup.claim_folder(tmp_path / "run", ())
    resolve("byte_model", Options, [], [("run.dir", str(tmp_path / "run"))])
    setup.claim_folder(tmp_path / "run", ())
    assert (tmp_path / "disk" / "checkpoints").is_dir()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("cases"), CASES)


def try_case(name: str, workshop: Workshop, folder: Path) -> None:
    traced = workshop.trace(name)
    found = sweep(CASES[name], traced, folder)
    print(f"{name}: {found}")
    assert len(found.refused) + len(found.otherwise) + len(found.kept) == len(traced.names)


@pytest.mark.parametrize("name", QUICK)
def test_links_at_names_that_a_quick_verb_writes(name: str, workshop: Workshop, tmp_path: Path) -> None:
    try_case(name, workshop, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_links_at_every_name_that_a_verb_writes(name: str, workshop: Workshop, tmp_path: Path) -> None:
    try_case(name, workshop, tmp_path)


def test_every_verb_has_a_case() -> None:
    traced = {case.verb for case in CASES.values()}
    assert traced | UNTRACED.keys() == list_verbs() and not traced & UNTRACED.keys()
