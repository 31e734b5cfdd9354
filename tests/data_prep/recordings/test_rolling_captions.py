"""Rolling captions of YouTube: every line is read once, with the times of its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.removed_text import RemovedText
from overtone.data_prep.recordings.rolling_captions import merge_rolling_cues, split_words
from overtone.data_prep.recordings.subtitles import parse_subtitles
from overtone.data_prep.recordings.timed_transcript import make_transcript
from overtone.data_prep.recordings.user_transcripts import find_transcript

BLANK = " "
"""YouTube writes a line of one space where the upper line of the screen is empty."""
POSITION = " align:start position:0%"
YOUTUBE = f"""WEBVTT
Kind: captions
Language: en

00:00:00.160 --> 00:00:02.389{POSITION}
{BLANK}
hello<00:00:00.480><c> and</c><00:00:00.640><c> welcome</c>

00:00:02.389 --> 00:00:02.399{POSITION}
hello and welcome
{BLANK}

00:00:02.399 --> 00:00:05.000{POSITION}
hello and welcome
to<00:00:02.600><c> my</c><00:00:04.200><c> show</c>

00:00:05.000 --> 00:00:05.010{POSITION}
to my show
{BLANK}

00:00:05.010 --> 00:00:06.000{POSITION}
to my show
yes

00:00:06.000 --> 00:00:06.010{POSITION}
yes
{BLANK}

00:00:08.000 --> 00:00:09.000{POSITION}
yes
&gt;&gt; [Music]

00:00:20.000 --> 00:00:21.000{POSITION}
{BLANK}
yes
"""


def test_each_word_of_youtubes_captions_is_read_once_with_its_time() -> None:
    removed = RemovedText()
    found = make_transcript(parse_subtitles(YOUTUBE, Path("talk.en.vtt")), "talk.en.vtt", removed)
    assert [one.text for one in found.utterances] == ["hello", "and", "welcome", "to", "my", "show", "yes", "yes"]
    assert [one.start for one in found.utterances] == [0.16, 0.48, 0.64, 2.399, 2.6, 4.2, 5.01, 20.0]
    assert found.words and removed.counts["sound and mood tags"] == 1
    assert found.notes == ("rolling captions, each line read once, with the times of their words", "1 change of the speaker (>>)")
    my = found.utterances[4]
    assert my.end < 3.2, "a word does not last until the next one if the speaker pauses"


def test_a_repeated_sentence_is_no_rolling_caption() -> None:
    cue = "00:01.000 --> 00:02.000\n"
    parsed = parse_subtitles(f"{cue}Yes.\n\n{cue}Yes.\n\n{cue}No.\n\n{cue}Well.\n", Path("a.srt"))
    assert merge_rolling_cues(parsed) == parsed


def test_captions_as_srt_are_read_by_lines(tmp_path: Path) -> None:
    """As `yt-dlp --convert-subs srt` writes them."""
    shown = [(0.16, 2.389, "hello and welcome"), (2.389, 2.399, "hello and welcome"), (2.399, 5.0, "hello and welcome\nto my show")]
    shown += [(5.0, 5.01, "to my show"), (5.01, 6.0, "to my show\nyes")]
    text = "".join(f"{n}\n00:00:{a:06.3f} --> 00:00:{b:06.3f}\n{line}\n\n".replace(".", ",", 2) for n, (a, b, line) in enumerate(shown, 1))
    (tmp_path / "talk.srt").write_text(text)
    transcript = find_transcript(tmp_path / "talk.mp3")
    assert transcript is not None and not transcript.words
    assert [(one.text, one.start) for one in transcript.utterances] == [("hello and welcome", 0.16), ("to my show", 2.399), ("yes", 5.01)]
    assert "without times of words, so texts may be off by some words: prefer the .vtt file" in transcript.note


def test_words_without_time_stay_together() -> None:
    assert split_words(1.0, 3.0, "all of it") == [(1.0, 3.0, "all of it")]
    assert split_words(1.0, 3.0, "one<00:00:02.000><c> two</c>") == [
        (1.0, pytest.approx(1.44), "one"),
        (2.0, pytest.approx(2.44), "<c> two</c>"),
    ]
