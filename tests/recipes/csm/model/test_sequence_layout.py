"""The layout equals that of transformers' own processor, token for token; bad rows are refused with what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.csm.model.model_config import read_config
from overtone.recipes.csm.model.sequence_layout import CsmTokens, collate, load_tokenizer, make_dummy_sample, read_row, tokenize_prompt
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import BOOKS, ReadyCsm, make_labels, make_rows


def read(fresh: ReadyCsm, **changes: Any) -> dict[str, torch.Tensor]:
    return read_row({**make_rows(["Ann"])[0], **changes}, fresh.loaded.processor)


def test_ids_and_labels_are_those_of_the_stock_processor(fresh: ReadyCsm, tiny: Path) -> None:
    from transformers import CsmProcessor, EncodecFeatureExtractor

    tokenizer = fresh.loaded.processor.tokenizer
    processor = CsmProcessor(EncodecFeatureExtractor(), tokenizer, chat_template=(tiny / "chat_template.jinja").read_text())
    for number, row in enumerate(make_rows(["Ann", "Bob"])):
        turn = [{"role": str(number // 2), "content": [{"type": "text", "text": row["text"]}, {"type": "audio", "path": "none"}]}]
        text = processor.apply_chat_template(turn, tokenize=False)
        assert text.startswith(f"<|begin_of_text|>[{number // 2}]{row['text']}<|end_of_text|><|AUDIO|>")
        frames = len(row["audio_codes"])
        found = processor(text=text, audio=torch.zeros(frames * 1920).numpy(), output_labels=True)
        sample = read_row(row, fresh.loaded.processor)
        assert found["input_ids"][0].tolist() == sample["ids"].tolist()
        assert ((found["labels"][0] == -100) == (make_labels(sample)[:, 0] == -100)).all()
        assert sample["codes"].tolist() == [*row["audio_codes"], [0] * BOOKS]


def test_a_prompt_is_that_of_generation(fresh: ReadyCsm) -> None:
    tokenizer, row = fresh.loaded.processor.tokenizer, make_rows(["Ann", "Bob"])[2]
    prompt = tokenize_prompt(row["text"], 1, tokenizer)
    assert tokenizer.decode(prompt) == f"<|begin_of_text|>[1]{row['text']}<|end_of_text|>"
    assert read_row(row, fresh.loaded.processor)["ids"][: len(prompt)].tolist() == prompt


def test_speakers_are_found_by_name_in_any_case(fresh: ReadyCsm) -> None:
    assert read(fresh, speaker=" BOB ")["ids"].tolist() == read(fresh, speaker="bob")["ids"].tolist()
    assert read(fresh, speaker="bob")["ids"].tolist() != read(fresh, speaker="ann")["ids"].tolist()


def test_positions_of_frames_count_through_the_padded_batch(fresh: ReadyCsm) -> None:
    batch = collate(fresh.samples)
    width, rows = batch.tensors["ids"].shape[1], batch.tensors["frame_rows"].tolist()
    expected = [
        index * width + len(sample["ids"]) - len(sample["codes"]) + frame
        for index, sample in enumerate(fresh.samples)
        for frame in range(len(sample["codes"]))
    ]
    assert rows == expected and batch.targets["backbone"] == len(rows)
    marked = batch.tensors["ids"].flatten()[batch.tensors["frame_rows"]]
    tokens = fresh.loaded.processor.tokens
    assert set(marked[batch.tensors["speech"]].tolist()) == {tokens.audio} and set(marked[batch.tensors["ends"]].tolist()) == {
        tokens.audio_end
    }


CODES = [[1, 2, 3, 4], [5, 6, 7, 8]]
BAD = {
    "chat": ({"messages": []}, "the row is a chat .*csm trains on speech"),
    "no-text": ({"text": " "}, "expected the spoken words"),
    "control-token": ({"text": "Hello <|AUDIO|> there"}, r"special tokens \['<\|AUDIO\|>'\]"),
    "second-turn": ({"text": "a<|end_of_text|>b"}, r"special tokens \['<\|end_of_text\|>'\]"),
    "no-codes": ({"audio_codes": None}, "no audio_codes; run `overtone codes"),
    "other-codebooks": ({"audio_codes": [[1] * 16]}, "frame 0: .* is not a list of 4 codes; create the codes again with this model"),
    "out-of-range": ({"audio_codes": [[1, 2, 3, 4], [1, 2, 32, 4]]}, r"frame 1, codebook 2: 32 is outside of 0 … 31"),
    "end-frame": (
        {"audio_codes": [[1, 2, 3, 4], [0, 0, 0, 9]]},
        "frame 1 has code 0 in every codebook but perhaps the last, which means end of speech",
    ),
    "stranger": ({"speaker": "Cid"}, "speaker 'cid' is not in the training data; it has ann, bob"),
    "nobody": ({"speaker": None}, "the row has no speaker"),
    "too-long": ({"audio_codes": CODES * 1030}, "2060 frames and .* tokens of text take 20.* positions, and the model has 2048"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_rows_are_refused(name: str, fresh: ReadyCsm) -> None:
    changes, message = BAD[name]
    with pytest.raises(UserError, match=message):
        read(fresh, **changes)


def test_a_frame_with_some_end_codes_is_speech(fresh: ReadyCsm) -> None:
    assert read(fresh, audio_codes=[[0, 0, 1, 0]])["codes"].tolist() == [[0, 0, 1, 0], [0] * BOOKS]


def test_the_processor_can_be_sent_to_other_processes(fresh: ReadyCsm) -> None:
    copy = pickle.loads(pickle.dumps(fresh.loaded.processor))
    row = make_rows(["Ann"])[0]
    assert read_row(row, copy)["ids"].tolist() == read_row(row, fresh.loaded.processor)["ids"].tolist()


def test_a_dummy_sample_has_the_given_length(fresh: ReadyCsm) -> None:
    sample = make_dummy_sample(20, fresh.loaded.processor.tokens)
    assert RECIPE.length(sample) == 20 and len(sample["codes"]) == 19


@pytest.mark.parametrize("token", ["<|AUDIO|>", "<|audio_eos|>"])
def test_a_tokenizer_with_other_ids_than_the_model_is_refused(token: str, tiny: Path, tmp_path: Path) -> None:
    tokens = CsmTokens.from_config(read_config(tiny))
    base = tmp_path / "base"
    base.mkdir()
    for path in tiny.iterdir():
        text = path.read_bytes()
        (base / path.name).write_bytes(text.replace(token.encode(), b"<|other|>") if path.name == "tokenizer.json" else text)
    with pytest.raises(UserError, match="in the tokenizer and 30. in config.json"):
        load_tokenizer(base, tokens)


def test_a_damaged_tokenizer_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(UserError, match="the tokenizer cannot be loaded"):
        load_tokenizer(tmp_path, CsmTokens.from_config(read_config(tiny)))
