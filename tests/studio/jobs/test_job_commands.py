"""A job runs verbs from a list, on paths in the studio's folder, whoever wrote its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.__main__ import GROUPS
from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_commands
from overtone.studio.jobs.job_commands import check_command, show_command

TRAIN = ["--recipe", "llm_sft", "--data.train", "data/a b/train.jsonl", "--run.dir=runs/a", "--model.source", "Qwen/Qwen3-0.6B"]


def test_a_command_of_a_page_is_accepted(tmp_path: Path) -> None:
    check_command(tmp_path, "train", TRAIN)
    check_command(tmp_path, "generate", ["--model", "exports/a", "--text", "See https://example.org/../x, /etc/passwd."])
    assert set(job_commands.VERBS) <= {verb for group in GROUPS.values() for verb in group}


@pytest.mark.parametrize(
    ("verb", "words", "reason"),
    [
        ("cp", ["llm_sft"], "does not start `overtone cp`"),
        ("studio", [], "does not start `overtone studio`"),
        ("train", ["--recipe", "runs/evil"], "--recipe runs/evil: no such choice"),
        ("train", ["--recipe=../evil"], "no such choice"),
        ("train", ["--launch", "evil.yaml"], "no such choice"),
        ("train", ["--run.dir", "/tmp/run"], "/tmp/run leads out"),
        ("train", ["--run.dir=../run"], r"\.\./run leads out"),
        ("train", ["--data.train", "s3://bucket/train.jsonl"], "leads out"),
        ("train", ["~/run"], "leads out"),
        ("train", ["--data.mix", "[{path: 'https://a/b'}]"], "leads out"),
        ("train", ["--run.dir", "link/run"], "link/run leads out"),
        ("train", ["--model.source", "https://me:secret@example.org/a"], "an address with a password"),
        ("export", ["runs/a", "--push-to-hub", "me/voice"], "commands with --push-to-hub"),
        ("serve", ["--model", "a", "--token-file", "b"], "commands with --token-file"),
        ("train", ["a\0b"], "null character"),
        ("train", ["a"] * 501, "501 words"),
    ],
)
def test_other_commands_are_refused(verb: str, words: list[str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(UserError, match=reason):
        check_command(tmp_path, verb, words)


def test_a_shown_command_is_quoted_for_a_shell() -> None:
    assert show_command("voice", ["my recordings", "--out", "data/$(id)"]) == "overtone voice 'my recordings' --out 'data/$(id)'"
