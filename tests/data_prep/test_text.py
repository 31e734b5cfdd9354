"""The whole verb: every row is accounted for, the same files give the same bytes, and a folder appears whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_prep import text
from finetune import files
from tests.data_prep.test_text_sources import write


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
    assert rejects[0]["reason"] == "no message is the assistant's" and rejects[2]["reason"] == "the same as chats.jsonl:4"
    assert rejects[3]["reason"] == "the same as chats.jsonl:5", "an id beside the messages makes no other conversation"
    assert sorted(json.dumps(row["messages"]) for row in train + val) == sorted(json.dumps(row["messages"]) for row in good)
    told = capsys.readouterr().out
    assert "rejected 2: the same as another" in told and "rejected 1: no known shape" in told
    assert f"--data.train {tmp_path / 'out' / 'train.jsonl'}" in told.splitlines()[-1]


def test_the_same_files_give_the_same_bytes_and_added_rows_move_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", chats(60))
    for name in ("one", "two"):
        assert run(path, "--out", tmp_path / name, "--val-share", "0.2") == 0
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    assert run(write(tmp_path / "chats.jsonl", chats(90)), "--out", tmp_path / "two", "--val-share", "0.2") == 0
    before, after = ({row["source"] for row in lines(tmp_path / name / "val.jsonl")} for name in ("one", "two"))
    assert before and before == {place for place in after if int(place.partition(":")[2]) <= 60}


def test_conversations_that_begin_alike_are_on_one_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"Q{number // 4}", "completion": str(number)} for number in range(80)]
    assert run(write(tmp_path / "a.csv", rows), "--out", tmp_path / "out", "--val-share", "0.4") == 0
    train, val = ({row["prompt"] for row in lines(tmp_path / "out" / f"{name}.jsonl")} for name in ("train", "val"))
    assert train and val and not train & val


def test_a_file_of_another_kind_is_refused_with_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other = write(tmp_path / "a.jsonl", chats(3)), write(tmp_path / "b.jsonl", [{"question": "x", "answer": "y"}] * 3)
    assert run(good, other, "--out", tmp_path / "out") == 2
    assert "b.jsonl: its rows have no known shape" in (told := capsys.readouterr().err) and "its keys are question, answer" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_nothing_to_train_on_is_an_error_with_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": str(number)}]} for number in range(3)])
    assert run(path, "--out", tmp_path / "out") == 2
    assert "nothing to train on: of 3 rows, 3 no message is the assistant's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_small_data_may_leave_nothing_to_validate_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "a.jsonl", chats(2)), "--out", tmp_path / "out", "--val-share", "0.001") == 0
    assert "there is no val.jsonl" in capsys.readouterr().out and not (tmp_path / "out" / "val.jsonl").exists()


def test_only_what_it_made_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", chats(5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    assert run(path, "--out", tmp_path / "mine") == 2
    assert "was not made by data_prep text" in capsys.readouterr().err and (tmp_path / "mine" / "letters.txt").read_text() == "dear"
    assert run(path, "--out", tmp_path / "out") == 0 and run(path, "--out", tmp_path / "out") == 0


def test_a_failing_disk_leaves_the_older_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", chats(5))
    assert run(path, "--out", tmp_path / "out") == 0
    before = everything(tmp_path / "out")

    def full(operation: str, at: Path) -> None:
        if at.name == "summary.json":
            raise OSError(28, "No space left on device")

    with files.watch(full), pytest.raises(OSError, match="No space"):
        text.write(text.text_sources.find([path]), tmp_path / "out", None, 0.5)
    assert everything(tmp_path / "out") == before and sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_killed_in_the_middle_it_leaves_nothing_that_looks_done_and_runs_again(tmp_path: Path) -> None:
    path = write(tmp_path / "many.jsonl", chats(20_000))
    command = [sys.executable, "-m", "data_prep", "text", str(path), "--out", str(tmp_path / "out")]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not [each for each in tmp_path.glob(".out.tmp-*/*") if each.stat().st_size] and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL and not (tmp_path / "out").exists()
    assert run(path, "--out", tmp_path / "out") == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["many.jsonl", "out"], "what was left is swept away"


@pytest.mark.parametrize("share", ["-0.1", "1"])
def test_a_share_is_a_part(tmp_path: Path, share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path / "a.jsonl", chats(2)), "--out", tmp_path / "out", "--val-share", share) == 2
    assert "--val-share" in capsys.readouterr().err
