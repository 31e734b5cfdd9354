"""Which names before words are labels of speakers."""

from __future__ import annotations

import pytest

from overtone.data_prep.recordings.speaker_labels import decide_labels, find_label, list_speakers, name_speaker


@pytest.mark.parametrize(
    ("line", "form", "name", "rest"),
    [
        ("[SPEAKER_00]: Hi.", "generic", "SPEAKER_00", "Hi."),
        ("SPEAKER_00: Hi.", "generic", "SPEAKER_00", "Hi."),
        ("(speaker ?) Hi.", "generic", "speaker ?", "Hi."),
        ("Speaker 12 (00:01:02): Hi.", "generic", "Speaker 12", "Hi."),
        ("Sprecher 2: Ja.", "generic", "Sprecher 2", "Ja."),
        ("话者1：你好", "generic", "话者1", "你好"),
        ("Speaker_1> Hi.", "generic", "Speaker_1", "Hi."),
        ("|SPEAKER_00| Hi.", "generic", "SPEAKER_00", "Hi."),
        ("SPEAKER_00 Hi.", "generic", "SPEAKER_00", "Hi."),
        ("SPEAKER_00 - Hi.", "generic", "SPEAKER_00", "Hi."),
        ("anna: hi", "lower", "anna", "hi"),
        ("[Anna]: Hi.", "bracket_colon", "Anna", "Hi."),
        ("（田中）はい", "bracket", "田中", "はい"),
        ("ANNA (V.O.): Hi.", "colon", "ANNA", "Hi."),
        ("Dr. Émile O'Hara: Hi.", "colon", "Dr. Émile O'Hara", "Hi."),
        ("Ludwig van Beethoven 0:12: Ja.", "colon", "Ludwig van Beethoven", "Ja."),
        ("田中：はい", "colon", "田中", "はい"),
        ("田中「はい」", "quote", "田中", "はい"),
    ],
)
def test_forms_of_labels(line: str, form: str, name: str, rest: str) -> None:
    assert find_label(line) == (form, name, rest)


@pytest.mark.parametrize(
    "line",
    [
        "The problem is: no.",
        "12:30: the train",
        "https://a.example",
        "Speaker 1 is loud.",
        "a: b",
        "One, two: three",
        "[laughs] No.",
        "8:15",
        "「はい」",
    ],
)
def test_what_is_no_label(line: str) -> None:
    assert find_label(line) is None


def accepted(*lines: str, texts: int) -> list[str]:
    labels = [label for line in lines if (label := find_label(line))]
    return sorted({label.name for label in labels if decide_labels(labels, texts).is_label(label)})


def test_repetition_decides() -> None:
    assert accepted("Dr. Who: the film", texts=40) == []
    assert accepted(*["Dr. Who: run", "Amy: why?"] * 12, texts=40) == ["Amy", "Dr. Who"], "more than half of the texts"
    assert accepted(*["Dr. Who: run"] * 8, "Amy: why?", texts=40) == ["Dr. Who"], "a fifth of the texts, and each repeated"
    assert accepted(*["Dr. Who: run"] * 7, texts=40) == []
    assert accepted("Anna: a", "Bob: b", texts=2) == ["Anna", "Bob"], "all texts"
    assert accepted("Anna: a", texts=1) == [], "one text repeats nothing"
    assert accepted("ANNA: a", "ANNA: b", "BOB: c", texts=400) == ["ANNA", "BOB"], "capital letters twice"
    assert accepted("NASA: a", texts=400) == []
    assert accepted(*["Note: a"] * 30, *["WARNING: b"] * 10, texts=40) == [], "headings are read aloud"
    assert accepted(*["（田中）はい", "（鈴木）いいえ"] * 3, texts=6) == ["田中", "鈴木"]
    glossary = [f"{name}: a word" for name in ("Ant", "Bee", "Cat", "Dog", "Elk", "Fox", "Ant")]
    assert accepted(*glossary, texts=7) == [], "speakers say more than one thing"
    assert accepted(*["anna: a", "bob: b"] * 3, texts=6) == ["anna", "bob"]
    assert accepted(*["anna: a"] * 3, "so: b", texts=4) == ["anna"]
    assert accepted(*["anna: a", "bob: b"] * 2, texts=4) == [] and accepted(*["so: a"] * 9, texts=20) == []
    assert accepted("[Anna]: a", "SPEAKER_01: b", texts=400) == ["Anna", "SPEAKER_01"], "forms that are nothing else"


def test_what_is_kept_is_described() -> None:
    labels = [find_label("Dr. Who: the film"), find_label("Rome: a city"), find_label("Rome: b")]
    assert decide_labels([one for one in labels if one], 40).kept == ("'Rome:' (2 of 40)", "'Dr. Who:' (1 of 40)")


def test_names_of_speakers() -> None:
    assert list_speakers(["Anna", "ANNA", "Bob"]) == ["Anna", "Bob"]
    assert (name_speaker(["Anna"]), name_speaker(["SPEAKER_00"]), name_speaker([])) == ("Anna", None, None)
