"""What nobody speaks is left out of texts, whatever file they come from, and ordinary sentences stay as they are."""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.recordings.removed_text import RemovedText
from overtone.data_prep.recordings.unspoken_text import read_spoken_texts

DOCUMENTS = Path("/usr/share/doc")


def strip(*texts: str) -> list[str]:
    return [one.text for one in read_spoken_texts(texts, RemovedText())[0]]


def name_speakers(*texts: str) -> list[tuple[str, ...]]:
    return [one.speakers for one in read_spoken_texts(texts, RemovedText())[0]]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("{\\an8}{\\pos(1,2)}<i>Hello</i> <font color='red'>you</font><br/>there", "Hello you there"),
        ("<c.yellow>to</c><00:00:02.600><c> my</c>", "to my"),
        ("{\\k20}ka{\\k30}ra", "kara"),
        ("<ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby>です", "漢字です"),
        ("Fish &amp; chips&nbsp;&#39;now&#x27; &amp;quot;yes&amp;quot;", "Fish & chips 'now' \"yes\""),
        ("&lt;i&gt;Hello&lt;/i&gt; &lt;you&gt;", "Hello <you>"),
        ("R&D and AT&T; 2 < 3 and 5 > 4", "R&D and AT&T; 2 < 3 and 5 > 4"),
        ("♪ la la\nla ♪", ""),
        ("Hello. ♪ humming ♪ Bye.", "Hello. Bye."),
        ("# Happy birthday #", ""),
        ("We are #1", "We are #1"),
        ("- Hello.\n- Hi.", "Hello. Hi."),
        ("-Hello.\n–Hi.", "Hello. Hi."),
        ("— Привет.", "Привет."),
        ("-5 degrees", "-5 degrees"),
        ("well-known - and loved", "well-known - and loved"),
        (">> Listen.\n>>> Yes.", "Listen. Yes."),
        ("<laugh> Right </laugh>", "Right"),
        ("Hello 😊👩\u200d👩\u200d👧 world ❤\ufe0f!", "Hello world!"),
        ("Hello (laughs), world. [cough]", "Hello, world."),
        ("It was *really* _very_ good.", "It was really very good."),
        ("light\u00adhouse\u2028keeper", "lighthouse keeper"),
        ("[laughs] ... ", ""),
        ("((he said)) yes ((laughs))", "he said yes"),
        ("* I (laughs) said * no", "* I said * no"),
        ("[phone rings]: Hello?", "Hello?"),
        ("¶ la la ¶", ""),
        ("Yes. [00:01:02] No.", "Yes. No."),
        ("\\h\\hHello\\Nthere\\n- you", "Hello there you"),
        ("[i]Hello[/i] {b}you{/b} [color=red]there[/color]", "Hello you there"),
        ("press [i] now", "press i now"),
        ("[I]t was the man [sic].", "It was the man."),
        ("Subtitles by Anna Smith", ""),
        ("Untertitelung des ZDF, 2020", ""),
        ("Sous-titres réalisés par la communauté d'Amara.org", ""),
        ("Subtitles by the sea are hard to read.", "Subtitles by the sea are hard to read."),
    ],
)
def test_what_is_left_of_one_text(text: str, spoken: str) -> None:
    assert strip(text) == [spoken]


def test_labels_are_read_in_every_form() -> None:
    assert name_speakers("<v Anna>Hi.</v>", "<v.loud Bob>Hi.") == [("Anna",), ("Bob",)]
    assert name_speakers("&gt;&gt; DR. ÉMILE O'HARA: Good day.", ">> Listen: no", "Yes.") == [("DR. ÉMILE O'HARA",), (), ()]
    assert name_speakers("- ANNA: Hi.\n- BOB: Ho.", "- ANNA: Yes.") == [("ANNA", "BOB"), ("ANNA",)]
    assert name_speakers("SPEAKER_00: Hi there. SPEAKER_01: Hello.") == [("SPEAKER_00", "SPEAKER_01")]
    assert name_speakers("**Anna:** Hi.", "**Bob**: Ho.") == [("Anna",), ("Bob",)]
    assert strip("**Anna:** Hi.", "**Bob**: Ho.") == ["Hi.", "Ho."]
    assert strip("<Anna> Hi.", "<Bob> Ho.", "<Anna> Yes.", "<Anna> No.") == ["Hi.", "Ho.", "Yes.", "No."]
    assert strip("[00:00:01] Speaker 1: Hi.", "00:05 Speaker 1: Ho.") == ["Hi.", "Ho."]
    assert strip("0:01 Anna: Hi.", "0:05 Bob: Ho.", "0:09 Anna: Yes.") == ["Hi.", "Ho.", "Yes."]
    assert strip("Anna  0:12", "Hi.", "Bob (0:15)", "Ho.", "Anna  0:17", "Yes.") == ["", "Hi.", "", "Ho.", "", "Yes."]
    assert strip("田中：こんにちは（笑）", "鈴木：はい", "田中：では") == ["こんにちは", "はい", "では"]
    assert strip("田中「こんにちは」", "鈴木「はい」", "田中「では」", "田中「ね」") == ["こんにちは", "はい", "では", "ね"]


@pytest.mark.parametrize(
    "text", ["what the **** is that", "f*** you", "f**k you", "I [unclear] him", "I [indiscernible] him", "Я [неразб.] его"]
)
def test_words_that_a_text_does_not_show_are_missing(text: str) -> None:
    assert read_spoken_texts([text], RemovedText())[0][0].is_incomplete


@pytest.mark.parametrize("text", ["It is **never** late.", "Alle Schüler*innen", "* one", "**Anna** and", "5*4"])
def test_stars_that_hide_no_word(text: str) -> None:
    assert not read_spoken_texts([text], RemovedText())[0][0].is_incomplete


