"""A job runs verbs and flags from a list, on paths in the studio's folder, whoever wrote its record."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from overtone.__main__ import GROUPS
from overtone.data_prep.cli import codes, report, text, voice
from overtone.finetune.cli import export
from overtone.finetune.errors import UserError
from overtone.finetune.terminal import printable
from overtone.recipes.language.cli.arguments import make_generate_parser
from overtone.studio.jobs import job_commands
from overtone.studio.jobs.job_commands import FLAGS, check_command, show_command
from overtone.studio.uploads.speaker_consent import write_consent

TRAIN = ["--recipe", "llm_sft", "--data.train", "data/a b/train.jsonl", "--run.dir=runs/a", "--model.source", "Qwen/Qwen3-0.6B"]
VOICE_PROMPTS = ["--recipe", "voice_clone", "--sample.prompts", '["me|See https://a/b.", "/", "~"]', "--options.speaker", "~ Anna"]
MODEL = ["--model", "exports/a"]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("train", TRAIN),
        ("plan", [*TRAIN, "--show-batch"]),
        ("train", VOICE_PROMPTS),
        ("export", ["exports/a", "--push-to-hub", "me/voice", "--private"]),
        ("train", [*TRAIN, "--launch", "cpu", "--num_processes", "3"]),
        ("plan", [*TRAIN, "--launch", "fsdp2"]),
        ("train", ["--recipe", "llm_sft", "--train.seed", "-1", "--log.trackers", "tensorboard", "--checkpoint.copy_to", "null"]),
        ("generate", [*MODEL, "--text", "See https://example.org/../x, /etc/passwd."]),
        ("generate", [*MODEL, "--prompt=-- Who?", "--system", "/", "--speaker=-x"]),
        ("text", ["chats/us", "--out", "data/us", "--as", "~ Anna", "--columns", "prompt=../frage"]),
        ("text", ["chats/us", "--out", "data/us", "--as", "/Anna", "--join-turns"]),
        ("voice", ["rec", "--out", "data/me", "--whisper", "faster-whisper:small", "--dry-run"]),
    ],
)
def test_commands_of_the_pages_are_accepted(verb: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    write_consent(tmp_path / "rec", "Ann", "own")
    check_command(tmp_path, verb, words)
    assert set(FLAGS) <= {verb for group in GROUPS.values() for verb in group}
    assert {*job_commands.QUEUED, *job_commands.SERVERS} <= set(FLAGS)


@pytest.mark.parametrize(
    ("verb", "parser"),
    [
        ("voice", voice.parser()),
        ("codes", codes.parser()),
        ("text", text.parser()),
        ("report", report.parser()),
        ("export", export.make_parser()),
        ("generate", make_generate_parser()),
    ],
    ids=lambda value: value if isinstance(value, str) else "parser",
)
def test_the_flags_are_those_of_the_verb(verb: str, parser: argparse.ArgumentParser) -> None:
    actions = {flag: action for action in parser._actions for flag in action.option_strings}
    own = {"generate": {"--model", "--text", "--text-file", "--out", "--speaker"}}.get(verb, set())  # of the verb, and of voices
    assert set(FLAGS[verb]) - own <= set(actions)
    for flag, action in actions.items():
        if (kind := FLAGS[verb].get(flag)) is not None:
            assert (kind == "switch") == (action.nargs == 0), flag
            assert action.type is not Path or kind == "path", flag


@pytest.mark.parametrize(
    ("verb", "words", "reason"),
    [
        ("cp", ["llm_sft"], "does not start `overtone cp`"),
        ("studio", [], "does not start `overtone studio`"),
        ("review", ["data/me"], "does not start `overtone review`"),
        ("train", ["--recipe", "runs/evil"], "--recipe runs/evil: no such choice"),
        ("train", ["--recipe=../evil"], "no such choice"),
        ("train", ["--recipe", "llm_sft", "--recipe", "evil"], "no such choice"),
        ("train", ["--launch", "./ddp"], "--launch ./ddp: no such choice"),
        ("train", ["--launch", "runs/evil.yaml"], "no such choice"),
        ("train", ["--launch", "two_nodes"], "--launch two_nodes: no such choice"),
        ("train", ["--launch", "ddp"], "would read the file ddp in the studio's folder"),
        ("train", ["--num_processes", "2"], "--num_processes needs --launch FILE"),
        ("plan", ["--launch", "cpu", "--num_processes", "two"], "--num_processes two: expected a number"),
        ("train", ["--launch", "one_gpu", "--num_processes", "2"], "one_gpu.yaml describes one process"),
        ("train", ["--launch", "cpu", "--main_process_ip", "10.0.0.1"], "with --main_process_ip"),
        ("train", ["--launch", "cpu", "--num_processes", "1025"], "--num_processes 1025: the studio starts up to 1,024"),
        ("plan", ["--launch", "cpu", "--num_processes", "9" * 5000], "the studio starts up to 1,024"),
        ("generate", [*MODEL, "--launch", "cpu"], "with --launch"),
        ("train", ["--run.dir", "/tmp/run"], "/tmp/run leads out"),
        ("train", ["--run.dir=../run"], r"\.\./run leads out"),
        ("train", ["--data.train", "s3://bucket/train.jsonl"], "leads out"),
        ("train", ["~/run"], "unexpected word"),
        ("train", ["--data.mix", "[{path: 'https://a/b'}]"], "leads out"),
        ("train", ["--run.dir", "link/run"], "link/run leads out"),
        ("train", ["--model.source", "https://me:secret@example.org/a"], "an address with a password"),
        ("export", ["exports/a", "--push-to-hub", "https://me:secret@example.org/a"], "an address with a password"),
        ("serve", [*MODEL, "--token-file", "b"], "with --token-file"),
        ("train", ["a\0b"], "null character"),
        ("train", ["a"] * 501, "501 words"),
        # what argparse completes to another flag
        ("export", ["runs/x", "--to", "e", "--recip", "./pwn"], "with --recip;"),
        ("export", ["runs/x", "--to", "e", "--push-to=me/voice"], "with --push-to;"),
        ("serve", [*MODEL, "--hos", "0.0.0.0"], "with --hos;"),
        ("serve", [*MODEL, "--token-f", "t"], "with --token-f;"),
        ("generate", [*MODEL, "-h"], "with -h;"),
        ("generate", [*MODEL, "--", "x"], "with --;"),
        # a value that is read as a flag
        ("generate", [*MODEL, "--text", "--recipe=./pwn"], "--text needs a value"),
        ("generate", [*MODEL, "--text"], "--text needs a value"),
        ("export", ["runs/x", "--best=1"], "--best has no value"),
        ("plan", ["--recipe", "llm_sft", "--data.train", "--show-batch", "/etc"], "--data.train needs a value"),
        # what names code or another machine
        ("train", ["--recipe", "llm_grpo", "--options.rewards.functions", "evil.py"], "with --options.rewards.functions"),
        ("train", ["--recipe", "llm_grpo", "--options.rewards", "{functions: evil.py}"], "with --options.rewards.functions"),
        ("plan", ["--recipe", "llm_grpo", "--options", "{rewards: {functions: evil.py}}"], "with --options;"),
        ("train", ["--options.rewards.functions", "evil.py"], "with --options.rewards.functions"),
        ("train", ["--recipe", "llm_sft", "--config", "evil.yaml"], "with --config"),
        ("train", ["--recipe", "llm_sft", "--checkpoint.copy_to", '"s3:\\x2f\\x2fevil/b"'], "with --checkpoint.copy_to"),
        ("train", ["--recipe", "llm_sft", "--log.trackers", "wandb"], "--log.trackers wandb sends"),
        ("train", ["--recipe", "llm_sft", "--log.trackers", "[tensorboard, trackio]"], "--log.trackers trackio sends"),
        # values of a config as YAML
        ("train", ["--recipe", "llm_sft", "--run.dir", '"\\x2ftmp/x"'], "/tmp/x leads out"),
        ("plan", ["--recipe", "llm_sft", "--data.train", '["/etc/passwd"]'], "/etc/passwd leads out"),
        ("train", ["--recipe", "llm_sft", "--run.dir", "'/tmp/x'"], "/tmp/x leads out"),
        ("train", ["--recipe", "whisper", "--sample.prompts", '["/etc/passwd"]'], "/etc/passwd leads out"),
        ("voice", ["rec", "--out", "data/me"], "rec has no speaker_consent.json"),
        ("voice", ["rec", "--out", "data/me", "--whisper", "faster-whisper:/etc"], "faster-whisper:/etc leads out"),
    ],
)
def test_other_commands_are_refused(verb: str, words: list[str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "ddp").write_text("distributed_type: MULTI_GPU\n")
    with pytest.raises(UserError, match=reason):
        check_command(tmp_path, verb, words)


def test_a_launch_file_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ddp").mkdir()  # which the job would not read
    (tmp_path / "started in").mkdir()
    (tmp_path / "started in" / "cpu").write_text("distributed_type: 'NO'\n")
    monkeypatch.chdir(tmp_path / "started in")
    for name in ("ddp", "cpu"):
        check_command(tmp_path, "train", [*TRAIN, "--launch", name, "--num_processes", "1024"])


@pytest.mark.parametrize("word", ["a\u202eb's", "\x1b[31m\\", "\x85\u00ad", "It's\n\t\u00e9"])
def test_a_shown_command_hides_no_character_and_is_the_same(word: str) -> None:
    shown = show_command("generate", ["--text", word])
    assert printable(shown) == shown
    done = subprocess.run(["bash", "-c", f'overtone() {{ printf %s "$3"; }}; {shown}'], capture_output=True, check=True, timeout=60)
    assert done.stdout.decode() == word


def test_a_shown_command_is_quoted_for_a_shell() -> None:
    assert show_command("voice", ["my recordings", "--out", "data/$(id)"]) == "overtone voice 'my recordings' --out 'data/$(id)'"
