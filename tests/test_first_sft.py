"""Tests that the commands of docs/first_sft.md work in their order, with a tiny model and two chats."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.monitoring.run_records import read_log
from tests.finetune import fake_hub
from tests.launch.launching import ALONE, ROOT
from tests.recipes.llm_sft import tiny_runs

PAGE = (ROOT / "docs" / "first_sft.md").read_text(encoding="utf-8")
NEEDS_A_PERSON = "hf auth login"
STEPS = ["overtone text", "overtone plan", "overtone train", "overtone export", "overtone generate", "overtone chat", "--push-to-hub"]


def commands() -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.strip().splitlines()]
    return [line for line in lines if line != NEEDS_A_PERSON]


def small(command: str, home: Path) -> list[str]:
    """The same command with a tiny model and two chats, in a temporary folder."""
    replaced = {
        "Qwen/Qwen3-1.7B": home / "base",
        "my_chats": home / "my_chats",
        "data/chats": home / "chats",
        "runs/llm_sft": home / "run",
        "exports": home / "exports",
    }
    for name, path in replaced.items():
        command = command.replace(name, str(path))
    words = shlex.split(command)
    if "--recipe" in words:
        words += ["--run.dir", str(home / "run"), "--train.steps", "60", "--train.lr", "1e-2", "--train.precision", "fp32"]
        words += ["--train.global_batch_tokens", "60", "--train.micro_tokens", "90"]
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


def test_the_page_has_the_expected_commands() -> None:
    assert len(commands()) == len(STEPS) and all(part in command for part, command in zip(STEPS, commands(), strict=True))


@pytest.mark.slow
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    tiny_runs.write_base(tmp_path / "base")
    (tmp_path / "my_chats").mkdir()
    (tmp_path / "my_chats" / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows()))
    output: dict[str, str] = {}
    with fake_hub.opened() as hub:
        environment = {name: value for name, value in ALONE.items() if name != "HF_HUB_OFFLINE"}
        environment |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": fake_hub.TOKEN, "HF_HOME": str(tmp_path / "hf")}
        for step, command in zip(STEPS, commands(), strict=True):
            done = subprocess.run(
                small(command, tmp_path), cwd=ROOT, env=environment, input="Good day.\n", capture_output=True, text=True, timeout=280
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            output[step] = done.stdout
            if step == "overtone text":  # two chats are too few for a validation set
                shutil.copy(tmp_path / "chats" / "train.jsonl", tmp_path / "chats" / "val.jsonl")
        assert "README.md" in hub.repositories["me/my-model"] and hub.private["me/my-model"]
    assert "2 rows read" in output["overtone text"]
    assert "the first micro-batch" in output["overtone plan"]
    assert output["overtone generate"] == "I am a machine.\n" and "> And to you.\n" in output["overtone chat"]
    rounds = {event["step"]: event["event"] for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"].startswith("sampl")}
    assert set(rounds) == {50, 60} and rounds[60] == "sampled"
    assert {path.name for path in (tmp_path / "exports").iterdir()} == {"mine", "published"}