def test_changes_and_missing_words_are_counted() -> None:
    spoken = read_spoken_texts(
        [">> Yes.\n>> No.", "- Yes.\n- No.", "— Да. — Нет.", "I [inaudible] him.", "Yes. [SPEAKER_TURN]"], RemovedText()
    )[0]
    assert [one.changes for one in spoken] == [2, 1, 1, 0, 1]
    assert [one.is_incomplete for one in spoken] == [False, False, False, True, False]


def test_removals_are_counted_by_kind_with_examples() -> None:
    removed = RemovedText()
    read_spoken_texts(["[music]", "<i>A</i> (laughs)", "ANNA: a\u00adb", "ANNA: ♪ la ♪", "😊 c"], removed)
    assert {kind: (one.count, one.examples) for kind, one in removed.list_kinds().items()} == {
        "formatting tags and entities": (2, ()),
        "names of speakers": (2, ("ANNA:",)),
        "sound and mood tags": (2, ("[music]", "(laughs)")),
        "emoji": (1, ("😊",)),
        "soft hyphens": (1, ()),
        "songs and musical notes": (1, ("♪ la ♪",)),
    }


def test_examples_show_no_marks_of_earlier_removals() -> None:
    removed = RemovedText()
    _, decisions = read_spoken_texts(["- Hello. ♪", "[♪♪] Yes, Tom (my ♪ brother) came."], removed)
    shown = [example for one in removed.list_kinds().values() for example in one.examples]
    assert "- Hello." in shown and "\ue000" not in "".join([*shown, *decisions])


def test_decisions_about_ambiguous_texts_are_stated() -> None:
    texts = ["Dr. Who: the film (an old one).", "12:30: the train came.", "Well.", "Yes."]
    spoken, decisions = read_spoken_texts(texts, RemovedText())
    assert [one.text for one in spoken] == texts
    assert decisions == [
        "kept as spoken, since too rare for names of speakers: 'Dr. Who:' (1 of 4)",
        "kept as spoken, since too rare for timestamps: the time at the start of 1 texts",
        "kept as spoken: 1 parentheses, such as '(an old one)'",
    ]
    assert strip("0:12 Hello.", "0:15 Well.", "0:17 Yes.") == ["Hello.", "Well.", "Yes."]


ORDINARY = [
    "The old lighthouse stands at the end of the harbour.",
    "Well, I don't know… perhaps – and only perhaps – it's 7:30 p.m.?",
    "Sie sagte: „Komm morgen!“ – und ging.",
    "Il a dit : « Non ! » ; puis il est parti.",
    "¿Cómo estás? ¡Muy bien!",
    "Он сказал: «Нет», — и ушёл.",
    "彼は「はい」と言った。",
    "今天天气很好，我们去公园吧！",
    "오늘은 날씨가 좋네요.",
    "هل أنت بخير؟ نعم، شكرًا.",
    "मैं ठीक हूँ। धन्यवाद!",
    "The ratio is 3:1, i.e. 75% / 25%, at $5 & up.",
    "It costs 5*3 or 2_000 at a@b.example.",
    "Mr. Smith's e-mail: see page 3.",
]


def test_ordinary_sentences_stay_as_they_are() -> None:
    assert strip(*ORDINARY) == ORDINARY
    for text in ORDINARY:
        assert strip(text) == [text]


def list_prompt_texts(language: str) -> list[str]:
    packed = DOCUMENTS / f"asterisk-core-sounds-{language}" / f"core-sounds-{language}.txt.gz"
    if not packed.is_file():
        pytest.skip(f"the texts of the prompts are not installed: apt-get install asterisk-core-sounds-{language}")
    lines = gzip.decompress(packed.read_bytes()).decode().split("\n")
    return [" ".join(line.partition(":")[2].split()) for line in lines if ":" in line and not line.startswith(";")]


@pytest.mark.parametrize("language", ["en", "es", "fr", "it", "ru"])
def test_the_texts_of_real_prompts_stay_except_what_is_in_brackets(language: str) -> None:
    texts = [text for text in list_prompt_texts(language) if not set("[]()") & set(text)]
    assert len(texts) > 400
    spoken, decisions = read_spoken_texts(texts, RemovedText())
    assert [one.text for one in spoken] == texts and decisions == [] and not any(one.speakers for one in spoken)


WORDS = st.text(st.characters(categories=("Ll", "Lu", "Lo")), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=8), st.sampled_from([".", "!", "?", "", "…", ","])), min_size=1, max_size=5))
def test_words_are_never_lost(sentences: Sequence[tuple[list[str], str]]) -> None:
    texts = [" ".join(words) + end for words, end in sentences]
    assert strip(*texts) == [" ".join(text.split()) for text in texts]


@given(st.lists(st.text(st.sampled_from("aB1:：[](){}<>*_-—♪「」（）&;>/\n .!? 笑"), max_size=40), max_size=4))
def test_any_text_is_read(texts: list[str]) -> None:
    spoken = strip(*texts)
    assert len(spoken) == len(texts) and not any("\n" in one or "\ue000" in one for one in spoken)


@pytest.mark.parametrize(
    "part", ["[a]", "(", "<", "{\\", "*a", "_a", "&a", "a ", "♪", "((", "- ", "A. B: ", "\n", "(a) ", "Speaker ", "[SPEAKER_00]: a. "]
)
def test_long_lines_of_anything_take_linear_time(part: str) -> None:
    seconds = []
    for count in (500, 8_000):
        started = time.thread_time()  # of this thread alone, whatever else the machine does
        strip(part * count)
        seconds.append(time.thread_time() - started)
    assert seconds[1] < 100 * seconds[0] + 0.2, "sixteen times the text, and not its square"
