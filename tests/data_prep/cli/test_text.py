"""`overtone text`: every row is counted, output is deterministic, and the folder appears completely or not at all."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.chats import chat_file_search
from overtone.data_prep.cli import text
from overtone.finetune.storage import files
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.llm_grpo.prompt_rows import PromptProcessor, read
from tests.data_prep.chats.test_chat_file_readers import write
from tests.finetune import fake_hub
from tests.recipes.llm_sft import families

SPLITS = (("train", 0), ("test", 100))
ROOT = Path(__file__).resolve().parents[3]


def chats(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"What is {number} + 1?"}, {"role": "assistant", "content": str(number + 1)}]}
        for number in range(start, start + count)
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(*arguments: object) -> int:
    return text.main([str(word) for word in arguments])


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_dataset_on_the_hub_is_read_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files_of = {f"data/{split}-00000.jsonl": write(tmp_path / "rows.jsonl", chats(20, start)).read_bytes() for split, start in SPLITS}
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        hub.repositories["datasets/me/chats"] = files_of | {
            "README.md": b"# chats",
            "load.py": b"raise SystemExit",
            "dataset_infos.json": b"{}",
        }
        assert run("me/chats", "--out", tmp_path / "out", "--val-share", "0") == 0
        assert run("me/none", "--out", tmp_path / "none") == 2
    printed = capsys.readouterr()
    assert "me/chats: not read, since they are not of the split train: data/test-00000.jsonl\n" in printed.out
    rows = lines(tmp_path / "out" / "train.jsonl")
    assert [row["messages"] for row in rows] == [row["messages"] for row in chats(20)]
    assert rows[0]["source"] == "train-00000.jsonl:1"
    assert "source me/none: no such file or folder, and the download from the hub failed: the hub has no such repository" in printed.err
    assert not list((tmp_path / "hf").rglob("*.py"))


def test_every_row_is_kept_or_rejected_with_place_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = chats(40)
    bad: list[Any] = [{"messages": [{"role": "user", "content": "?"}]}, {"text": "lost"}, good[3], {**good[4], "id": 9}]
    path = write(tmp_path / "chats.jsonl", [*good, *bad])
    assert run(path, "--out", tmp_path / "out", "--val-share", "0.3") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["read"] == 44 == summary["train"] + summary["val"] + summary["rejected"] and summary["rejected"] == 4
    train, val, rejects = (lines(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "val", "rejects"))
    assert (len(train), len(val)) == (summary["train"], summary["val"]) and 4 <= len(val) <= 20
    assert [each["source"] for each in rejects] == [f"chats.jsonl:{line}" for line in (41, 42, 43, 44)]
    assert rejects[0]["reason"] == "there is no message of the assistant" and rejects[2]["reason"] == "the same as chats.jsonl:4"
    assert rejects[3]["reason"] == "the same as chats.jsonl:5", "an id beside the messages makes no other conversation"
    assert sorted(json.dumps(row["messages"]) for row in train + val) == sorted(json.dumps(row["messages"]) for row in good)
    printed = capsys.readouterr().out
    assert "rejected 2: the same as another" in printed and "rejected 1: no known shape" in printed
    made = tmp_path / "out"
    assert printed.splitlines()[-1].endswith(f"--data.train {made / 'train.jsonl'} --data.val {made / 'val.jsonl'}")


def test_invisible_characters_of_chats_stay_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = chats(8)
    hidden = [{"messages": [{"role": "user", "content": "a\u00adb\u00adc"}, {"role": "assistant", "content": "\u202eabc می\u200cخواهم"}]}]
    path = write(tmp_path / "chats.jsonl", [*made, *hidden])
    assert run(path, "--out", tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["rows_with_invisible_characters"] == {"soft hyphens": 1, "directional marks": 1}
    written = [row["messages"] for name in ("train", "val") for row in lines(tmp_path / "out" / f"{name}.jsonl")]
    assert hidden[0]["messages"] in written
    assert "rows with invisible characters, which stay as they are: 1" in capsys.readouterr().out


def test_rows_that_were_decoded_wrongly_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ["It was dÃ©jÃ\u00a0 vu.", "Lost \ufffd letters", "It is déjà vu: \\u00e9, a?b:c"]
    rows = [{"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": each}]} for each in answers]
    assert run(write(tmp_path / "chats.jsonl", [*chats(8), *rows]), "--out", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows_decoded_wrongly"] == 2
    assert "rows that look decoded wrongly (such as Ã© for é, or U+FFFD), which stay as they are: 2" in capsys.readouterr().out


def test_output_is_deterministic_and_added_rows_move_no_other_row_between_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", chats(60))
    for name in ("one", "two"):
        assert run(path, "--out", tmp_path / name, "--val-share", "0.2") == 0
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    assert run(write(tmp_path / "chats.jsonl", chats(90)), "--out", tmp_path / "two", "--val-share", "0.2") == 0
    before, after = ({row["source"] for row in lines(tmp_path / name / "val.jsonl")} for name in ("one", "two"))
    assert before and before == {place for place in after if int(place.partition(":")[2]) <= 60}


def test_conversations_with_the_same_first_question_are_in_one_split(tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{number // 4}", "completion": str(number)} for number in range(80)]
    assert run(write(tmp_path / "a.csv", rows), "--out", tmp_path / "out", "--val-share", "0.4") == 0
    train, val = ({row["prompt"] for row in lines(tmp_path / "out" / f"{name}.jsonl")} for name in ("train", "val"))
    assert train and val and not train & val


def test_a_file_of_another_kind_is_refused_with_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other = write(tmp_path / "a.jsonl", chats(3)), write(tmp_path / "b.jsonl", [{"query": "x", "reply": "y"}] * 3)
    other.write_text(other.read_text() + "broken\n")
    assert run(good, other, "--out", tmp_path / "out") == 2
    assert "b.jsonl: its rows have no known shape" in (printed := capsys.readouterr().err) and "its keys are query, reply" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_nothing_to_train_on_is_an_error_with_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": str(number)}]} for number in range(3)])
    assert run(path, "--out", tmp_path / "out") == 2
    assert "no training rows among 3 rows: 3 there is no message of the assistant" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_empty_validation_split_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "a.jsonl", chats(2)), "--out", tmp_path / "out", "--val-share", "0.001") == 0
    assert "there is no val.jsonl" in capsys.readouterr().out and not (tmp_path / "out" / "val.jsonl").exists()


def test_only_a_folder_of_this_command_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", chats(5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    assert run(path, "--out", tmp_path / "mine") == 2
    assert "was not created by overtone text" in capsys.readouterr().err and (tmp_path / "mine" / "letters.txt").read_text() == "dear"
    assert run(path, "--out", tmp_path / "out") == 0 and run(path, "--out", tmp_path / "out") == 0


def test_a_failing_disk_leaves_the_older_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", chats(5))
    assert run(path, "--out", tmp_path / "out") == 0
    before = everything(tmp_path / "out")

    def full(operation: str, at: Path) -> None:
        if at.name == "summary.json":
            raise OSError(28, "No space left on device")

    with files.watch(full), pytest.raises(OSError, match="No space"):
        text.write_dataset(chat_file_search.find_sources([path]), tmp_path / "out", text.TextOptions())
    assert everything(tmp_path / "out") == before and sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "out"]


KILLED = """
import os, signal, sys
from overtone.data_prep.__main__ import main
from overtone.finetune.storage import files
def kill(operation, path):
    if path.name == "summary.json":
        os.kill(os.getpid(), signal.SIGKILL)
