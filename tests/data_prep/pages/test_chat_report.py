"""`overtone report` of chats: every figure is that of the rows, and texts of strangers stay texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from overtone.data_prep import __main__
from overtone.data_prep.pages.chat_report import EXTREMES, is_chat_dataset, read_figures
from overtone.finetune.errors import UserError
from tests.data_prep.conftest import MARKUP
from tests.data_prep.page import Page


def chat(question: str, *answers: str, **extra: Any) -> dict[str, Any]:
    turns = [[{"role": "user", "content": question}, {"role": "assistant", "content": answer}] for answer in answers]
    return {"messages": [message for turn in turns for message in turn], **extra}


def write_dataset(folder: Path, train: list[dict[str, Any]], val: list[dict[str, Any]] | None = None) -> Path:
    folder.mkdir()
    for name, rows in (("train", train), ("val", val or [])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_lengths_turns_shares_and_roles_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [chat("1234", "abcd", "ef"), {"prompt": "abc", "completion": "defghi"}]
    rows[0]["messages"][1]["weight"] = 0
    rows[0]["messages"].insert(0, {"role": "system", "content": "Be brief."})
    figures = read_figures(write_dataset(tmp_path / "chats", rows, [chat("who", "me")]), None)
    assert figures.rows == {"train.jsonl": 2, "val.jsonl": 1}
    whole = "\n".join(message["content"] for message in rows[0]["messages"])
    assert figures.lengths == [len(whole), 10, 6] and figures.turns == [5, 2, 2]
    assert figures.shares == pytest.approx([100 * 2 / len(whole), 60, 100 * 2 / 6]), "an answer of weight 0 is not learned"
    assert figures.learned == 2 + 6 + 2 and figures.characters == sum(figures.lengths)
    assert figures.roles == {"system": 1, "user": 3, "assistant": 3, "prompt": 1, "completion": 1}


def test_arguments_of_tool_calls_count_as_learned(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "Oslo"}}}
    row = {"messages": [{"role": "user", "content": "where"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}
    figures = read_figures(write_dataset(tmp_path / "chats", [row]), None)
    assert figures.learned == len(json.dumps(call)) and "Oslo" in figures.longest[0][2].text


def test_both_answers_of_a_pair_are_counted_and_one_is_learned(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "12"}
    row = {
        "prompt": [asked],
        **{side: [{"role": "assistant", "content": text}] for side, text in (("chosen", "abc"), ("rejected", "defgh"))},
    }
    figures = read_figures(write_dataset(tmp_path / "pairs", [row]), None)
    assert figures.roles == {"user": 1, "assistant": 1, "rejected: assistant": 1}
    assert figures.learned == 3 and figures.lengths == [len("12\nabc\ndefgh")]
    assert is_chat_dataset(tmp_path / "pairs")


def test_nothing_is_learned_from_a_prompt_alone(tmp_path: Path) -> None:
    turns = [{"role": role, "content": "12"} for role in ("user", "assistant", "user")]
    figures = read_figures(
        write_dataset(tmp_path / "prompts", [{"prompt": turns, "answer": "3"}, {"prompt": turns[:1], "answer": 4}]), None
    )
    assert figures.roles == {"user": 3, "assistant": 1} and figures.learned == 0 and figures.characters == len("12\n12\n12" + "12")


def test_repetitions_and_extremes_are_found(tmp_path: Path) -> None:
    rows = [chat(f"question {number} " + "x" * number, f"answer {number}") for number in range(20)]
    rows += [chat("Who are  you?", "I am it."), chat("who ARE you?", "i am it."), chat("Who are you?", "Another.")]
    figures = read_figures(write_dataset(tmp_path / "chats", rows), None)
    assert figures.list_repeated(figures.questions) == [("who ARE you?", 3)]
    assert figures.list_repeated(figures.answers) == [("i am it.", 2)]
    lengths = sorted(figures.lengths)
    assert sorted(size for size, *_ in figures.longest) == lengths[-EXTREMES:]
    assert sorted(-size for size, *_ in figures.shortest) == lengths[:EXTREMES]


def test_a_page_has_the_figures_and_runs_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "chats.jsonl"
    told = [f"Tell me about number {number}, please, in one sentence.{MARKUP * (number == 3)}" for number in range(30)]
    rows = [chat(question, f"It is {number}.") for number, question in enumerate(told)]
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"messages": []}]), encoding="utf-8")
    out = tmp_path / "made"
    assert __main__.main(["text", str(source), "--out", str(out)]) == 0
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "model").mkdir()
    words.save(str(tmp_path / "model" / "tokenizer.json"))
    for _ in range(2):  # the second replaces the first
        assert __main__.main(["report", str(out), "--tokenizer", str(tmp_path / "model")]) == 0
    html = (out / "report.html").read_text(encoding="utf-8")
    figures = read_figures(out, lambda text: len(words.encode(text).ids))
    assert f"{sum(figures.rows.values())} rows, {figures.characters} characters" in html and "<dt>Rejected</dt><dd>" in html
    assert f"<dt>Tokens by model</dt><dd>{int(sum(figures.tokens))}</dd>" in html and figures.tokens != figures.lengths
    assert re.search(r"<td class=\"text\">en</td><td class=\"num\">(2\d|30)</td>", html)
    assert not Page(html).all("script") and MARKUP not in html
    assert html == render_again(out, tmp_path)


def render_again(out: Path, folder: Path) -> str:
    assert __main__.main(["report", str(out), "--tokenizer", str(folder / "model"), "--out", str(folder / "again.html")]) == 0
    return (folder / "again.html").read_text(encoding="utf-8")


def test_the_kind_of_a_dataset_is_read_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_chat_dataset(write_dataset(tmp_path / "bare", [chat("a", "b")])), "rows that another program wrote"
    assert not is_chat_dataset(write_dataset(tmp_path / "voice", [{"audio": "a.wav", "text": "b"}]))
    assert not is_chat_dataset(tmp_path / "nowhere")
    images = write_dataset(tmp_path / "images", [{"image": "a.png", "label": "b"}])
    (images / "summary.json").write_text('{"made_by": "overtone images"}')
    assert __main__.main(["report", str(images)]) == 2
    assert "whose report overtone images has written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([{"messages": [{"role": "user"}]}], (), "train.jsonl:1: messages[0]"),
        ([chat("a", "b")], ("--tokenizer", "HERE"), "tokenizer.json cannot be used"),
        ([chat("a", "b")], ("--tokenizer", "none"), "--tokenizer none: no such folder"),
        ([chat("a", "b")], ("--out", "HERE/mine.html"), "mine.html exists and is not a report, so it would be lost"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_dataset(tmp_path / "chats", rows)
    (tmp_path / "mine.html").write_text("<p>my notes</p>")
    assert __main__.main(["report", str(folder), *(word.replace("HERE", str(tmp_path)) for word in more)]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "<p>my notes</p>" and not (folder / "report.html").exists()


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rows in train.jsonl or val.jsonl"):
        read_figures(write_dataset(tmp_path / "chats", []), None)
