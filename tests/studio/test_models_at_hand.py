"""The lists of pages name what is in the caches of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.storage import demo_models
from overtone.studio.models_at_hand import list_hub_models, list_whispers


def test_whispers_of_three_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(demo_models, "find_data", lambda: None)
    assert list_whispers() == list_hub_models() == []
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "tiny.en.pt").touch()
    for name in ("models--Systran--faster-whisper-small", "models--openai--whisper-tiny", "models--a--b--c", "datasets--a--b"):
        (tmp_path / "huggingface" / "hub" / name).mkdir(parents=True)
    assert list_whispers() == ["faster-whisper:small", "openai/whisper-tiny", "tiny.en"]
    assert list_hub_models() == ["Systran/faster-whisper-small", "a/b--c", "openai/whisper-tiny"]