with files.watch(kill):
    main(["text", *sys.argv[1:]])
"""


def test_a_killed_run_leaves_no_folder_and_the_next_one_removes_its_temporary_files(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", chats(40))
    command = [sys.executable, "-c", KILLED, str(path), "--out", str(tmp_path / "out")]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert [each for each in tmp_path.glob(".out.tmp-*/*") if each.stat().st_size] and not (tmp_path / "out").exists()
    assert run(path, "--out", tmp_path / "out") == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["chats.jsonl", "out"]


@pytest.mark.parametrize(("rows", "val"), [(5, 0), (6, 2), (40, 4), (60, 5)])
def test_a_small_share_of_few_rows_still_validates(rows: int, val: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2 % of 40 rows were none, and the next command named a val.jsonl that did not exist."""
    path = write(tmp_path / "a.jsonl", chats(rows))
    assert run(path, "--out", tmp_path / "out", "--val-share", "0.001") == 0
    printed, summary = capsys.readouterr().out, json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["val"], summary["train"]) == (val, rows - val)
    assert ("--data.val" in printed) == (val > 0)
    if val:
        assert len(lines(tmp_path / "out" / "val.jsonl")) == val and summary["val_rows_at_least"] == val
        assert f"0% of so few rows are fewer than {val}, so up to {val} validate" in printed
    assert run(path, "--out", tmp_path / "none", "--val-share", "0") == 0 and not (tmp_path / "none" / "val.jsonl").exists()


