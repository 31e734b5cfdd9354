"""Measuring shipped models again updates their figures and cards, not their weights."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.recipes.qwen3_tts.exporting import export_plan
from workshop.demo_models import remeasure_models
from workshop.demo_models.base import pack_base
from workshop.demo_models.codec import measure_codec
from workshop.demo_models.recognizers import WordErrorMeasure


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remeasure_models, "FOLDER", tmp_path_factory.mktemp("again"))


FIGURES = {
    "texts": 48,
    "wrong_words": {
        "whisper-demo-en": {"original": 1.5, "codec": 4.5, "cloned": 12.5},
        "pocketsphinx": {"original": 21.5, "codec": 24.5, "cloned": 32.5},
    },
    "by_voice": {"slt": 7.5},
    "runaways": 3,
}


def measured(made: Path, corpus: Path, sentences: int, measures: dict[str, WordErrorMeasure]) -> dict[str, Any]:
    assert list(measures) == ["whisper-demo-en", "pocketsphinx"]
    assert (made / "speech_tokenizer" / "model.safetensors").is_file()
    return FIGURES


@pytest.mark.slow
def test_figures_and_card_are_updated_and_the_model_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_base, "measure", measured)
    assert remeasure_models.main([pack_base.NAME, "--to", str(tmp_path)]) == 0
    before, after = (zipfile.ZipFile(folder / f"{pack_base.NAME}.zip") for folder in (demo_models.data_folder() / "models", tmp_path))
    updated = json.loads(after.read(demo_models.FIGURES))
    assert updated == {"steps": json.loads(before.read(demo_models.FIGURES))["steps"], **FIGURES}
    assert "| 12.5 | 32.5 |" in after.read(demo_models.CARD).decode()
    for name in {*after.namelist()} - {demo_models.FIGURES, demo_models.CARD}:
        assert before.read(name) == after.read(name), name


def test_the_shipped_base_has_no_speaker_names() -> None:
    folder = demo_models.folder_of(pack_base.NAME)
    assert json.loads((folder / "config.json").read_text())["talker_config"]["spk_id"] == {}
    assert not (folder / export_plan.VOICES).exists()


@pytest.mark.slow
def test_nothing_is_written_before_all_models_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object) -> None:
        raise UserError("no")

    monkeypatch.setattr(
        measure_codec, "measure_codec", lambda *_given: json.loads((demo_models.folder_of("codec-demo") / demo_models.FIGURES).read_text())
    )
    monkeypatch.setattr(pack_base, "measure", fails)
    with pytest.raises(UserError, match="no"):
        remeasure_models.main(["--to", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_corpus_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; create it"):
        remeasure_models.main(["codec-demo", "--corpus", str(tmp_path), "--to", str(tmp_path)])


@pytest.mark.slow
def test_the_shipped_codec_is_measured_with_both_recognizers(noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise has no words, so the WER is high."""
    monkeypatch.setattr(measure_codec, "SENTENCES", 1)
    assert remeasure_models.main(["codec-demo", "--corpus", str(noise_corpus), "--to", str(tmp_path)]) == 0
    figures = json.loads(zipfile.ZipFile(tmp_path / "codec-demo.zip").read(demo_models.FIGURES))
    assert set(figures["word_error_rate"]) == {"whisper-demo-en", "pocketsphinx"}
    assert all(min(rates.values()) > 0.5 for rates in figures["word_error_rate"].values())
    assert figures["clips"] == 7


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whisper-demo-en: unknown model; choose codec-demo or qwen3-tts-demo-base"):
        remeasure_models.main(["whisper-demo-en", "--to", str(tmp_path)])
