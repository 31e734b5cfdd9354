"""Raw texts become pieces without losing a character, and nothing that is no text is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.chats.chat_file_readers import ReaderOptions, read_rows
from overtone.data_prep.chats.chat_file_search import find_sources
from overtone.data_prep.chats.conversation_formats import detect_shape
from overtone.data_prep.chats.raw_texts import RawTexts, check_text, convert_text, split_text
from overtone.data_prep.cli import text
from overtone.finetune.errors import UserError


@given(st.text(alphabet="ab .!?。\n\r\u2028é", max_size=400), st.integers(2, 60))
def test_pieces_are_the_text(content: str, most: int) -> None:
    pieces = split_text(content, most)
    assert "".join(pieces) == content
    assert all(len(piece.rstrip()) <= most for piece in pieces) and all(pieces[:-1])
    assert pieces[-1].strip() or not content.strip(), "the last piece is a row, so the document has an end"


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        ("One. Two.\n\nThree. Four.\nFive six", ["One. Two.\n\n", "Three. Four.\n", "Five six"]),
        ("aaa bbb. ccc ddd eee", ["aaa bbb. ", "ccc ddd eee"]),
        ("aaaaaaa bbbbb cccccc", ["aaaaaaa bbbbb ", "cccccc"]),
        ("x" * 33, ["x" * 15, "x" * 15, "xxx"]),
        ("你好世界你好世界。再见再见再见。", ["你好世界你好世界。", "再见再见再见。"]),
        ("", [""]),
    ],
)
def test_a_piece_ends_at_the_best_place(content: str, pieces: list[str]) -> None:
    assert split_text(content, 15) == pieces


def run(tmp_path: Path, *words: str) -> list[dict[str, object]]:
    assert text.main([str(tmp_path / "my books"), "--raw", "--out", str(tmp_path / "out"), *words]) == 0
    written = [path for path in (tmp_path / "out").iterdir() if path.name in ("train.jsonl", "val.jsonl")]
    return [json.loads(line) for path in written for line in path.read_text().splitlines()]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "my books"
    folder.mkdir()
    (folder / "long.txt").write_text("".join(f"Sentence {number}. And more.\n{'' if number % 5 else chr(10)}" for number in range(60)))
    (folder / "short.md").write_bytes(b"\xef\xbb\xbf# Title\r\n\r\nText\r\n")
    (folder / "utf16.txt").write_bytes("Text".encode("utf-16"))
    rows = [{"text": "A row.", "url": "x"}, {"text": "A row."}, {"text": "  "}, {"body": "none"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def test_documents_and_columns_become_rows(tmp_path: Path, books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(tmp_path, "--piece-characters", "400")
    by_source = {str(row["source"]): row for row in rows}
    pieces = sorted((row for name, row in by_source.items() if "long.txt" in name), key=lambda row: int(str(row["source"]).split("#")[1]))
    assert "".join(str(row["text"]) for row in pieces) == (books / "long.txt").read_text()
    assert [row["ends"] for row in pieces] == [False] * (len(pieces) - 1) + [True] and len(pieces) > 3
    assert by_source["my books/short.md:1"]["text"] == "# Title\n\nText\n"
    assert by_source["my books/rows.jsonl:1"] == {"text": "A row.", "ends": True, "source": "my books/rows.jsonl:1"}
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert {each["source"]: each["reason"].split(";")[0] for each in rejects} == {
        "my books/rows.jsonl:2": "the same as my books/rows.jsonl:1",
        "my books/rows.jsonl:3": "its text is empty",
        "my books/rows.jsonl:4": "no text, so name its column with --columns text=COLUMN",
        "my books/utf16.txt:1": "not text in UTF-8 (byte 0)",
    }
    printed = capsys.readouterr().out
    assert "url (1 row)" in printed and "--model.source Qwen/Qwen3-1.7B-Base" in printed and "llm_sft" in printed


def test_written_rows_keep_their_ends_when_they_are_read_again(tmp_path: Path, books: Path) -> None:
    first = run(tmp_path, "--piece-characters", "400", "--val-share", "0")
    (tmp_path / "out").rename(tmp_path / "before")
    assert text.main([str(tmp_path / "before" / "train.jsonl"), "--raw", "--out", str(tmp_path / "out"), "--val-share", "0"]) == 0
    again = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert [(row["text"], row["ends"]) for row in again] == [(row["text"], row["ends"]) for row in first]
    assert not all(row["ends"] for row in again)


def test_another_column_is_named(tmp_path: Path, books: Path) -> None:
    rows = run(tmp_path, "--columns", "text=body")
    assert [row["text"] for row in rows if "rows.jsonl" in str(row["source"])] == ["none"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--raw", "--shape", "alpaca"], "remove it, or --raw"),
        (["--raw", "--join-turns"], "--join-turns is for conversations"),
        (["--raw", "--piece-characters", "99"], "expected 100 or more"),
        (["--piece-characters", "400"], "--piece-characters is for --raw"),
        (["--raw", "--rows", "pairs"], "not allowed with"),
        (["--raw", "--as", "Bob"], "--as is for chats that WhatsApp exported"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], part: str, tmp_path: Path, books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text.main([str(books), "--out", str(tmp_path / "out"), *words]) == 2
    assert part in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_without_raw_documents_are_not_read(books: Path) -> None:
    assert [source.path.name for source in find_sources([books]).sources] == ["rows.jsonl"]
    assert find_sources([books]).skipped == {".txt": 2, ".md": 1}
    with pytest.raises(UserError, match="or give --raw to learn all of its text"):
        detect_shape({"text": "A row."})
    (found, *_) = read_rows(find_sources([books / "long.txt"], raw=True).sources[0], ReaderOptions(texts=RawTexts(most=10**6)))
    assert found.place == "long.txt:1" and found.row is not None and found.row["ends"] is True


@pytest.mark.parametrize("content", ["", " \n", "a\0b", "\ud800"])
def test_what_cannot_be_learned_is_refused(content: str) -> None:
    with pytest.raises(UserError):
        check_text(convert_text({"text": content}).row)
