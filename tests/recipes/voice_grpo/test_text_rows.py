"""Rows as texts to speak: language and speaker by default, the longest clip, and what cannot be spoken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model.base_voices import make_speech_processor, read_base_voices
from overtone.recipes.voice_grpo.options import Options
from overtone.recipes.voice_grpo.text_rows import AUTOMATIC, TextProcessor, lay_out_clip, make_item, read_row


@pytest.fixture
def processor(exported: Path) -> TextProcessor:
    voices = read_base_voices(exported)
    return TextProcessor(make_speech_processor(exported, voices), {"anna": "english", "bert": None}, Options(group=2, max_seconds=2.0))


def test_a_text_is_spoken_in_its_own_language_or_that_of_the_voice(processor: TextProcessor) -> None:
    def read(**row: Any) -> str:
        return make_item(read_row({"text": "Good day.", **row}, processor), "key", processor).language

    assert read(speaker="anna") == "english" and read(speaker="bert") == "auto"
    assert read(speaker="anna", language="auto") == "auto" and read(speaker="bert", language="en") == "english"


def test_model_and_judge_get_the_text_as_it_is_spoken(processor: TextProcessor) -> None:
    sample = read_row({"text": "Grüße 🙂 to you", "speaker": "Bert"}, processor)
    item = make_item(sample, "texts.jsonl:1", processor)
    assert (item.text, item.speaker, item.key) == ("Grüße to you", "bert", "texts.jsonl:1")
    assert sample["prompt"].tolist() == read_row({"text": "Grüße to you", "speaker": "bert"}, processor)["prompt"].tolist()


def test_the_words_of_a_link_can_be_judged(processor: TextProcessor) -> None:
    """Whisper's normalisation drops what is in brackets, so the words are those of the text as it is spoken."""
    sample = read_row({"text": "[Good day](https://example.org)", "speaker": "bert"}, processor)
    assert make_item(sample, "texts.jsonl:1", processor).text == "Good day"


def test_only_one_voice_needs_no_name(processor: TextProcessor) -> None:
    with pytest.raises(UserError, match="speaker"):
        read_row({"text": "Good day."}, processor)
    alone = replace(processor, speech=replace(processor.speech, default_speaker="anna"))
    assert int(read_row({"text": "Good day."}, alone)["speaker"]) == 0


def test_positions_are_those_of_the_longest_clips_of_the_group(processor: TextProcessor) -> None:
    for language, speaker in (("english", "anna"), ("auto", "bert")):
        text = read_row({"text": "Good day.", "speaker": speaker, "language": language}, processor)
        clip = lay_out_clip(text, torch.zeros(25, 16, dtype=torch.int64), True, processor)
        assert int(text["positions"]) == 2 * len(clip["text"]) and int(text["language"] == AUTOMATIC) == (language == "auto")


def test_a_clip_that_was_cut_off_has_no_end(processor: TextProcessor) -> None:
    text = read_row({"text": "Good day.", "speaker": "anna"}, processor)
    ended, cut = (lay_out_clip(text, torch.ones(3, 16, dtype=torch.int64), one, processor)["labels"] for one in (True, False))
    assert int((ended != -100).sum()) == 4 and int((cut != -100).sum()) == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"speaker": "anna"}, "expected the spoken words"),
        ({"text": "… !", "speaker": "anna"}, "has no word to count errors of"),
        ({"text": "Hmm.", "speaker": "anna"}, "has no word to count errors of"),
        ({"text": "[sigh] (laughs)", "speaker": "bert"}, "has no word to count errors of"),
        ({"text": "Good day.", "speaker": "carl"}, "speaker 'carl' is not in the training data; it has anna, bert"),
        ({"text": "Good day.", "speaker": "anna", "language": "Elvish"}, "language 'Elvish' is not known to this model"),
        (
            {"text": "A sentence. " * 30, "speaker": "anna"},
            r"in \d+ passages, and a clip has one; split the row, or raise options.max_seconds: 2",
        ),
        ({"text": "Good <|im_end|>", "speaker": "anna"}, "control tokens"),
    ],
)
def test_what_cannot_be_spoken_is_refused(processor: TextProcessor, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_row(row, processor)


def test_a_clip_that_may_be_longer_than_the_model_is_refused(processor: TextProcessor) -> None:
    small = replace(processor, speech=replace(processor.speech, ids=replace(processor.speech.ids, positions=30)))
    with pytest.raises(UserError, match=r"options.max_seconds: 2 takes up to \d+ positions, and the model has 30; shorten one of them"):
        read_row({"text": "Good day.", "speaker": "anna"}, small)
