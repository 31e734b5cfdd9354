"""A password and a signature in an address are sent to its server, and nowhere printed or saved, whatever the verb does with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import overtone.__main__
import overtone.data_prep.__main__
import overtone.finetune.__main__
from overtone.__main__ import STUDIO
from overtone.finetune.errors import UserError
from overtone.studio.jobs.job_queue import start_job
from tests.finetune import loopback_files, tiny
from tests.finetune.loopback_files import FileServer
from tests.recipes.llm_sft import tiny_runs

SECRET = "S3CR3T"
Commands = dict[str, list[list[str]]]
"""Verb → command lines."""
LOGIN, QUERY = f"me:{SECRET}-word", f"X-Amz-Signature={SECRET}-sign&X-Amz-Credential={SECRET}-key"
CHATS = "".join(json.dumps(row) + "\n" for row in tiny_runs.rows())

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@dataclass(frozen=True)
class Planted:
    """A folder with a base model, and a server of which each request needs the secrets."""

    folder: Path
    server: FileServer

    def address(self, name: str = "train.jsonl", query: str = QUERY) -> str:
        return f"http://{LOGIN}@{self.server.place}/data/{name}?{query}"

    @property
    def training(self) -> list[str]:
        """Of a run on the server's data."""
        own = ["--model.source", str(self.folder / "base"), "--run.dir", str(self.folder / "run"), "--train.precision", "fp32"]
        sizes = ["--train.global_batch_tokens", "60", "--train.micro_tokens", "90", "--checkpoint.every", "1", "--eval.every", "1"]
        return ["--recipe", "llm_sft", *own, *sizes, "--data.train", self.address(), "--data.val", self.address("val.jsonl")]

    def find_leaks(self) -> list[str]:
        """Files, also in caches, whose name or content has the secret."""
        paths = [path for path in self.folder.rglob("*") if not path.is_symlink()]
        return [str(path) for path in paths if SECRET in str(path) or (path.is_file() and SECRET.encode() in path.read_bytes())]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def planted(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(base, folder / "base")
    (folder / "space.yaml").write_text("train.lr: {grid: [1e-3, 1e-2]}\n")
    held = {"data/train.jsonl": CHATS.encode(), "data/val.jsonl": CHATS.encode(), "data/a.wav": b"RIFF"}
    with loopback_files.opened(FileServer(held, etag="strong", login=LOGIN)) as server, pytest.MonkeyPatch.context() as patched:
        for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR"):
            (folder / name).mkdir()
            patched.setenv(name, str(folder / name))
        patched.setattr("tempfile.tempdir", str(folder / "TMPDIR"))
        patched.setattr("builtins.input", lambda *_: "/exit")
        patched.chdir(folder)
        yield Planted(folder, server)


def list_commands(planted: Planted) -> Commands:
    """For each verb of `finetune`, command lines with a planted address; those that cannot use it end with an error."""
    run, export, url = str(planted.folder / "run"), str(planted.folder / "export"), planted.address()
    unsigned, gone = planted.address(query=f"X-Amz-Signature={SECRET}-old"), planted.address("gone.jsonl")
    data = ["--recipe", "llm_sft", "--model.source", str(planted.folder / "base")]
    return {
        "train": [
            [*planted.training, "--train.steps", "2"],
            [*planted.training, "--train.steps", "3", "--data.train", unsigned],  # another signature of the same file
            [*planted.training, "--data.train", gone],
            [*planted.training, "--data.train", "null", "--data.mix", f"[{{path: '{url}'}}, {{path: '{gone}'}}]"],
            [*data, "--config", url],
            *([*planted.training, f"--{key}={url}"] for key in ("run.dir", "model.source", "sample.asr", "train.steps", "unknown.key")),
            [*planted.training, "--checkpoint.copy_to", url, "--run.dir", "copied", "--train.steps", "1"],
            ["--recipe", url, "--data.train", url],
            ["--launch", url, *planted.training],
            ["--recipe", "llm_grpo", *planted.training[2:], "--options.rewards.judge", f"{{url: '{url}', model: m}}"],
        ],
        "plan": [planted.training, [*planted.training, "--settings"], [*planted.training, "--write", url]],
        "ray-train": [["--num-workers", "1", *data, "--data.train", gone], ["--num-workers", "1", "--storage", url, *data]],
        "ray-tune": [["--space", "space.yaml", *data, "--data.train", gone], ["--space", url, *data]],
        "ray-serve": [["--model", url], *(["--model", export, flag, url] for flag in ("--token-file", "--replicas", "--use-gpu"))],
        "export": [
            [run, "--to", export],
            *([run, "--to", "other", flag, url] for flag in ("--base", "--recipe", "--push-to-hub", "--format")),
            [run, "--to", url],
            [url, "--to", "other"],
        ],
        "generate": [["--model", export, "--prompt", "Hi"], ["--model", url], ["--model", export, "--prompt-file", url]],
        "chat": [["--model", export], ["--model", url]],
        "eval-voice": [["--model", url]],
        "select": [[run], [url]],
        "pairs": [[url], [export, "--recipe", "voice_clone", "--texts", url, "--data", url, "--asr", url, "--out", url]],
        "serve": [["--model", url], ["--model", export, "--token-file", url]],
        "check": [[run], [url]],
        "verify-audio": [[url]],
        "ls": [[], [url]],
        "translate": [[url], ["space.yaml", "--to", url]],
        "cp": [["llm_sft", url], [url, "other"]],
        "where": [[url]],
        "schema": [["--recipe", url]],
        "doctor": [[], [url]],
    }


def list_data_commands(planted: Planted) -> Commands:
    """As `list_commands`, for `data_prep`."""
    url, gone, sound = planted.address(), planted.address("gone.wav"), planted.address("a.wav")
    return {
        "voice": [["--transcripts", *words] for words in ([gone, "--out", "a"], [sound, "--out", "b"], ["base", "--out", url])],
        "codes": [[url, "--model", "codec-demo"], ["base", "--model", url]],
        "report": [[url]],
        "review": [[url]],
        "check": [[url]],
        "export": [[url, "--to", "other", "--as", "ljspeech"], ["base", "--to", url, "--as", "ljspeech"]],
        "images": [[url, "--out", "images"], ["base", "--out", url]],
        "text": [[url, "--out", "text"], [str(planted.folder / "space.yaml"), "--out", url]],
    }


def run_all(planted: Planted, package: ModuleType, commands: Commands, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run all command lines; what each printed, by its words."""
    printed = {}
    for verb, lines in commands.items():
        for words in lines:
            try:
                code = package.main([verb, *words])
            except SystemExit as stop:
                code = stop.code
            tiny.let_go(planted.folder / "run")
            out, err = capfd.readouterr()
            printed[f"{package.__name__} {verb} {' '.join(words)} ({code})"] = out + err
    return printed


def test_no_verb_prints_or_saves_the_secrets(planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    commands, data_commands = list_commands(planted), list_data_commands(planted)
    assert set(commands) == set(overtone.finetune.__main__.VERBS) and set(data_commands) == set(overtone.data_prep.__main__.VERBS)
    printed = run_all(planted, overtone.finetune.__main__, commands, capfd) | run_all(
        planted, overtone.data_prep.__main__, data_commands, capfd
    )
    assert {words: text for words, text in printed.items() if SECRET in text} == {}
    assert planted.find_leaks() == []
    assert {words: text for words, text in printed.items() if "Traceback" in text} == {}

    kept = {path.relative_to(planted.folder).as_posix() for path in planted.folder.rglob("*") if path.is_file()}
    assert {"run/log.jsonl", "run/exit.json", "export/README.md", "export/model.safetensors"} <= kept
    assert any("events.out.tfevents" in name for name in kept) and any(name.startswith("run/checkpoints/step-00000003/") for name in kept)
    shown = f"http://***@{planted.server.place}/data/train.jsonl?***"
    assert "train.jsonl?***" in (planted.folder / "export" / "README.md").read_text(), "the rest of the address is shown"
    assert shown in (planted.folder / "run/checkpoints/step-00000003/config.yaml").read_text()
    assert sum(shown in text for text in printed.values()) > 10
    assert all(f"{SECRET}-" in request for request in planted.server.requests), "and sent"


def test_the_studio_neither_prints_nor_saves_the_secrets(planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    printed = run_all(planted, overtone.__main__, {STUDIO: [[planted.address()], [".", "--token-file", planted.address()]]}, capfd)
    assert all("expected a path on this machine, not a URL" in text and SECRET not in text for text in printed.values())
    with pytest.raises(UserError, match="would be saved") as caught:
        start_job(planted.folder, "train", ["--recipe", "llm_sft", "--data.train", planted.address()])
    assert SECRET not in str(caught.value) and planted.find_leaks() == []


def test_a_saved_config_needs_the_secrets_again(planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    train = overtone.finetune.__main__.main
    assert train(["train", *planted.training, "--run.dir", "first", "--train.steps", "1"]) == 0
    (saved,) = (planted.folder / "first" / "checkpoints").glob("step-*/config.yaml")
    capfd.readouterr()
    words = ["train", "--config", str(saved), "--run.dir", "second"]
    assert train(words) == 2
    error = capfd.readouterr().err
    assert f"data.train: http://***@{planted.server.place}/data/train.jsonl?***: " in error and "give --data.train with the whole" in error
    assert train([*words, "--data.train", planted.address()]) == 2 and "error: data.val: " in capfd.readouterr().err
    assert train([*words, "--data.train", planted.address(), "--data.val", planted.address("val.jsonl")]) == 0


def test_a_planted_leak_is_found(planted: Planted, tmp_path: Path) -> None:
    for name, content in ((f"{SECRET}.txt", ""), ("a.bin", f"\0{SECRET}\xff")):
        (planted.folder / name).write_text(content)
        assert planted.find_leaks() == [str(planted.folder / name)]
        (planted.folder / name).unlink()