@pytest.mark.parametrize(("option", "value"), [("--val-share", "-0.1"), ("--val-share", "1"), ("--val-share", "nan"), ("--val-rows", "-1")])
def test_an_impossible_validation_size_is_refused(tmp_path: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "a.jsonl", chats(2)), "--out", tmp_path / "out", option, value) == 2
    assert f"{option} {value}" in capsys.readouterr().err


def test_the_validation_size_is_exact_and_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alike = [{"prompt": "Always this", "completion": str(number)} for number in range(30)]
    path = write(tmp_path / "a.jsonl", [*chats(50), *alike])
    for name in ("one", "two"):
        assert run(path, write(tmp_path / "again.jsonl", chats(50)), "--out", tmp_path / name, "--val-rows", 7) == 0
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert (summary["val"], summary["train"], summary["rejected"], summary["val_rows"]) == (7, 73, 50, 7) and "val_share" not in summary
    assert len(lines(tmp_path / "one" / "val.jsonl")) == 7
    assert {row["prompt"] for row in lines(tmp_path / "one" / "train.jsonl") if "prompt" in row} == {"Always this"}
    capsys.readouterr()
    assert run(write(tmp_path / "b.jsonl", alike), "--out", tmp_path / "two", "--val-rows", 7) == 0
    assert "every group of rows with the same first question has more than 7 rows, so there is no val.jsonl" in capsys.readouterr().out
    assert run(path, "--out", tmp_path / "two", "--val-rows", 100) == 2
    assert "no training rows left: all 80 rows went to validation" in capsys.readouterr().err
    assert run(path, "--out", tmp_path / "two", "--val-rows", 7, "--val-share", 0.1) == 2
    assert "argument --val-share: not allowed with argument --val-rows; `overtone text --help`" in capsys.readouterr().err


def test_a_row_in_two_files_is_kept_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (write(tmp_path / name / "chats" / "a.jsonl", chats(5)) for name in ("one", "two"))
    assert run(one, one, one.parent, two.parent, "--out", tmp_path / "out", "--val-share", 0) == 0
    assert [row["source"] for row in lines(tmp_path / "out" / "train.jsonl")] == [f"one/chats/a.jsonl:{line}" for line in range(1, 6)]
    rejects = lines(tmp_path / "out" / "rejects.jsonl")
    assert [(row["source"], row["reason"]) for row in rejects] == [
        (f"two/chats/a.jsonl:{line}", f"the same as one/chats/a.jsonl:{line}") for line in range(1, 6)
    ]
    printed = capsys.readouterr().out
    assert "from one/chats/a.jsonl (5), two/chats/a.jsonl (5)" in printed and "skipped: 2 that had been read already" in printed


def test_unused_files_and_keys_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "id": number, "topic": "" if number else "sums", "note": None} for number, row in enumerate(chats(5))]
    write(tmp_path / "chats" / "a.jsonl", rows)
    (tmp_path / "chats" / "empty.jsonl").write_text("")
    (tmp_path / "chats" / "README.md").write_text("Chats.")
    (tmp_path / "chats" / "b.jsonl.zst").write_text("")
    assert run(tmp_path / "chats", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "sources without rows: chats/empty.jsonl" in printed and "skipped: 1 .jsonl.zst, 1 .md" in printed
    assert "unused keys, dropped: id (5 rows), topic (1 row)" in printed
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["keys_left_out"] == {"id": 5, "topic": 1} and summary["passed_over"] == {".jsonl.zst": 1, ".md": 1}
    assert summary["sources"] == {"chats/a.jsonl": 5, "chats/empty.jsonl": 0}


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("chats/out", "is inside the source .*chats, so the next run would read this output"),
        ("chats", "would overwrite the source"),
        (".", "would overwrite the source"),
        ("link", "would overwrite the source"),
        ("chats/a.jsonl", "is inside|would overwrite the source"),
        ("other.txt", "exists and was not created by overtone text"),
        ("other.txt/out", "cannot be created .*; choose another folder"),
        ("x" * 300, "cannot be created .File name too long"),
    ],
)
def test_an_output_folder_that_would_overwrite_something_is_refused(
    tmp_path: Path, out: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "chats" / "a.jsonl", chats(5))
    (tmp_path / "other.txt").write_text("dear")
    (tmp_path / "link").symlink_to("chats")
    before = sorted(tmp_path.rglob("*"))
    assert run(tmp_path / "chats", "--out", tmp_path / out) == 2
    assert re.search(message, capsys.readouterr().err) and sorted(tmp_path.rglob("*")) == before


