"""Tests of `overtone.recipes.codec_lm.model.sequence_layout`: rows become the tokens that Orpheus' authors write and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.families import ORPHEUS
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTextProcessor, check_frames, find_token_ids, read_row, tokenize_prompt
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from tests.recipes.codec_lm import tiny_models

FRAMES = [[100, 200, 201, 300, 301, 302, 303], [110, 210, 211, 310, 311, 312, 313]]
"""In the codec's order: one code of level 1, two of level 2, four of level 3."""
ROW = {"text": "Hi", "speaker": "Tara", "audio_codes": FRAMES}


def test_a_row_is_written_token_for_token_as_by_the_authors(released: SpeechTextProcessor) -> None:
    sample = read_row(ROW, released)
    text = released.tokenizer("tara: Hi")["input_ids"]
    assert text[0] == 128000 and len(text) == 9
    speech = [
        *(128266 + 100, 132362 + 200, 136458 + 300, 140554 + 301, 144650 + 201, 148746 + 302, 152842 + 303),
        *(128266 + 110, 132362 + 210, 136458 + 310, 140554 + 311, 144650 + 211, 148746 + 312, 152842 + 313),
    ]
    assert sample["ids"].tolist() == [128259, *text, 128009, 128260, 128261, 128257, *speech, 128258, 128262]


def test_the_authors_decoder_finds_the_levels_in_the_tokens(released: SpeechTextProcessor) -> None:
    """`convert_to_audio` takes levels 1, 2 and 3 from places 0; 1 and 4; 2, 3, 5 and 6 of each seven."""
    tokens = released.ids.encode_frames(torch.tensor(FRAMES)).view(2, 7)
    codes = (tokens - 128266 - 4096 * torch.arange(7)).tolist()
    assert [[frame[0]] for frame in codes] == [frame[:1] for frame in FRAMES]
    assert [[frame[place] for place in (1, 4)] for frame in codes] == [frame[1:3] for frame in FRAMES]
    assert [[frame[place] for place in (2, 3, 5, 6)] for frame in codes] == [frame[3:] for frame in FRAMES]
    assert released.ids.decode_frames(tokens.flatten()).tolist() == FRAMES


def test_frames_that_repeat_stay(released: SpeechTextProcessor) -> None:
    """The authors' notebook drops a frame whose first code is that of the frame before it."""
    held = [FRAMES[0], FRAMES[0], [FRAMES[0][0], *FRAMES[1][1:]], FRAMES[1]]
    tokens = read_row({**ROW, "audio_codes": held}, released)["ids"]
    assert released.ids.decode_frames(tokens[-30:-2]).tolist() == held


@pytest.mark.parametrize("supervise", ["speech", "everything"])
def test_speech_is_what_generation_chooses_and_everything_is_every_token(supervise: str, released: SpeechTextProcessor) -> None:
    sample = read_row(ROW, replace(released, supervise=supervise))
    learned = sample["ids"][sample["supervised"]].tolist()
    prompt = tokenize_prompt("Hi", "tara", released)
    speech = [*released.ids.encode_frames(torch.tensor(FRAMES)).tolist(), 128258]
    assert learned == (speech if supervise == "speech" else [*prompt, *speech, 128262])


def test_text_is_tokenized_as_the_tokenizer_does_by_default(released: SpeechTextProcessor) -> None:
    prompt = tokenize_prompt("a <laugh> b", "mia", released)
    assert released.tokenizer.decode(prompt[2:-4]) == "mia: a <laugh> b" and prompt[:2] == [128259, 128000]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": " "}, "expected the spoken words"),
        ({"text": "a<custom_token_5>b"}, r"contains the control tokens \['<custom_token_5>'\]"),
        ({"text": "a<|eot_id|>b"}, r"contains the control tokens \['<.eot_id.>'\]"),
        ({"speaker": "Ann<|eot_id|>"}, r"^speaker = 'ann<.eot_id.>' contains the control tokens \['<.eot_id.>'\]"),
        ({"speaker": None}, 'no speaker; add "speaker" to it, or set --options.speaker'),
        ({"audio_codes": None}, "no audio_codes.*: overtone codes FOLDER --model hubertsiuzdak/snac_24khz"),
        ({"audio_codes": []}, "expected a list of at least one frame"),
        (
            {"audio_codes": [FRAMES[0], [1] * 16]},
            "frame 1: .* is not a list of 7 codes.*Orpheus reads the codes of hubertsiuzdak/snac_24khz",
        ),
        ({"audio_codes": [[1] * 32]}, "frame 0: .* is not a list of 7 codes"),
        ({"audio_codes": [[0.5] * 7]}, "codes must be integers"),
        ({"audio_codes": [[1, 2, 3, 4, 5, 4096, 7]]}, "frame 0, codebook 5: 4096 is outside of 0 … 4095"),
        ({"messages": []}, "the row is a chat .it has messages.*--recipe llm_sft"),
    ],
)
def test_a_bad_row_is_refused_with_its_reason(change: dict[str, Any], message: str, released: SpeechTextProcessor) -> None:
    with pytest.raises(UserError, match=message):
        read_row({**ROW, **change}, released)


def test_a_clip_that_is_longer_than_the_model_is_refused(released: SpeechTextProcessor) -> None:
    with pytest.raises(UserError, match=r"2 frames and 14 tokens of the prompt take 30 positions, and the model has 29"):
        read_row(ROW, replace(released, positions=29))
    assert len(read_row(ROW, replace(released, positions=30))["ids"]) == 30


def test_a_default_speaker_speaks_rows_without_one(released: SpeechTextProcessor) -> None:
    row = {**ROW, "speaker": None}
    assert torch.equal(read_row(row, replace(released, default_speaker="TARA"))["ids"], read_row(ROW, released)["ids"])


def test_a_tokenizer_without_the_tokens_is_refused(tmp_path: Path) -> None:
    tiny_models.write_base(tmp_path / "base")
    tokenizer = load_tokenizer(tmp_path / "base", None)
    with pytest.raises(UserError, match=r"lacks 28,560 tokens of Orpheus \(the first is <custom_token_122>\).*orpheus-3b-0.1-pretrained"):
        find_token_ids(tokenizer, ORPHEUS, tmp_path)
    swapped = list(tiny_models.TINY_SPECIAL)
    swapped[20], swapped[21] = swapped[21], swapped[20]
    tiny_models.write_tokenizer(tmp_path / "base", tiny_models.make_tokenizer(tuple(swapped)))
    with pytest.raises(UserError, match="does not follow that of the code before it"):
        find_token_ids(load_tokenizer(tmp_path / "base", None), tiny_models.FAMILY, tmp_path)


def test_codes_are_int64() -> None:
    codes = check_frames(FRAMES, ORPHEUS)
    assert codes.dtype == torch.int64 and codes.tolist() == FRAMES
