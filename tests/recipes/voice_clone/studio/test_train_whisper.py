"""The training of the demo Whisper: the same bits in one stretch or in several, and a model that the stock package loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from whisper.model import ModelDimensions, Whisper

from finetune.errors import UserError
from recipes.voice_clone.studio import train_whisper
from recipes.voice_clone.studio.train_whisper import DIMENSIONS, Phase, Student, main, train
from recipes.voice_clone.studio.whisper_windows import Speech


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_whisper, "PHASES", (Phase(0.5, 2.0, 2), Phase(1.0, 3.0, 2)))


def test_a_training_in_stretches_ends_with_the_bits_of_one(noise_corpus: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", noise_corpus, steps=4, seed=1)
    train(tmp_path / "parts", noise_corpus, steps=4, seed=1, until=1)
    train(tmp_path / "parts", noise_corpus, steps=4, seed=1, until=3)
    parts = train(tmp_path / "parts", noise_corpus, steps=4, seed=1)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name]), name
    start = train(tmp_path / "start", noise_corpus, steps=4, seed=1, until=0)
    assert not torch.equal(start.embedding, whole.embedding)


@pytest.fixture(scope="module")
def student(noise_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Student:
    return train(tmp_path_factory.mktemp("student"), noise_corpus, steps=2, seed=0, until=1)


def test_the_stock_whisper_computes_what_was_trained(student: Student) -> None:
    """On 30 s and in fp32: the used tokens' logits and, at all others, the shared one less the logarithm of their number."""
    stock = Whisper(ModelDimensions(**DIMENSIONS))
    stock.load_state_dict(student.weights())
    mels, tokens = torch.randn(1, 80, 3000), torch.tensor([student.used[:7]])
    with torch.no_grad():
        expected = stock(mels, tokens)
        heard = student._encode(mels)
        found = student._decode(tokens, heard)
    scale = expected.std()
    assert (found[..., :-1] - expected[..., student.used]).abs().max() < 0.05 * scale + 0.02, "blocks in bf16"
    unused = sorted(set(range(DIMENSIONS["n_vocab"])) - set(student.used))
    assert torch.equal(expected[..., unused[:1]].expand(-1, -1, 3), expected[..., unused[:3]])
    total = torch.logsumexp(expected, -1)
    torch.testing.assert_close(torch.logsumexp(found, -1), total, atol=0.05, rtol=0.01)


def test_the_phone_head_is_thrown_away(student: Student) -> None:
    assert not [name for name in student.weights() if "spell" in name]
    assert set(student.weights()) == set(Whisper(ModelDimensions(**DIMENSIONS)).state_dict())


def test_what_cannot_be_trained_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--steps 0: at least 1"):
        main(["--steps", "0"])
    with pytest.raises(UserError, match=r"corpus\.jsonl is missing; make it"):
        main([str(tmp_path), "--corpus", str(tmp_path)])


def test_a_training_goes_on_with_a_finished_model(student: Student, noise_corpus: Path, tmp_path: Path) -> None:
    """All that a checkpoint holds is taken; only the phone head begins anew."""
    torch.save({"dims": DIMENSIONS, "model_state_dict": student.weights()}, tmp_path / "finished.pt")
    begun = train(tmp_path / "more", noise_corpus, steps=2, seed=5, until=0, begin=str(tmp_path / "finished.pt"))
    for name, tensor in student.state_dict().items():
        assert torch.equal(tensor, begun.state_dict()[name]) == ("spell.weight" != name and "spell.bias" != name), name


def test_what_is_gone_on_with_is_heard_in_long_windows_only(
    student: Student, noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"dims": DIMENSIONS, "model_state_dict": student.weights()}, tmp_path / "finished.pt")
    seconds, batch = [], Speech.batch
    monkeypatch.setattr(Speech, "batch", lambda *given: seconds.append(given[3]) or batch(*given))
    train(tmp_path / "new", noise_corpus, steps=2, seed=0)
    train(tmp_path / "more", noise_corpus, steps=2, seed=0, begin=str(tmp_path / "finished.pt"))
    assert seconds == [2.0, 3.0, 3.0, 3.0]


def test_a_whisper_of_another_shape_is_refused(noise_corpus: Path, tmp_path: Path) -> None:
    other = DIMENSIONS | {"n_audio_layer": 1}
    torch.save({"dims": other, "model_state_dict": Whisper(ModelDimensions(**other)).state_dict()}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"--from .*other\.pt: its shape is .*'n_audio_layer': 1"):
        train(tmp_path / "more", noise_corpus, steps=2, seed=0, begin=str(tmp_path / "other.pt"))
