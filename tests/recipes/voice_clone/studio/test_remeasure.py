"""Figures of what is shipped are renewed; its weights stay."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from finetune.storage import demo_models
from recipes.voice_clone.exporting import exported_files
from recipes.voice_clone.studio import remeasure
from recipes.voice_clone.studio.base import pack_base
from recipes.voice_clone.studio.codec import measure_codec
from recipes.voice_clone.studio.judges import Judge


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remeasure, "FOLDER", tmp_path_factory.mktemp("again"))


FIGURES = {
    "texts": 48,
    "wrong_words": {
        "whisper-demo-en": {"original": 1.5, "codec": 4.5, "cloned": 12.5},
        "pocketsphinx": {"original": 21.5, "codec": 24.5, "cloned": 32.5},
    },
    "by_voice": {"slt": 7.5},
    "runaways": 3,
}


def measured(made: Path, corpus: Path, sentences: int, asked: dict[str, Judge]) -> dict[str, Any]:
    assert list(asked) == ["whisper-demo-en", "pocketsphinx"]
    assert (made / "speech_tokenizer" / "model.safetensors").is_file()
    return FIGURES


def test_figures_and_card_are_new_and_the_model_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_base, "measure", measured)
    assert remeasure.main([pack_base.NAME, "--to", str(tmp_path)]) == 0
    before, after = (zipfile.ZipFile(folder / f"{pack_base.NAME}.zip") for folder in (demo_models.HERE, tmp_path))
    told = json.loads(after.read(demo_models.FIGURES))
    assert told == {"steps": json.loads(before.read(demo_models.FIGURES))["steps"], **FIGURES}
    assert "| 12.5 | 32.5 |" in after.read(demo_models.CARD).decode()
    for name in {*after.namelist()} - {demo_models.FIGURES, demo_models.CARD}:
        assert before.read(name) == after.read(name), name


def test_what_ships_has_no_names_of_the_studio() -> None:
    folder = demo_models.folder_of(pack_base.NAME)
    assert json.loads((folder / "config.json").read_text())["talker_config"]["spk_id"] == {}
    assert not (folder / exported_files.VOICES).exists()


def test_nothing_is_written_before_all_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object) -> None:
        raise UserError("no")

    monkeypatch.setattr(
        measure_codec, "measure", lambda *_given: json.loads((demo_models.folder_of("codec-demo") / demo_models.FIGURES).read_text())
    )
    monkeypatch.setattr(pack_base, "measure", fails)
    with pytest.raises(UserError, match="no"):
        remeasure.main(["--to", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_without_a_corpus_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; make it"):
        remeasure.main(["codec-demo", "--corpus", str(tmp_path), "--to", str(tmp_path)])


@pytest.mark.slow
def test_the_shipped_codec_is_measured_by_both_judges(noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What noise says, nobody understands."""
    monkeypatch.setattr(measure_codec, "SENTENCES", 1)
    assert remeasure.main(["codec-demo", "--corpus", str(noise_corpus), "--to", str(tmp_path)]) == 0
    told = json.loads(zipfile.ZipFile(tmp_path / "codec-demo.zip").read(demo_models.FIGURES))
    assert set(told["word_error_rate"]) == {"whisper-demo-en", "pocketsphinx"}
    assert all(min(rates.values()) > 0.5 for rates in told["word_error_rate"].values())
    assert told["clips"] == 7


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whisper-demo-en: there are codec-demo and qwen3-tts-demo-base to measure"):
        remeasure.main(["whisper-demo-en", "--to", str(tmp_path)])
