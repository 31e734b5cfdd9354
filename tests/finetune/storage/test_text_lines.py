"""A line ends with a line feed alone, so that whatever writes lines of JSON can be read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep import manifest
from overtone.data_prep.chats.chat_file_readers import read_rows
from overtone.data_prep.chats.chat_file_search import find_sources
from overtone.data_prep.clips.review_decisions import Decision, append_decision, read_decisions
from overtone.data_prep.dataset.manifest_line_reader import read_manifest_lines
from overtone.data_prep.recordings import remote_recordings
from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.data.index_building import Measured, blocks_of, scan_block
from overtone.finetune.storage import files, strict_json
from overtone.finetune.storage.text_lines import read_lines, split_lines
from overtone.recipes.speech import text_inputs
from overtone.recipes.speech.cli import synthesis_manifest
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.serving import blind_trials

ENDS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Where `str.splitlines` ends a line, besides line feed and carriage return."""
TEXT = f"a{ENDS}b\rc\nd\r\ne"


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    assert split_lines("") == [] and split_lines("\n") == [""] and split_lines("a") == ["a"] and split_lines("a\r\n\nb\n") == ["a", "", "b"]
    assert split_lines(TEXT) == [f"a{ENDS}b\rc", "d", "e"]
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert read_lines(tmp_path / "a") == [f"a{ENDS}b\rc", "d", "e"]


def index(path: Path) -> list[str]:
    found: list[str] = []

    def measure(row: dict[str, Any]) -> Measured:
        found.append(row["text"])
        return Measured(1)

    with path.open("rb") as file:
        assert not any(scan_block(measure, path, block).problems for block in blocks_of(file, path))
    return found


JSONL: dict[str, Callable[[Path], list[Any]]] = {
    "training's index": index,
    "overtone text": lambda path: [found.row["text"] for found in read_rows(find_sources([path]).sources[0]) if found.row],
    "dataset manifests": lambda path: [row["text"] for _, row in manifest.read_lines(path)],
    "dataset checks": lambda path: [line.row.text for line in read_manifest_lines(path) if line.row],
    "read_lines": lambda path: [strict_json.loads_object(line)["text"] for line in read_lines(path)],
    "--text-file": lambda path: [line.request.text for line in text_inputs.read_lines(path, SpeechRequest("", None))],
    "the manifest of generate": lambda path: [row["text"] for row in synthesis_manifest.read_manifest(path.parent).values()],
    "a ledger of downloads": lambda path: [*remote_recordings._read_ledger(path).values()],
    "a blind comparison": lambda path: [row["winner"] for row in blind_trials.read_answers(path).values()],
}


@pytest.mark.parametrize("reader", JSONL)
@pytest.mark.parametrize("appended", [False, True])
def test_what_is_written_as_lines_of_json_is_read_again(reader: str, appended: bool, tmp_path: Path) -> None:
    texts = [TEXT, *(f"x{end}y" for end in ENDS), "plain"]
    rows = [
        {"text": text, "audio": "a.wav", "line": number, "name": f"n{number}", "identity": text, "trial": f"t{number}", "winner": text}
        for number, text in enumerate(texts)
    ]
    path = tmp_path / "manifest.jsonl"
    if appended:
        for row in rows:
            files.append_line(path, json.dumps(row, ensure_ascii=False))
    else:
        files.write_jsonl(path, rows)
    assert JSONL[reader](path) == texts


def test_review_decisions_are_read_again(tmp_path: Path) -> None:
    append_decision(tmp_path, Decision(id="a", action="text", text=TEXT))
    append_decision(tmp_path, Decision(id="b", action="reject", note=TEXT))
    found = read_decisions(tmp_path)
    assert found["b"].note == TEXT and found["a"].text == remove_invisible(TEXT)[0]
