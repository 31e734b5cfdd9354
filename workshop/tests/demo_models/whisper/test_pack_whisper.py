"""The shipped weights are the trained ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import whisper

from overtone.data_prep.transcription import demo_whisper
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from workshop.demo_models.whisper import pack_whisper, train_whisper
from workshop.demo_models.whisper.train_whisper import DIMENSIONS


@pytest.mark.parametrize("start_from", [None, demo_whisper.NAME])
def test_the_weights_load_as_they_were_trained(
    start_from: str | None, noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From scratch, and from a finished model, whose training has no phone head."""
    monkeypatch.setattr(train_whisper, "PHASES", (train_whisper.Phase(1.0, 2.0, 1),))
    student = train_whisper.train(tmp_path, noise_corpus, steps=1, seed=0, start_from=start_from)
    steps, tensors = pack_whisper.load_trained(tmp_path, noise_corpus)
    assert steps == 1
    demo_whisper.write_model(tmp_path / "made", tensors, pack_whisper.make_about({}))
    files.write_bytes(tmp_path / "demo.pt", demo_whisper.convert_to_checkpoint(tmp_path / "made" / demo_whisper.WEIGHTS, DIMENSIONS))
    loaded = whisper.load_model(str(tmp_path / "demo.pt"), device="cpu").state_dict()
    for name, tensor in student.weights().items():
        assert torch.equal(loaded[name], tensor.half().float()), name


def test_the_card_has_the_scope_and_the_figures() -> None:
    figures = {"steps": 7, "sentences_of_each_voice": 100, "alone": 0.12, "chunks": 1.23, "long_form": 4.56}
    figures |= {"new_voice_alone": 5.67, "new_voice": 7.89}
    about = pack_whisper.make_about(figures | {"sureness": {"kept_percent": 97.0}, "sureness_of_invented": {"kept_percent": 12.5}})
    assert about.scope == "demo: 200 words, synthetic voices; for your own voice use Whisper small or larger"
    card = pack_whisper.write_card(about)
    assert card.startswith(f"# {demo_whisper.NAME}\n\n**{about.scope}.**")
    assert all(f"| {figures[name]} |" in card for name in ("alone", "chunks", "long_form", "new_voice_alone", "new_voice"))
    assert "97.0 % are above that mean log-probability, of other English 12.5 %" in card


def test_a_missing_training_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training\.safetensors is missing; train first: python -m"):
        pack_whisper.load_trained(tmp_path, tmp_path)
