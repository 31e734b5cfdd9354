"""What is asked wins over what the model says of itself, and that over the stock package's defaults; nonsense is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.voice_clone.model import sampling_settings
from recipes.voice_clone.model.sampling_settings import Sampling
from recipes.voice_clone.model.token_sampling import Choice, Choices

USUAL = Choices(Choice(False, 0.9, 50, 1.0, 1.05), Choice(False, 0.9, 50, 1.0))


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        (Sampling(), {}, USUAL),
        (Sampling(temperature=0.5, top_p=0.8), {"temperature": 0.3, "top_k": 7}, Choices(Choice(False, 0.5, 7, 0.8, 1.05), USUAL.others)),
        (Sampling(subtalker_top_k=1), {"subtalker_temperature": 0.4}, Choices(USUAL.first, Choice(False, 0.4, 1, 1.0))),
        (Sampling(), {"subtalker_dosample": False}, Choices(USUAL.first, Choice(True, 0.9, 50, 1.0))),
        (Sampling(), {"do_sample": False, "repetition_penalty": 1.2}, Choices(Choice(True, 0.9, 50, 1.0, 1.2), USUAL.others)),
        (Sampling(temperature=0.7), {"do_sample": False}, Choices(Choice(False, 0.7, 50, 1.0, 1.05), USUAL.others)),
        (Sampling(repetition_penalty=1.0), {"do_sample": False}, Choices(Choice(True, 0.9, 50, 1.0, 1.0), USUAL.others)),
        (Sampling(greedy=True, temperature=0.5), {"repetition_penalty": 1.2}, Choices(Choice(True), Choice(True))),
    ],
)
def test_who_decides(asked: Sampling, own: dict[str, Any], expected: Choices) -> None:
    assert asked.choices(own) == expected


def test_the_stock_defaults_are_those_of_the_package() -> None:
    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    tts = import_qwen_tts().Qwen3TTSModel.__new__(import_qwen_tts().Qwen3TTSModel)
    tts.generate_defaults = {}
    assert {name: value for name, value in tts._merge_generate_kwargs().items() if name != "max_new_tokens"} == sampling_settings.STOCK


def test_what_a_model_says(tmp_path: Path) -> None:
    assert sampling_settings.own(tmp_path) == {}
    (tmp_path / sampling_settings.CONFIG).write_text(
        json.dumps({"top_k": 5, "subtalker_dosample": False, "max_new_tokens": 9, "temperature": None})
    )
    assert sampling_settings.own(tmp_path) == {"top_k": 5, "subtalker_dosample": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("subtalker_temperature", "warm"), ("top_k", -1), ("subtalker_top_k", 2.5), ("top_p", 0), ("top_p", 1.5),
        ("repetition_penalty", 0), ("do_sample", "no"), ("subtalker_dosample", 1), ("temperature", float("nan")),
    ],
)  # fmt: skip
def test_nonsense_is_told_with_its_place(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / sampling_settings.CONFIG).write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=rf"generation_config\.json: {name} .* is out of its range; the stock package's is"):
        sampling_settings.own(tmp_path)


@pytest.mark.parametrize("content", ['{"top_k": ', "[1]", "null"])
def test_a_torn_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / sampling_settings.CONFIG).write_text(content)
    with pytest.raises(
        UserError, match=r"generation_config\.json (is not JSON|contains a \w+ instead of a JSON object).*; download the model again"
    ):
        sampling_settings.own(tmp_path)
