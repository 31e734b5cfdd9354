"""Figures of what is shipped are renewed; its weights stay."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from finetune import shipped
from finetune.errors import UserError
from recipes.voice_clone.studio import measure_codec, pack_base, remeasure


def test_figures_and_card_are_new_and_all_else_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"texts": 48, "original": 1.5, "codec": 4.5, "cloned": 12.5, "by_voice": {"slt": 7.5}, "runaways": 3}
    monkeypatch.setattr(pack_base, "measure", lambda made, corpus, sentences: figures)
    assert remeasure.main([pack_base.NAME, "--to", str(tmp_path)]) == 0
    before, after = (zipfile.ZipFile(folder / f"{pack_base.NAME}.zip") for folder in (shipped.HERE, tmp_path))
    assert before.namelist() == after.namelist()
    told = json.loads(after.read(shipped.FIGURES))
    assert told == {"steps": json.loads(before.read(shipped.FIGURES))["steps"], **figures}
    assert "| 12.5 |" in after.read(shipped.CARD).decode()
    for name in {*before.namelist()} - {shipped.FIGURES, shipped.CARD}:
        assert before.read(name) == after.read(name), name


@pytest.mark.slow
def test_the_shipped_codec_is_measured_by_both_judges(noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What noise says, nobody understands."""
    monkeypatch.setattr(measure_codec, "SENTENCES", 1)
    assert remeasure.main(["codec-demo", "--corpus", str(noise_corpus), "--to", str(tmp_path)]) == 0
    told = json.loads(zipfile.ZipFile(tmp_path / "codec-demo.zip").read(shipped.FIGURES))
    assert set(told["word_error_rate"]) == {"whisper-demo-en", "pocketsphinx"}
    assert all(min(rates.values()) > 0.5 for rates in told["word_error_rate"].values())
    assert told["clips"] == 7


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whisper-demo-en: there are codec-demo and qwen3-tts-demo-base to measure"):
        remeasure.main(["whisper-demo-en", "--to", str(tmp_path)])