def test_an_output_folder_that_is_also_the_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "a.jsonl", chats(5)), "--out", tmp_path / "out") == 0
    before = everything(tmp_path / "out")
    assert run(tmp_path / "out" / "train.jsonl", "--out", tmp_path / "out") == 2
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "old.jsonl").symlink_to("../out/train.jsonl")
    assert run(tmp_path / "more", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.count("would overwrite the source") == 2 and everything(tmp_path / "out") == before


def test_an_empty_folder_and_a_link_to_a_folder_can_be_filled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chats(5))
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    for _ in range(2):
        assert run(path, "--out", tmp_path / "out") == 0
        assert (tmp_path / "out").is_symlink() and lines(tmp_path / "disk" / "train.jsonl")


@pytest.mark.parametrize("other", [chats(51), chats(49), chats(50, start=1), [{"messages": []}] * 50])
def test_input_files_that_change_during_the_run_are_reported(tmp_path: Path, other: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", chats(50))

    def change(operation: str, at: Path) -> None:
        if at.name == "train.jsonl" and operation == "rename":
            write(path, other)

    with files.watch(change):
        assert run(path, "--out", tmp_path / "out", "--val-share", 0.3) == 2
    assert "the input files changed while they were being read" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_conversation_with_tools_is_kept_unchanged(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "user", "content": "Rain in Oslo?"},
        {"role": "assistant", "content": "", "reasoning_content": "I had better look.", "tool_calls": [call]},
        {"role": "tool", "content": "dry", "tool_call_id": "c1", "name": "weather"},
        {"role": "assistant", "content": "No."},
    ]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"default": None}}}]
    empty = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi.", "tool_calls": [], "name": None}]
    path = write(tmp_path / "a.jsonl", [{"messages": messages, "tools": tools}, {"messages": empty, "tools": []}])
    assert run(path, "--out", tmp_path / "out", "--val-share", 0) == 0
    first, second = lines(tmp_path / "out" / "train.jsonl")
    assert first == {"messages": messages, "tools": tools, "source": "a.jsonl:1"}
    assert second == {"messages": chat_of(empty), "source": "a.jsonl:2"}, "an empty list of calls is none: some templates ask for the key"


def chat_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if value} for message in messages]


def test_pictures_weights_pairs_and_stray_files_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
    rows = [
        {"messages": [{"role": "user", "content": "<image>\nWhat is it?"}, answer]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, answer]},
        {"messages": [question, answer], "images": ["a.png"]},
        {"messages": [question, {**answer, "weight": 0}]},
        {"messages": [question, {**answer, "weight": 0}, question, answer]},
        {"prompt": "How?", "chosen": "So.", "rejected": "No."},
        {"messages": [question, {"role": "user", "content": "Really?"}, answer]},
    ]
    write(tmp_path / "in" / "a.jsonl", rows)
    for name in ("config.json", "dataset_infos.json"):
        (tmp_path / "in" / name).write_text('{"model_type": "x"}')
    assert run(tmp_path / "in", "--out", tmp_path / "one", "--val-share", 0) == 0
    printed = capsys.readouterr().out
    for line in (
        "skipped: 1 config.json, 1 dataset_infos.json",
        "rejected 1: message 1 refers to an image, audio or video by <image>, which a text model cannot use (in/a.jsonl:1)",
        "rejected 1: messages[0].content[0] must be a part of the type text with its text and nothing else, found 'image_url'",
        "rejected 1: it has images, which a text model cannot use: it would learn to invent what it shows (in/a.jsonl:3)",
        "rejected 1: every answer has weight 0, so nothing would be learned (in/a.jsonl:4)",
        "rejected 1: messages 1 and 2 both have the role user; --join-turns joins them (in/a.jsonl:7)",
        "1 preference pair: the chosen answer is trained on, the rejected one is not used",
        "1 answer with weight 0: read, but not learned",
    ):
        assert line in printed
    assert lines(tmp_path / "one" / "train.jsonl")[0]["messages"][1] == {**answer, "weight": 0}
    assert run(tmp_path / "in", "--out", tmp_path / "two", "--val-share", 0, "--join-turns") == 0
    assert "1 message joined to the one before (--join-turns)" in capsys.readouterr().out
    assert lines(tmp_path / "two" / "train.jsonl")[-1]["messages"][0]["content"] == "Why?\n\nReally?"


