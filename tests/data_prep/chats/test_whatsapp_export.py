"""Chats that WhatsApp exported, in the forms of several phones and regions."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.chats import whatsapp_export
from overtone.data_prep.chats.whatsapp_export import MEDIA, SYSTEM, UNANSWERED, UNUSED, is_exported_chat, read_conversations
from overtone.data_prep.cli import text
from overtone.finetune.errors import UserError

ANDROID = """12/03/2024, 14:00 - Messages and calls are end-to-end encrypted. Tap to learn more.
12/03/2024, 14:05 - Anna: Hi
12/03/2024, 14:05 - Anna: how are you?
it's cold: -3

12/03/2024, 14:06 - Ben: Fine \u2028 thanks
12/03/2024, 14:07 - Ben: <Media omitted>
12/03/2024, 14:07 - Ben: IMG-20240312-WA0001.jpg (file attached)
the sea
12/03/2024, 14:08 - Anna: This message was deleted
12/03/2024, 14:08 - Anna changed the subject to "Plans: trip"
12/03/2024, 14:09 - Ben: And you? <This message was edited>
12/03/2024, 14:10 - Anna: Well
13/03/2024, 08:00 - Ben: Good morning
13/03/2024, 08:01 - Anna: Morning!
13/03/2024, 08:02 - Ben: Coffee?
14/03/2024, 08:02 - Anna: Anyone?
"""


def write(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


def turns(path: Path, person: str = "Ben", pause: float = 6.0) -> list[list[str]]:
    found = read_conversations(path, person, pause).conversations
    return [[f"{turn['role'][0]} {turn['content']}" for turn in conversation.messages] for conversation in found]


def test_a_chat_becomes_conversations_with_the_answers_of_one_person(tmp_path: Path) -> None:
    path = write(tmp_path / "WhatsApp Chat with Anna.txt", ANDROID)
    assert turns(path) == [
        ["u Hi\nhow are you?\nit's cold: -3", "a Fine \u2028 thanks\nAnd you?"],
        ["u Morning!", "a Coffee?"],
    ]
    found = read_conversations(path, "Ben", 6.0)
    assert found.left_out == {SYSTEM: 2, MEDIA: 3, UNUSED: 2, UNANSWERED: 1}
    assert [conversation.line for conversation in found.conversations] == [2, 15]
    kept = sum(len(turn["content"].split("\n")) for conversation in found.conversations for turn in conversation.messages)
    assert kept == 7, "with the line that continues a message"
    assert turns(path, "Anna")[0] == ["u Fine \u2028 thanks\nAnd you?", "a Well"]
    assert len(turns(path, "Ben", 24)) == 1, "a pause that is not longer cuts nothing"


ONE = [["u Hi", "a Ho"]]
FORMS = {
    "iOS": "[12.03.24, 14:05:33] Anna: Hi\n[12.03.24, 14:06:01] Ben: Ho\n",
    "iOS with marks": "\u200e[12.03.24, 14:04:00] Anna: \u200eMessages and calls are end-to-end encrypted.\n"
    "[12.03.24, 14:05:33] \u202aAnna\u202c: Hi\n"
    "\u200e[12.03.24, 14:05:40] Anna: \u200e<attached: 0001-PHOTO.jpg>\n[12.03.24, 14:06:01] Ben: Ho \u200e<This message was edited>\n",
    "iOS in the US": "[3/12/24, 2:05:33\u202fPM] Anna: Hi\n[3/12/24, 2:06:01\u202fPM] Ben: Ho\n",
    "iOS with line ends of Windows": "[12.03.24, 14:05:33] Anna: Hi\r\n[12.03.24, 14:06:01] Ben: Ho\r\n",
    "Android in the US": "3/12/24, 2:05\u202fPM - Anna: Hi\n3/12/24, 2:06\u202fPM - Ben: Ho\n",
    "Android in Germany": "12.03.24, 14:05 - Anna: Hi\n12.03.24, 14:05 - Anna: <Medien ausgeschlossen>\n12.03.24, 14:06 - Ben: Ho\n",
    "Android in Brazil": "12/03/2024 14:05 - Anna: Hi\n12/03/2024 14:06 - Ben: Ho\n",
    "Android in Mexico": "12/3/2024, 2:05 p. m. - Anna: Hi\n12/3/2024, 2:06 p. m. - Ben: Ho\n",
    "Android in Finland": "12.3.2024 klo 14.05 - Anna: Hi\n12.3.2024 klo 14.06 - Ben: Ho\n",
    "Android in the Netherlands": "12-03-2024 14:05 - Anna: Hi\n12-03-2024 14:06 - Ben: Ho\n",
    "Android in Sweden": "2024-03-12 14:05 - Anna: Hi\n2024-03-12 14:06 - Ben: Ho\n",
    "Android in China": "2024/3/12 下午2:05 - Anna: Hi\n2024/3/12 下午2:06 - Ben: Ho\n",
    "Android in the Czech Republic": "12. 3. 2024 14:05 - Anna: Hi\n12. 3. 2024 14:06 - Ben: Ho\n",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_phones_and_regions_are_read(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / "_chat.txt", FORMS[form])
    assert is_exported_chat(path) and turns(path) == ONE
    (messages,) = whatsapp_export._read_chats(path)
    assert messages[-1].time.replace(second=0) == datetime(2024, 3, 12, 14, 6)


def test_the_order_of_day_and_month_is_that_in_which_time_goes_forward(tmp_path: Path) -> None:
    for stamps in (("1/2/24", "2/1/24", "2/13/24"), ("1/2/24", "3/2/24", "1/3/24")):
        path = write(tmp_path / "a.txt", "".join(f"{stamp}, 10:00 - Anna: Hi\n{stamp}, 10:01 - Ben: Ho\n" for stamp in stamps))
        (messages,) = whatsapp_export._read_chats(path)
        times = [message.time for message in messages]
        assert times == sorted(times) and turns(path) == ONE * 3
    with pytest.raises(UserError, match=r"a\.txt:2: an impossible time"):
        turns(write(tmp_path / "a.txt", "1/2/24, 10:00 - Anna: Hi\n31/31/24, 10:00 - Anna: Hi\n"))


def test_in_a_group_the_others_have_their_names(tmp_path: Path) -> None:
    lines = [("Anna", "Hi"), ("Anna", "all"), ("Cem", "Hello"), ("Ben", "Ho"), ("Cem", "Bye"), ("Ben", "Bye")]
    path = write(tmp_path / "a.txt", "".join(f"12/03/2024, 14:05 - {name}: {text}\n" for name, text in lines))
    assert turns(path) == [["u Anna: Hi\nall\nCem: Hello", "a Ho", "u Cem: Bye", "a Bye"]]


def test_other_texts_and_archives_are_no_exported_chats(tmp_path: Path) -> None:
    assert not is_exported_chat(write(tmp_path / "a.txt", "Anna: Hi\n12/03/2024, 14:05 - Anna: Hi\n"))
    assert not is_exported_chat(write(tmp_path / "b.txt", "")) and not is_exported_chat(write(tmp_path / "c.zip", "PK\x03\x04 rubbish"))
    assert not is_exported_chat(write(tmp_path / "d.txt", "[1] Anna: Hi\n"))


def run(*words: object) -> int:
    return text.main([str(word) for word in words])


def rows(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "train.jsonl").read_bytes().split(b"\n") if line]


def test_a_folder_of_exports_becomes_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := tmp_path / "exports").mkdir()
    write(folder / "WhatsApp Chat with Anna.txt", ANDROID)
    write(folder / "notes.txt", "no chat")
    with zipfile.ZipFile(folder / "WhatsApp Chat - Cem.zip", "w") as archive:
        archive.writestr("_chat.txt", "[12.03.24, 14:05:33] Cem: Hi\n[12.03.24, 14:06:01] Ben: Servus\n")
        archive.writestr("00000001-PHOTO.jpg", b"\xff\xd8")
    write(folder / "z.txt", "12/03/2024, 14:05 - Cem: Hi\n")
    assert run(folder, "--out", tmp_path / "out", "--val-share", 0) == 2
    error = capsys.readouterr().err
    assert (
        "--as NAME is missing" in error
        and "The names are Ben (5 messages), Anna (5 messages), Cem (2 messages)" in error
        and error.count("\n") == 1
    )
    assert run(folder, "--out", tmp_path / "out", "--as", "Bert") == 2
    assert "--as Bert: has written no message. The names are Ben" in capsys.readouterr().err
    assert run(folder, "--out", tmp_path / "out", "--val-share", 0, "--as", "Ben") == 0
    printed = capsys.readouterr().out
    assert [row["messages"][-1]["content"] for row in rows(tmp_path / "out")] == ["Servus", "Fine \u2028 thanks\nAnd you?", "Coffee?"]
    assert rows(tmp_path / "out")[1]["source"] == "exports/WhatsApp Chat with Anna.txt:2"
    assert "skipped: 1 .txt" in printed and f"left out of exported chats: 3 {MEDIA}" in printed and f"2 {SYSTEM}" in printed
    assert "rejected 1: no answer of Ben to a message of another person (exports/z.txt:1)" in printed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--as", "Ben"], "--as is for chats that WhatsApp exported, and the sources have none"),
        (["--pause-hours", "3"], "--pause-hours is for chats"),
    ],
)
def test_options_of_exported_chats_need_one(words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"prompt": "a", "completion": "b"}))
    assert run(path, "--out", tmp_path / "out", *words) == 2 and problem in capsys.readouterr().err
    chat = write(tmp_path / "a.txt", ANDROID)
    assert run(chat, "--out", tmp_path / "out", "--as", "Ben", "--pause-hours", "0") == 2
    assert "--pause-hours 0: expected a number of hours above 0" in capsys.readouterr().err


def test_authors_are_counted_without_placeholders(tmp_path: Path) -> None:
    assert whatsapp_export.count_authors(write(tmp_path / "a.txt", ANDROID)) == Counter({"Anna": 5, "Ben": 4})
