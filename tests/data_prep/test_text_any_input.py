"""Whatever a file contains, `overtone text` ends with a training set or with a one-line error."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.chats.chat_messages import is_plain_text, read_messages, read_tools
from overtone.data_prep.cli import text
from overtone.recipes.language.tokenization.sft_tokenization import tokenize_row
from tests.data_prep import make_saved_by_datasets as saved
from tests.data_prep.chats.test_chat_file_readers import write
from tests.recipes.llm_sft.families import tokenizer

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"messages": [{"role": "user", "content": f"ü{number}"}, CALL, {"role": "tool", "content": "t"}], "tools": json.dumps(TOOLS)}
        for number in range(6)
    ],
    "sharegpt": [{"conversations": [{"from": "human", "value": f"{n}"}, {"from": "gpt", "value": "g"}], "id": n} for n in range(6)],
    "alpaca": [{"instruction": f"{number}", "input": "x", "output": "o", "history": [["a", "b"]]} for number in range(6)],
    "completion": [{"prompt": f"{number}", "completion": 'c "x", y\n'} for number in range(6)],
}
SUFFIXES = [".jsonl", ".json", ".parquet", ".jsonl.gz"]
TABLES = [".csv", ".tsv", ".csv.gz"]
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'""',
    b"1e999",
    b"NaN",
    b"-",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
]
PIECES += [
    b"\\ud83d",
    b"\\u0000",
    b"9" * 5000,
    b"[" * 3000,
    b'{"a":' * 2000,
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b'"role"',
    b'"messages"',
    b'"\\ud800"',
]
FILES = 200
ODD: list[Any] = [
    None,
    True,
    3,
    -1.5,
    float("inf"),
    "",
    " ",
    "\n",
    "\ud83d",
    "\0",
    "[]",
    "{}",
    "null",
    "[1]",
    "a" * 5000,
    [],
    {},
    [None],
    [[]],
    [{}],
]
ODD += [
    {"role": "user"},
    {"role": "assistant", "content": "a"},
    "user",
    "function_call",
    "system",
    "tool",
    [["a", "b"]],
    {"\ud83d": 1},
    {"": {}},
]
ODD += [json.loads("[" * 60 + "]" * 60), "[" * 60 + "]" * 60, "[" * 900 + "]" * 900, json.dumps([{"role": "user", "content": "x"}])]
ROWS = 300
"""Of each shape."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind and shape, and folders that `datasets` saved."""
    folder = tmp_path_factory.mktemp("sound")
    for shape, rows in SHAPES.items():
        for suffix in SUFFIXES + (TABLES if shape == "completion" else []):
            write(folder / f"{shape}{suffix}", rows)
    shutil.copytree(saved.HERE, folder, dirs_exist_ok=True)
    return folder


def broken(chance: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, gone, doubled, or replaced by what other files hold."""
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice((1, 2, 8, 64, len(data))))
        between = chance.choice((b"", data[begin:end] * 2, chance.choice(PIECES), bytes([chance.randrange(256)])))
        data = data[:begin] + between + data[chance.choice((begin, end)) :]
    return data


def test_intact_files_are_read_completely(sound: Path, tmp_path: Path) -> None:
    assert text.main([str(sound), "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(summary["sources"]) == len(SHAPES) * len(SUFFIXES) + len(TABLES) + 3
    assert set(summary["reasons"]) == {"the same as another"} and set(summary["shapes"]) == set(SHAPES)


def damaged(sound: Path, victim: Path, number: int, place: Path) -> Path:
    """A copy of what holds the victim, damaged as the number says. Returns what to give to the verb."""
    chance, top = random.Random(number), victim.parts[0]
    (shutil.copytree if (sound / top).is_dir() else shutil.copy)(sound / top, place / top)
    data = (sound / victim).read_bytes()
    if victim.suffix == ".gz" and chance.random() < 0.5:
        (place / victim).write_bytes(gzip.compress(broken(chance, gzip.decompress(data)), mtime=0))
    else:
        (place / victim).write_bytes(broken(chance, data))
    return place / top


def test_damaged_files_end_with_success_or_a_one_line_error(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each number makes the same file in every run."""
    victims, codes = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file()), []
    for number in range(FILES):
        (place := tmp_path / str(number)).mkdir()
        given = damaged(sound, victims[number % len(victims)], number, place)
        codes.append(text.main([str(given), "--out", str(tmp_path / "out")]))
        said = capsys.readouterr()
        assert codes[-1] == 0 or (codes[-1] == 2 and said.err.count("\n") == 1), f"file {number}, {given}: {said.err}"
    assert min(codes.count(0), codes.count(2)) > FILES / 5, "both ends are seen"


def odd(chance: random.Random, value: Any) -> Any:
    """The same with something else in one place."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(ODD)
    where = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy = value.copy()
    copy[where] = odd(chance, value[where])
    return copy


def test_odd_rows_are_rejected_or_readable_by_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(0)
    rows = [odd(chance, {**row, "n": number}) for number in range(ROWS) for shape in SHAPES.values() for row in shape[:1]]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert text.main([str(tmp_path / "odd.jsonl"), "--out", str(tmp_path / "out"), "--val-rows", "50"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    kept = [json.loads(line) for name in ("train", "val") for line in (tmp_path / "out" / f"{name}.jsonl").open(encoding="utf-8")]
    assert summary["read"] == len(rows) == len(kept) + summary["rejected"] and len(kept) > 50 < summary["rejected"]
    for row in kept:
        assert is_plain_text(row) or read_messages(row)[0], row
        assert read_tools(row) is None or row["tools"]
    capsys.readouterr().out.encode()


def test_answers_of_kept_rows_are_supervised(sound: Path, tmp_path: Path) -> None:
    """Every shape, tools and their calls included, up to the tokens that training learns."""
    assert text.main([str(sound), "--out", str(tmp_path / "out"), "--val-share", "0"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").open(encoding="utf-8")]
    assert len(rows) == 30 and sum("tools" in row for row in rows) == 6
    for row in rows:
        ids, supervised = tokenize_row(row, tokenizer("qwen3"), "assistant")
        learned = tokenizer("qwen3").decode([id for id, wanted in zip(ids, supervised, strict=True) if wanted])
        turns = row.get("messages", [])
        assert all(turn["content"] in learned for turn in turns if turn["role"] == "assistant"), row
        assert ("completion" not in row or row["completion"] in learned) and ("tools" not in row or '"x": 1' in learned)