def test_messages_are_read_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"type": "text", "text": "It is "}, {"type": "text", "text": "Oslo."}]
    question, answer = {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "So."}
    rows: list[dict[str, Any]] = [
        {"messages": [{**question, "mood": "sad"}, {"role": "assistant", "content": parts}]},
        {"messages": [question, {**answer, "loss": False}, question, answer]},
        {"messages": [question, {**answer, "mask": 1}]},
        {"messages": [question, answer], "loss_mask": [0, 1]},
    ]
    assert run(write(tmp_path / "rows.jsonl", rows), "--out", tmp_path / "out", "--val-share", 0) == 0
    first, second = lines(tmp_path / "out" / "train.jsonl")
    assert first["messages"] == [{**question, "mood": "sad"}, {"role": "assistant", "content": "It is Oslo."}]
    assert second["messages"] == [question, {**answer, "weight": 0}, question, answer]
    printed = capsys.readouterr().out
    for line in (
        "rejected 1: messages[1].mask is not supported: some datasets mark",
        "rejected 1: its loss_mask says what is learned",
        "keys of messages that only a chat template which names them reads: mood (1 row)",
        "1 answer with weight 0: read, but not learned",
    ):
        assert line in printed


PAIR = {"prompt": "Why?", "chosen": "Because.", "rejected": "No.", "score_chosen": 8, "score_rejected": 3, "id": "7"}


def test_pairs_and_labels_are_written_and_what_is_refused_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [PAIR, {**PAIR, "prompt": "How?"}, {**PAIR, "rejected": "Because. "}, {**PAIR, "score_chosen": 3}, {**PAIR, "id": "8"}]
    write(tmp_path / "in" / "a.jsonl", rows)
    assert run(tmp_path / "in", "--rows", "pairs", "--out", tmp_path / "pairs", "--val-share", 0) == 0
    printed = capsys.readouterr().out
    for line in (
        "5 rows read (2 preference): 2 to train on, 0 to validate on, 3 rejected",
        "rejected 1: chosen and rejected differ only in spaces, or in keys that chat templates drop, so the pair has no preference",
        "rejected 1: its score_chosen and score_rejected are equal, so the pair has no preference",
        "rejected 1: the same as another",
        "unused keys, dropped: id (2 rows)",
        "overtone train --recipe llm_dpo",
    ):
        assert line in printed
    assert "the rejected one is not used" not in printed and "objective kto" not in printed
    asked, (chosen, rejected) = (
        {"role": "user", "content": "Why?"},
        ({"role": "assistant", "content": text} for text in ("Because.", "No.")),
    )
    expected = {"prompt": [asked], "chosen": [chosen], "rejected": [rejected], "source": "in/a.jsonl:1"}
    assert lines(tmp_path / "pairs" / "train.jsonl")[0] == expected
    summary = json.loads((tmp_path / "pairs" / "summary.json").read_text())
    assert summary["rows"] == "pairs" and summary["rejected"] == sum(summary["reasons"].values()) == 3
    labelled = [{"prompt": [asked], "completion": [chosen], "label": True}, {"prompt": "Why?", "completion": "No."}]
    write(tmp_path / "labels" / "a.jsonl", [*labelled, {"messages": [chosen], "label": True}])
    assert run(tmp_path / "labels", "--rows", "labels", "--out", tmp_path / "kto", "--val-share", 0) == 0
    printed = capsys.readouterr().out
    assert "rejected 1: no label or kto_tag" in printed and "rejected 1: it has no question before its answer" in printed
    assert "overtone train --recipe llm_dpo --options.objective kto" in printed
    assert run(tmp_path / "in", "--rows", "pairs", "--shape", "alpaca", "--out", tmp_path / "x") == 2
    assert "--shape alpaca is for conversations; remove it, or --rows pairs" in capsys.readouterr().err


