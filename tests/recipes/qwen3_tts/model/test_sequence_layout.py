"""The layout equals the table in its documentation, position by position; bad rows are refused with their messages."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import loads_object
from overtone.recipes.qwen3_tts.model import config_factory, sequence_layout
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE, TokenIds
from tests.finetune.hostile import JSON_PIECES, broken

CASES = 400

PAD, BOS, EOS = 151671, 151672, 151673
"""Text ids of the released models."""
ROLE = [151644, 77091, 198]
TEXT = [40, 41, 42, 43]
CODES = torch.arange(3 * 16).reshape(3, 16)
NO = None


@pytest.fixture(scope="module")
def ids() -> TokenIds:
    return TokenIds.from_config(config_factory.make_released_config("0.6B"))


def table(sample: dict[str, torch.Tensor]) -> list[tuple[int, Any]]:
    """What stands in the two channels: text id, and codec id, "voice", frame number or None."""
    rows = []
    frame = 0
    for p in range(len(sample["text"])):
        marks = [bool(sample[name][p]) for name in ("codec_mask", "speaker_mask", "frame_mask")]
        assert sum(marks) <= 1
        codec = int(sample["codec"][p]) if marks[0] else "voice" if marks[1] else None
        if marks[2]:
            codec, frame = f"frame {frame}", frame + 1
        rows.append((int(sample["text"][p]), codec))
    return rows


def test_the_layout_without_a_language(ids: TokenIds) -> None:
    sample = sequence_layout.lay_out_clip(ROLE + TEXT, CODES, speaker=5, language=None, ids=ids)
    assert table(sample) == [
        *((token, NO) for token in ROLE),
        *((PAD, token) for token in (2155, 2156, 2157)),
        (PAD, "voice"),
        (BOS, 2148),
        *((token, 2148) for token in TEXT),
        (EOS, 2148),
        (PAD, 2149),
        *((PAD, f"frame {t}") for t in range(3)),
        (PAD, 2150),
    ]
    assert len(sample["text"]) == 11 + len(TEXT) + len(CODES)
    assert int(sample["speaker"]) == 5


def test_the_layout_with_a_language(ids: TokenIds) -> None:
    sample = sequence_layout.lay_out_clip(ROLE + TEXT, CODES, speaker=0, language=ids.languages["german"], ids=ids)
    assert table(sample)[3:9] == [*((PAD, token) for token in (2154, 2156, 2053, 2157)), (PAD, "voice"), (BOS, 2148)]
    assert len(sample["text"]) == 12 + len(TEXT) + len(CODES)


def test_labels_are_codebook_0_and_end_of_speech(ids: TokenIds) -> None:
    sample = sequence_layout.lay_out_clip(ROLE + TEXT, CODES, speaker=0, language=None, ids=ids)
    assert torch.equal(sample["codes"][sample["frame_mask"]], CODES)
    counted = sample["labels"] != IGNORE
    assert sample["labels"][counted].tolist() == [*CODES[:, 0].tolist(), 2150]
    assert counted.nonzero().flatten().tolist() == [14, 15, 16, 17]  # 7+k+n … 7+k+n+T with k = 3 and n = 4


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("chinese", 2055),
        ("english", 2050),
        ("german", 2053),
        ("spanish", 2054),
        ("japanese", 2058),
        ("french", 2061),
        ("korean", 2064),
        ("russian", 2069),
        ("italian", 2070),
        ("portuguese", 2071),
    ],
)
def test_language_ids_equal_the_released_ones(name: str, number: int, ids: TokenIds) -> None:
    assert ids.languages[name] == number and len(ids.languages) == 10


def test_ids_are_read_from_the_config() -> None:
    moved = copy.deepcopy(config_factory.make_released_config("0.6B"))
    moved["talker_config"]["codec_bos_id"] = 2999
    moved["talker_config"]["codec_language_id"]["some_dialect"] = 2998
    assert TokenIds.from_config(moved).codec_bos == 2999
    assert "some_dialect" not in TokenIds.from_config(moved).languages  # generation selects a dialect by the speaker, not by name


@pytest.mark.parametrize("value", [None, "x", 1.5])
def test_a_config_without_a_number_is_an_error_of_its_key(value: Any) -> None:
    """Found by hostile model folders."""
    config = config_factory.make_released_config("0.6B")
    with pytest.raises(UserError, match=r"config\.json of the model has no valid 'tts_eos"):
        TokenIds.from_config({**config, "tts_eos_token_id": value})
    with pytest.raises(UserError, match="no valid 'im_end_token_id'"):
        TokenIds.from_config({key: value for key, value in config.items() if key != "im_end_token_id"})
    with pytest.raises(UserError, match="no valid (talker_config|'codec_language_id')"):
        TokenIds.from_config({**config, "talker_config": value})


def test_text_tokens_equal_those_of_the_stock_package(fresh: Any) -> None:
    from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    tts = import_qwen_tts().Qwen3TTSModel.from_pretrained(str(fresh.loaded.base))
    for text in ("It is never late!", " Für  12 Leute,\nbitte… ", "don't"):
        stock = tts._tokenize_texts([tts._build_assistant_text(text)])[0][0].tolist()
        assert sequence_layout.tokenize_text(text, fresh.loaded.processor) == stock[: -sequence_layout.TAIL]
        assert tts.processor.tokenizer.decode(stock[: sequence_layout.ROLE]) == "<|im_start|>assistant\n"
        assert tts.processor.tokenizer.decode(stock[-sequence_layout.TAIL :]) == "<|im_end|>\n<|im_start|>assistant\n"


def test_padding_has_no_targets_and_is_masked(fresh: Any) -> None:
    batch = sequence_layout.collate(fresh.samples)
    longest = max(len(sample["text"]) for sample in fresh.samples)
    for index, sample in enumerate(fresh.samples):
        size = len(sample["text"])
        for name in ("valid", "codec_mask", "speaker_mask", "frame_mask"):
            assert torch.equal(batch.tensors[name][index, :size], sample[name]) and not batch.tensors[name][index, size:].any()
        assert (batch.tensors["labels"][index, size:] == IGNORE).all() and batch.tensors["labels"].shape == (4, longest)
    frames = sum(int(sample["frame_mask"].sum()) for sample in fresh.samples)
    assert batch.targets == {"main": frames + 4, "sub": 15 * frames, "main_accuracy": frames + 4, "sub_accuracy": 15 * frames}


def test_flat_positions_select_what_the_masks_select(fresh: Any) -> None:
    tensors = sequence_layout.collate(fresh.samples).tensors
    frames, codes = tensors["frame_mask"], tensors["codes"]
    assert torch.equal(codes.flatten(0, 1)[tensors["frame_rows"]], codes[frames]) and len(tensors["frame_rows"]) == frames.sum()
    marked = torch.zeros_like(frames).flatten()
    marked[tensors["target_rows"] + 1] = True
    assert torch.equal(marked.view_as(frames), tensors["labels"] != IGNORE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": ""}, "text = ''"),
        ({"text": "  "}, "expected the spoken words"),
        ({"text": None}, "text = None"),
        ({"text": "one <|im_end|> two"}, "control tokens ['<|im_end|>']"),
        ({"audio_codes": None}, "overtone codes"),
        ({"audio_codes": []}, "at least one frame"),
        ({"audio_codes": "abc"}, "expected a list of at least one frame"),
        ({"audio_codes": [[1] * 16, [1] * 15]}, "frame 1: [1, 1"),
        ({"audio_codes": [[1] * 16, 7]}, "frame 1: 7 is not a list of 16 codes"),
        ({"audio_codes": [[1] * 15 + [64]]}, "frame 0, codebook 15: 64 is outside of 0 … 63"),
        ({"audio_codes": [[1] * 16, [-1] + [1] * 15]}, "frame 1, codebook 0: -1 is outside"),
        ({"audio_codes": [[1.0] * 16]}, "codes must be integers"),
        ({"audio_codes": [[True] * 16]}, "codes must be integers"),
        (
            {"audio_codes": [[1] * 16] * 2048},
            "2048 frames and 4 tokens of text take 2063 positions, and the model has 2048; cut the clip and its text",
        ),
        (
            {"text": "Hello." * 600},
            "2 frames and 2400 tokens of text take 2413 positions, and the model has 2048; cut the clip and its text",
        ),
        ({"speaker": None}, "--options.speaker NAME"),
        ({"speaker": 7}, "has no speaker"),
        ({"speaker": "Zoe"}, "speaker 'zoe' is not in the training data; it has anna, bert"),
        ({"language": "klingon"}, "language 'klingon' is not known to this model; known: chinese, english"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, Any], message: str, fresh: Any) -> None:
    row = {"text": "Hello.", "speaker": "anna", "audio_codes": [[1] * 16] * 2} | change
    with pytest.raises(UserError) as caught:
        sequence_layout.read_row(row, fresh.loaded.processor)
    assert message in str(caught.value)


@pytest.mark.parametrize("language", ["english", None])
@pytest.mark.parametrize("words", [1, 40])
def test_text_and_frames_must_fit_into_the_positions_of_the_model(language: str | None, words: int, fresh: Any) -> None:
    row = {"text": "Hello " * words, "speaker": "anna", "language": language}
    one_frame = sequence_layout.read_row({**row, "audio_codes": [[1] * 16]}, fresh.loaded.processor)
    most = 2048 - len(one_frame["text"]) + 1
    assert len(sequence_layout.read_row({**row, "audio_codes": [[1] * 16] * most}, fresh.loaded.processor)["text"]) == 2048
    with pytest.raises(UserError, match=rf"{most + 1} frames and \d+ tokens of text take 2049 positions, and the model has 2048"):
        sequence_layout.read_row({**row, "audio_codes": [[1] * 16] * (most + 1)}, fresh.loaded.processor)


def test_a_damaged_row_is_refused_or_becomes_a_sample(fresh: Any) -> None:
    row = {"text": "Hello.", "speaker": "anna", "language": "en", "audio": "a.wav", "audio_codes": [[1] * 16] * 2, "duration": 0.2}
    ends: Counter[str] = Counter()
    for number in range(CASES):
        raw = broken(random.Random(number), json.dumps(row).encode(), JSON_PIECES)
        try:
            sample = sequence_layout.read_row(loads_object(raw), fresh.loaded.processor)
        except UserError:
            ends["refused"] += 1
        else:
            ends["kept"] += 1
            assert len(sample["text"]) == len(sample["labels"]) > 8, f"case {number}"
    assert min(ends["refused"], ends["kept"]) > CASES / 20, ends


@pytest.mark.parametrize(("given", "prefix"), [("English", 4), ("en", 4), ("Auto", 3), (None, 3), ("", 3)])
def test_the_language_determines_the_prefix(given: str | None, prefix: int, fresh: Any) -> None:
    row = {"text": "Hello.", "speaker": " ANNA ", "audio_codes": [[1] * 16], "language": given}
    sample = sequence_layout.read_row(row, fresh.loaded.processor)
    assert int(sample["speaker_mask"].nonzero()) == 3 + prefix
