"""A request overrides the model's settings, which override the stock defaults; invalid settings are reported with their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.voice_clone.model import sampling_settings
from recipes.voice_clone.model.sampling_settings import SamplingSettings
from recipes.voice_clone.model.token_sampling import CodeSampler, FrameSampler

USUAL = FrameSampler(CodeSampler(False, 0.9, 50, 1.0, 1.05), CodeSampler(False, 0.9, 50, 1.0))


@pytest.mark.parametrize(
    ("requested", "own", "expected"),
    [
        (SamplingSettings(), {}, USUAL),
        (
            SamplingSettings(temperature=0.5, top_p=0.8),
            {"temperature": 0.3, "top_k": 7},
            FrameSampler(CodeSampler(False, 0.5, 7, 0.8, 1.05), USUAL.others),
        ),
        (SamplingSettings(subtalker_top_k=1), {"subtalker_temperature": 0.4}, FrameSampler(USUAL.first, CodeSampler(False, 0.4, 1, 1.0))),
        (SamplingSettings(), {"subtalker_dosample": False}, FrameSampler(USUAL.first, CodeSampler(True, 0.9, 50, 1.0))),
        (
            SamplingSettings(),
            {"do_sample": False, "repetition_penalty": 1.2},
            FrameSampler(CodeSampler(True, 0.9, 50, 1.0, 1.2), USUAL.others),
        ),
        (SamplingSettings(temperature=0.7), {"do_sample": False}, FrameSampler(CodeSampler(False, 0.7, 50, 1.0, 1.05), USUAL.others)),
        (SamplingSettings(repetition_penalty=1.0), {"do_sample": False}, FrameSampler(CodeSampler(True, 0.9, 50, 1.0, 1.0), USUAL.others)),
        (SamplingSettings(greedy=True, temperature=0.5), {"repetition_penalty": 1.2}, FrameSampler(CodeSampler(True), CodeSampler(True))),
    ],
)
def test_a_request_overrides_the_model_and_the_model_overrides_the_stock_package(
    requested: SamplingSettings, own: dict[str, Any], expected: FrameSampler
) -> None:
    assert requested.make_sampler(own) == expected


def test_the_stock_defaults_equal_those_of_the_package() -> None:
    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    tts = import_qwen_tts().Qwen3TTSModel.__new__(import_qwen_tts().Qwen3TTSModel)
    tts.generate_defaults = {}
    assert {name: value for name, value in tts._merge_generate_kwargs().items() if name != "max_new_tokens"} == sampling_settings.STOCK


def test_settings_are_read_from_the_model(tmp_path: Path) -> None:
    assert sampling_settings.read_model_settings(tmp_path) == {}
    (tmp_path / sampling_settings.CONFIG).write_text(
        json.dumps({"top_k": 5, "subtalker_dosample": False, "max_new_tokens": 9, "temperature": None})
    )
    assert sampling_settings.read_model_settings(tmp_path) == {"top_k": 5, "subtalker_dosample": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("subtalker_temperature", "warm"), ("top_k", -1), ("subtalker_top_k", 2.5), ("top_p", 0), ("top_p", 1.5),
        ("repetition_penalty", 0), ("do_sample", "no"), ("subtalker_dosample", 1), ("temperature", float("nan")),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_reported_with_its_file(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / sampling_settings.CONFIG).write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=rf"generation_config\.json: {name} .* is out of range; the stock package uses"):
        sampling_settings.read_model_settings(tmp_path)


@pytest.mark.parametrize("content", ['{"top_k": ', "[1]", "null"])
def test_a_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / sampling_settings.CONFIG).write_text(content)
    with pytest.raises(
        UserError, match=r"generation_config\.json (is not JSON|contains a \w+ instead of a JSON object).*; download the model again"
    ):
        sampling_settings.read_model_settings(tmp_path)