def test_prompts_keep_what_rewards_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1), "level": number} for number in range(20)]
    write(tmp_path / "in" / "a.jsonl", [*rows, rows[0], {**rows[0], "answer": "one"}, {"question": "Why?"}])
    assert run(tmp_path / "in", "--rows", "prompts", "--out", tmp_path / "out", "--val-rows", 4) == 0
    printed = capsys.readouterr().out
    for line in (
        "23 rows read (21 prompts): 17 to train on, 4 to validate on, 2 rejected",
        "rejected 1: the same as another",
        "rejected 1: no answer, which the rewards need (--reward-keys); its keys are question",
        "unused keys, dropped: level (21 rows)",
        "overtone train --recipe llm_grpo --options.rewards.exact_match.weight 1 --model.source",
    ):
        assert line in printed
    train, val = (lines(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "val"))
    assert len(val) == 4 and all(row.keys() == {"prompt", "answer", "source"} for row in [*train, *val])
    first = [row for row in [*train, *val] if row["prompt"][0]["content"] == "What is 0 + 1?"]
    assert [row["answer"] for row in first] == ["1", "one"] and (first[0] in val) == (first[1] in val), "with the same question"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"] == "prompts"
    assert run(tmp_path / "in", "--rows", "prompts", "--reward-keys", "answer,level", "--out", tmp_path / "out", "--val-share", 0) == 0
    assert "unused keys" not in capsys.readouterr().out and lines(tmp_path / "out" / "train.jsonl")[3]["level"] == 3
    processor: Any = PromptProcessor(families.tokenizer("chatml"), Options.model_validate({"rewards": {"exact_match": {}}}), None)
    assert len(read(lines(tmp_path / "out" / "train.jsonl")[0], processor, tmp_path)["ids"]) > 0


def test_worked_solutions_are_reported_and_not_compared_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"What is {number} + 1?", "answer": f"It is one more.\n#### {number + 1}"} for number in range(3)]
    write(tmp_path / "in" / "a.jsonl", [*rows, {"question": "Why?", "answer": "4"}])
    assert run(tmp_path / "in", "--rows", "prompts", "--out", tmp_path / "out", "--val-share", 0) == 0
    printed = capsys.readouterr().out
    assert "answers that are neither a number nor one line of text in 3 rows: the reward exact_match would be 0" in printed
    assert "overtone train --recipe llm_grpo --options.rewards.functions rewards.py" in printed
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows_with_answers_of_several_lines"] == 3


def test_columns_chooses_between_a_prompt_and_a_whole_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    write(tmp_path / "in" / "a.jsonl", [{"messages": turns, "prompt": "Why?", "answer": "So."}])
    given = (tmp_path / "in", "--rows", "prompts", "--out", tmp_path / "out", "--val-share", 0)
    assert run(*given) == 2
    assert "to read prompt instead, give --columns prompt=prompt" in capsys.readouterr().err
    assert run(*given, "--columns", "prompt=prompt") == 0
    assert lines(tmp_path / "out" / "train.jsonl")[0]["prompt"] == turns[:1]
    assert "unused keys, dropped: messages (1 row)" in capsys.readouterr().out


def test_reward_keys_are_read_from_tables_and_refused_without_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text('frage,schema\nWas?,"{""type"": ""integer""}"\n')
    given = (tmp_path / "a.csv", "--columns", "prompt=frage", "--reward-keys", "schema", "--val-share", 0)
    assert run(*given, "--rows", "prompts", "--out", tmp_path / "out") == 0
    assert "--recipe llm_grpo --options.rewards.json_schema.weight 1" in capsys.readouterr().out
    assert lines(tmp_path / "out" / "train.jsonl")[0]["schema"] == {"type": "integer"}
    assert run(*given, "--out", tmp_path / "x") == 2
    assert "--reward-keys is for --rows prompts; give that too, or remove it" in capsys.readouterr().err
    assert run(tmp_path / "a.csv", "--rows", "prompts", "--reward-keys", "prompt", "--out", tmp_path / "x") == 2
    assert "--reward-keys prompt: rows have this key anyway" in capsys.readouterr().err
    assert run(*given[:3], "--rows", "prompts", "--reward-keys", "", "--out", tmp_path / "x", "--val-share", 0) == 0
    assert "--options.rewards.functions rewards.py" in capsys.readouterr().out


def test_rows_without_pairs_name_their_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"question": "Why?", "answer": "Because."}])
    assert run(tmp_path / "in", "--rows", "pairs", "--out", tmp_path / "x") == 2
    assert "no chosen and no rejected, which a pair has; its keys are question, answer" in capsys.readouterr().err
