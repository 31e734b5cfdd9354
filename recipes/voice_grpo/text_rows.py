"""Reads a row as a text to speak in a trained voice.

    {"text": "…", "speaker": "me", "language": "english"}

`speaker` may be missing if the base has one voice; without `language`, the text is spoken in that of the voice, as by `overtone generate`.
Other keys, as a recording of the text, are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from overtone.data_prep import manifest
from overtone.data_prep.transcription.word_errors import normalize
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row, Sample
from overtone.recipes.qwen3_tts.model import sequence_layout
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor
from overtone.recipes.speech.dataset_row_checks import check_is_speech, check_text
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.passages import split_request
from overtone.recipes.speech.spoken_text import clean_text

from .options import Options

AUTOMATIC = -1
"""The language of a text that the model finds itself."""


@dataclass(frozen=True)
class TextProcessor:
    """Turns a row into a text to speak, and such a text into a clip's sample."""

    speech: SpeechProcessor
    languages: Mapping[str, str | None]
    """Speaker → the language of its recordings."""
    options: Options

    @property
    def speakers(self) -> list[str]:
        """The names of the speakers in the order of their vectors."""
        return sorted(self.speech.speakers, key=lambda name: self.speech.speakers[name])


def read_row(row: Row, processor: TextProcessor) -> Sample:
    """Return `prompt` [3 + n], the ids of the role and of the text as it is spoken; `text` [b] uint8, that text in UTF-8; `speaker` [];
    `language` [], its id or `AUTOMATIC`; and `positions` [], what its clips can occupy at most. Raises `UserError` for a row that cannot be
    spoken or judged."""
    speech, options = processor.speech, processor.options
    check_is_speech(row, "voice_grpo")
    text, speaker = clean_text(check_text(row.get("text"))).text, sequence_layout.find_speaker_index(row, speech)
    language = sequence_layout.find_language({"language": find_language_name(row, processor, speaker)}, speech.ids)
    if not normalize(text, language or "english"):  # strict without a language, since English also drops "hmm"
        raise UserError(f"text {text!r:.60} has no word to count errors of; correct or remove the row")
    if (passages := len(split_request(SpeechRequest(text, processor.speakers[speaker]), options.max_seconds))) > 1:
        raise UserError(
            f"it would be spoken in {passages} passages, and a clip has one; split the row, or raise options.max_seconds: "
            f"{options.max_seconds:g}"
        )
    prompt = sequence_layout.tokenize_text(text, speech)
    clip = measure_positions(len(prompt), language is not None, options)
    if clip > speech.ids.positions:
        raise UserError(
            f"the text with options.max_seconds: {options.max_seconds:g} takes up to {clip} positions, and the model has "
            f"{speech.ids.positions}; shorten one of them"
        )
    return {
        "prompt": torch.tensor(prompt),
        "text": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8),
        "speaker": torch.tensor(speaker),
        "language": torch.tensor(AUTOMATIC if language is None else speech.ids.languages[language]),
        "positions": torch.tensor(options.group * clip),
    }


def find_language_name(row: Row, processor: TextProcessor, speaker: int) -> str | None:
    """Return the language of a row: its own, or that of its speaker."""
    given = row.get("language")
    return str(given) if given not in (None, "") else processor.languages[processor.speakers[speaker]]


def measure_positions(prompt: int, has_language: bool, options: Options) -> int:
    """Return the positions of the longest clip of a text with `prompt` ids, by `sequence_layout`."""
    return 8 + (4 if has_language else 3) + prompt - sequence_layout.ROLE + options.longest_clip


def lay_out_clip(text: Sample, codes: Tensor, ended: bool, processor: TextProcessor) -> Sample:
    """Return a clip [T, codebooks] of a text that `read_row` has made, as the sample of `sequence_layout`. Speech that was cut off has no
    end of speech to predict."""
    language = int(text["language"])
    sample = sequence_layout.lay_out_clip(
        text["prompt"].tolist(), codes, int(text["speaker"]), None if language == AUTOMATIC else language, processor.speech.ids
    )
    if not ended:
        sample["labels"][-1] = sequence_layout.IGNORE
    return sample


def make_item(text: Sample, key: str, processor: TextProcessor) -> Item:
    """Return a text as the judge takes it."""
    names = {number: name for name, number in processor.speech.ids.languages.items()}
    language = names.get(int(text["language"]), manifest.AUTO)
    return Item(key, bytes(text["text"].tolist()).decode(), processor.speakers[int(text["speaker"])], language)
