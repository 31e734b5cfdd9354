"""Doubts about texts by what is written in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.data_prep.pipeline.wrong_text_detection import describe_languages, find_content_doubts, refuse_wrong_texts
from overtone.finetune.errors import UserError
from tests.data_prep.pipeline.test_clip_selection import clip, recording

ENGLISH = [
    "The agent is already logged on, please enter the number of your agent.",
    "Your call is being transferred to the next free operator.",
    "Please stay on the line, somebody will answer as soon as possible.",
    "There are no new messages in your mailbox this morning.",
    "If you would like to leave a message, please speak after the tone.",
]
ITALIAN = [
    "L'operatore è già collegato, digitare il proprio numero di operatore.",
    "La chiamata verrà trasferita al prossimo operatore disponibile.",
    "Rimanete in linea, qualcuno risponderà appena possibile.",
    "Questa mattina non ci sono nuovi messaggi nella vostra casella.",
    "Per lasciare un messaggio, si prega di parlare dopo il segnale.",
]


def say(texts: list[str], language: str, name: str = "a.wav"):
    clips = (clip(number, text=text, avg_logprob=None) for number, text in enumerate(texts))
    one = recording(*(each.model_copy(update={"language": language}) for each in clips))
    return replace(one, source=replace(one.source, name=name))


def test_texts_in_another_language_are_doubted_with_the_way_out() -> None:
    doubts = find_content_doubts([say(ENGLISH, "italian")])
    assert {(one.reason, one.detail) for one in doubts.by_clip.values()} == {("other_language", "looks english, not italian")}
    assert len(doubts.by_clip) == len(ENGLISH)
    (notice,) = doubts.notices
    assert notice.recordings == ("a.wav",) and "the texts look english, not italian: give --language english" in notice.text
    assert doubts.languages == {"a.wav": "looks english, not italian"}


def test_texts_in_the_declared_or_a_close_language_are_not_doubted() -> None:
    for language in ("english", "italian"):
        doubts = find_content_doubts([say(ENGLISH if language == "english" else ITALIAN, language)])
        assert (doubts.by_clip, doubts.notices, doubts.languages) == ({}, [], {"a.wav": "language fits"})
    swedish = "Alla människor är födda fria och lika i värde och rättigheter, och de är utrustade med förnuft."
    assert find_content_doubts([say([swedish], "norwegian")]).by_clip == {}, "close languages are not distinguished"


def test_single_sentences_in_another_language_are_counted_and_kept() -> None:
    doubts = find_content_doubts([say([*ITALIAN[:4], ENGLISH[1]], "italian")])
    assert doubts.by_clip == {}
    assert "1 of 5 texts look like another language than italian: english (1), such as 'Your call is" in doubts.notices[0].text
    mostly = find_content_doubts([say([*ENGLISH[:4], ITALIAN[0]], "italian")])
    assert mostly.by_clip.keys() == {"aa_0", "aa_1", "aa_2", "aa_3"}, "a sentence that is certainly right stays"


def test_short_texts_are_judged_together_and_the_rest_is_not_checked() -> None:
    short = [replace(say([text[:30]], "italian", f"{number}.wav")) for number, text in enumerate(ENGLISH)]
    doubts = find_content_doubts(short)
    assert doubts.notices[0].recordings == tuple(f"{number}.wav" for number in range(5)) and "look english" in doubts.notices[0].text
    few = find_content_doubts([say(["Hello there."], "italian")])
    assert few.by_clip == {} and few.languages == {"a.wav": "language not checked"}
    assert "fewer than 60 letters" in few.notices[0].text
    unknown = find_content_doubts([say(ENGLISH, "klingon")])
    assert unknown.by_clip == {} and "no model of klingon" in unknown.notices[0].text


def test_few_words_in_another_script_are_enough() -> None:
    doubts = find_content_doubts([say(["Привет всем", "Да"], "english")])
    assert {one.detail for one in doubts.by_clip.values()} == {"looks written in Cyrillic letters, not english"} and len(
        doubts.by_clip
    ) == 2
    with pytest.raises(
        UserError, match="--language english: the texts of the transcripts are written in Cyrillic letters: give their language"
    ):
        refuse_wrong_texts(["Привет всем", "Да"], "english")


def test_a_language_that_nobody_named_is_identified() -> None:
    doubts = find_content_doubts([say(ENGLISH, "auto"), say(ITALIAN, "auto", "b.wav")])
    assert doubts.languages == {"a.wav": "looks english", "b.wav": "looks italian"}
    both = describe_languages(doubts.languages, None)
    assert [notice.is_warning for notice in both] == [True, True] and "several languages?" in both[0].text
    (one,) = describe_languages({"a.wav": "looks english"}, None)
    assert "give --language" not in one.text and "--language english" in one.text and not one.is_warning
    assert describe_languages(doubts.languages, "en") == []


def test_garbled_texts_are_doubted_alone_or_with_their_file() -> None:
    wrong = [text.encode().decode("cp1252", "replace") for text in ITALIAN]
    doubts = find_content_doubts([say([*ITALIAN[1:], wrong[0]], "italian")])
    assert {identity: one.reason for identity, one in doubts.by_clip.items()} == {"aa_4": "garbled_text"}
    assert "UTF-8 that was read as cp1252" in doubts.by_clip["aa_4"].detail
    assert "1 of 5 texts were decoded wrongly, such as \"L'operatore Ã¨ giÃ" in doubts.notices[0].text


def test_a_run_whose_texts_are_mostly_wrong_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match="--language italian: the texts of the transcripts look english: give --language english"):
        refuse_wrong_texts(ENGLISH, "italian")
    with pytest.raises(UserError, match="3 of 5 texts were decoded wrongly.*UTF-8 that was read as cp1252: save the file again"):
        refuse_wrong_texts([*ITALIAN[3:], *(text.encode().decode("cp1252") for text in ITALIAN[:3])], "italian")
    for texts, language in ((ENGLISH, "english"), (ITALIAN, None), (["Yes.", "No."], "italian"), ([], "italian")):
        refuse_wrong_texts(texts, language)
